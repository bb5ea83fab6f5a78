"""Run the command line as `python -m timerstore.cli`."""

import sys

from timerstore.cli import main

if __name__ == "__main__":
    sys.exit(main())
