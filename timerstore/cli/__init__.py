"""The command line: `timerstore <command>`.

command.py          the command: loads the module of a subcommand, turns errors into exit codes
exits.py            exit codes, and what to do about an error
params.py           types of options: times, delays, settings, pairs
text.py             numbers, times and messages as text and JSON; output.py writes them
opening.py          opens a store or connects to one; summaries.py reads the files of one
served.py           numbers of a served store; served_watch.py measures it for top
streams.py          standard input, output and error; stopping.py handles Ctrl-C
progress.py         progress bars on standard error

making.py           init, restore, backup          putting.py      put
reading.py          get, follow                    listing.py      ls, count, backlog
changing.py         cancel, move                   checking.py     verify, repair
leasing.py          receive, ack, nack, extend     recurring.py    every
pacing.py           pace                           inspecting.py   histogram, explain
exporting.py        dump, export                   importing.py    import (import_rows.py)
top.py              top; wheel_ring.py, screen.py  serving.py      serve (service_manager.py)
converting.py       convert                        pinging.py      ping
trials.py           bench                          demo.py         demo
completing.py       completion                     doctor/         doctor

Invariants:
    1. Standard output carries answers only; everything else goes to standard error.
    2. Commands that only read take no lock and change nothing.
    3. click and rich are imported once `main` is called, pyarrow where a table is read.
See also: docs/decisions/0014-tools.md.
"""

import importlib
import sys
from collections.abc import Sequence

from timerstore.cli.exits import INSTALL
from timerstore.cli.streams import ready


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (exits.py). Replace closed standard streams."""
    with ready():
        try:
            command = importlib.import_module("timerstore.cli.command")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in {"click", "rich"}:
                raise
            sys.stderr.write(f"timerstore: {error.name} is not installed; do: {INSTALL}\n")
            return 2
        except KeyboardInterrupt:
            return 130
        return int(command.main(arguments))
