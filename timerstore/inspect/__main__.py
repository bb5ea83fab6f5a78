"""Look at a store directory, or salvage it, from a shell.

    python -m timerstore.inspect verify <directory>
    python -m timerstore.inspect repair <directory> <new directory>

Exit status: 0 nothing is wrong; 1 something is damaged, and named; 2 it could not be looked at.
"""

import argparse
import sys
from collections.abc import Sequence

from timerstore.errors import TimerStoreError
from timerstore.inspect.offline import verify_directory
from timerstore.inspect.repair import repair_directory


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m timerstore.inspect", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quiet", action="store_true", help="do not say how far it has come")
    commands = parser.add_subparsers(dest="command", required=True)
    verify = commands.add_parser("verify", help="name what is damaged; change nothing")
    verify.add_argument("directory")
    repair = commands.add_parser("repair", help="salvage into a new directory")
    repair.add_argument("directory")
    repair.add_argument("target")
    given = parser.parse_args(arguments)
    progress = None if given.quiet else _Progress()
    try:
        if given.command == "verify":
            report = verify_directory(given.directory, progress=progress)
        else:
            report = repair_directory(given.directory, given.target, progress=progress)
    except (TimerStoreError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a command's answer
        return 2
    print(report)  # noqa: T201 - a command's answer
    return 0 if report.clean else 1


class _Progress:
    """Says every so many per cent on stderr."""

    def __init__(self) -> None:
        self._said = -1

    def __call__(self, done: int, total: int) -> None:
        percent = 100 * done // max(1, total)
        if percent // 5 > self._said:
            self._said = percent // 5
            print(f"{percent} % of {total:,} bytes", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
