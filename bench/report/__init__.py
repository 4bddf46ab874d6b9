"""Options, headers, tables and charts that the commands share."""
