"""`python -m bench.memory`."""

import sys

from bench.memory.command import main

if __name__ == "__main__":
    sys.exit(main())
