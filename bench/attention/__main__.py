"""`python -m bench.attention`."""

import sys

from bench.attention.command import main

if __name__ == "__main__":
    sys.exit(main())
