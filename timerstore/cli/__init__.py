"""The door for people and scripts: `timerstore <command>`.

command.py   the command itself: finds the right file, turns errors into exit codes
exits.py     exit codes, and what to do about an error     given.py    options, times, delays
words.py     what numbers and messages look like           output.py   text, tables, JSON lines
opening.py   a store taken, for those that change it       beside.py   one read beside its owner
streams.py   standard input, output and error: open, and such that no text fails
stopping.py  Ctrl-C between two steps, not within one      progress.py bars on standard error

making.py    init, restore, backup          putting.py   put
reading.py   get, follow                    listing.py   ls, count
changing.py  cancel, move                   checking.py  verify, repair
leasing.py   receive, ack, nack, extend     recurring.py every
pacing.py    pace
seeing.py    histogram, explain
tables.py    dump, export                   importing.py import; rows.py reads its files
top.py       the live screen; ring.py, screen.py draw    serving.py   serve, in a browser
trying.py    bench, demo

Holds:    (1) standard output carries answers only, everything else is said on standard error;
          (2) what only looks takes no lock and changes nothing; (3) needs click and rich only once
          `main` is called, pyarrow only where a table is read.
Source:   decision 0032.
"""

import importlib
import sys
from collections.abc import Sequence

from timerstore.cli.streams import ready

INSTALL = "pip install 'timerstore[cli]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code (exits.py). Standard streams that are closed are opened."""
    with ready():
        try:
            command = importlib.import_module("timerstore.cli.command")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in {"click", "rich"}:
                raise
            sys.stderr.write(f"timerstore: {error.name} is not installed; do: {INSTALL}\n")
            return 2
        return int(command.main(arguments))
