"""Standard input, output and error: open, and such that no text fails.

Threads:  the main one, before a command runs.
Holds:    (1) one that is closed is as /dev/null, so that no file gets its number and nothing that
          is said raises; (2) a character that the encoding of an answer does not have is escaped,
          a euro sign as its number; (3) bytes of standard input that are no text come as halves of
          surrogate pairs, which whoever takes the line refuses.
"""

import io
import sys
from typing import Any

from timerstore.files.descriptors import keep_standard

_ESCAPED, _AS_HALVES = "backslashreplace", "surrogateescape"


def make_ready() -> None:
    """Make all three so."""
    keep_standard()
    sys.stdin = _made(sys.stdin, 0, "r", _AS_HALVES)
    sys.stdout = _made(sys.stdout, 1, "w", _ESCAPED)
    sys.stderr = _made(sys.stderr, 2, "w", _ESCAPED)


def _made(stream: Any, fd: int, mode: str, errors: str) -> Any:
    """Have it take any text; Python has none where it found the descriptor closed."""
    if stream is None:
        return open(fd, mode, errors=errors, closefd=False)
    if isinstance(stream, io.TextIOWrapper):  # else somebody's own, in memory
        stream.reconfigure(errors=errors)
    return stream
