"""Print to a stream that its reader may close: `timerstore-spark ... 2>&1 | head -1`.

A reader that is gone does not undo the work of a program, and is no error of it. Later text for the
same stream is dropped. The command `timerstore` has an exit code for this instead (cli/exits.py).

Thread safety: runs on the main thread.
"""

import os
import sys
from typing import TextIO


def say(text: str) -> None:
    """Write a line to standard output."""
    _write(sys.stdout, text)


def note(text: str) -> None:
    """Write a line to standard error."""
    _write(sys.stderr, text)


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(f"{text}\n")
        stream.flush()
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())  # also for what the interpreter flushes at its end
        os.close(null)
