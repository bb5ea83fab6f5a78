"""Raise MemoryError at the n-th line of the engine that runs in this thread.

Invariants:
    1. Clean-up code is exempt: the state after a `finally` that did not run cannot be repaired.
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

ENDS_CALL = "calls.pop("  # in the guard of all calls, open_store.py
_ENGINE = str(Path(timerstore.__file__).parent)
# the tests read this attribute, too
_CLOCK = str(Path(timerstore.__file__).with_name("testing.py"))


class Lines:
    """Count the lines that run."""

    def __init__(self, nth: int) -> None:
        self._nth = nth
        self.count = 0
        self.where = ""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count lines in this thread within the block, and raise at the chosen one."""
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
    """Return whether a line belongs to a `with`, or ends a call of the store.

    Such a line runs again at the end of the block. An error there, which only a tracer can raise,
    would prevent the end of the block.
    """
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return text.lstrip().startswith(("with ", ENDS_CALL))
