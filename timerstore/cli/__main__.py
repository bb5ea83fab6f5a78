"""`python -m timerstore.cli`: the same as `timerstore`."""

import sys

from timerstore.cli import main

if __name__ == "__main__":
    sys.exit(main())
