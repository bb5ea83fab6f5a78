"""Raises MemoryError at the n-th line of the engine that runs: anything may, at any line.

Holds:    not in what only undoes: a `finally` that cannot run leaves what nobody can make good.
"""

import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import timerstore
from tests.support.inside.methods import UNDOES

_ENGINE = str(Path(timerstore.__file__).parent)
_CLOCK = str(Path(timerstore.__file__).with_name("testing.py"))  # the test itself reads it, too


class Lines:
    """Counts lines."""

    def __init__(self, nth: int) -> None:
        self._nth = nth
        self.count = 0
        self.where = ""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count, and raise, in this thread while this is held."""
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, _event: str, _given: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(_ENGINE) or code.co_filename == _CLOCK:
            return None
        if code.co_name in UNDOES:
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, _given: Any) -> Any:
        if event == "line" and not _is_with(frame):
            self.count += 1
            if self.count == self._nth:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise MemoryError(self.where)
        return self._line


def _is_with(frame: FrameType) -> bool:
    """Lines of `with` run again when it ends: an error just there, which nothing but a tracer
    raises, would keep it from ending. So it is with the line that ends a call of the store.
    """
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return text.lstrip().startswith(("with ", "calls.discard("))
