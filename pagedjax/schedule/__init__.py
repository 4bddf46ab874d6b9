"""Host state of serving: requests, blocks, plans, the scheduler, counters. Ints and lists.

Imports the standard library, `checks`, `config`, `sampling_params` and `outputs`.
"""
