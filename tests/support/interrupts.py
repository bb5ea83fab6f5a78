"""Raise an exception at each place in a call where a signal handler can raise one.

CPython runs handlers of signals after it has called a function of C, when a function of Python
begins, and when a loop jumps back.

From 3.12 on, CPython does not know the `with` and `try` around the jump of a loop whose last
statement is a condition that is not met: an exception there runs none of them. The documents say
so (guarantees.md), and these places are left out.
"""

import dis
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import timerstore

_PACKAGE = str(Path(timerstore.__file__).parent)
_BEGINS = frozenset({"RESUME", "JUMP_BACKWARD"})


def _handler(code: CodeType, at: int) -> int | None:
    """Return where an exception at an instruction continues. A handler of a signal raises at the
    call itself, which a tracer cannot: it raises at the next instruction.
    """
    for one in _tables(code):
        if one.start <= at < one.end:
            return int(one.target)
    return None


@cache
def _tables(code: CodeType) -> list[Any]:
    found: list[Any] = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return found


@cache
def _loops(code: CodeType) -> dict[int, int]:
    """Return where each jump back leads."""
    found = dis.get_instructions(code)
    return {one.offset: one.argval for one in found if one.opname == "JUMP_BACKWARD"}


def see_opcodes() -> None:
    """Prepare sys.settrace. CPython 3.12 sees opcodes if a frame asked for them before."""

    def ask(frame: FrameType, _event: str, _given: Any) -> None:
        frame.f_trace_opcodes = True

    def called() -> None:
        """Do nothing."""

    sys.settrace(ask)
    called()
    sys.settrace(None)


class InterruptError(Exception):
    """As a time limit raises it."""


class Interrupt:
    """Raises InterruptError at the n-th place of a call.

    within: counts only the places in functions of this name, and in what they call.
    """

    def __init__(self, nth: int, within: str = "") -> None:
        self._nth = nth
        self._within = within
        self._depth = 0 if within else 1  # how many functions of that name run
        self._count = 0
        self._before: dict[FrameType, tuple[str, int]] = {}
        self.where = ""

    def during(self, call: Callable[[], Any]) -> Any:
        """Return the result of the call, if it has fewer places."""
        see_opcodes()
        sys.settrace(self._enter)
        try:
            return call()
        finally:
            sys.settrace(None)
            self._before.clear()  # else frames, and what they hold, stay until garbage is collected

    def _enter(self, frame: FrameType, _event: str, _given: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._depth += frame.f_code.co_name == self._within
        return self._step

    def _step(self, frame: FrameType, event: str, _given: Any) -> Any:
        if event == "return":
            self._before.pop(frame, None)
            self._depth -= frame.f_code.co_name == self._within
            if frame.f_back is not None:  # no handler runs at the end of a function of Python
                self._before[frame.f_back] = "", frame.f_back.f_lasti
        if event != "opcode":
            return self._step
        at = frame.f_lasti
        name = dis.opname[frame.f_code.co_code[at]]
        before, before_at = self._before.get(frame, ("", at))
        self._before[frame] = name, at
        is_after_call = before.startswith("CALL") and name != "BEFORE_WITH"
        # The handler of the jump must be that of the loop.
        other = _loops(frame.f_code).get(at, at) if name in _BEGINS else before_at
        is_place = name in _BEGINS or is_after_call
        if self._depth and is_place and _handler(frame.f_code, at) == _handler(frame.f_code, other):
            self._count += 1
            if self._count == self._nth:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} before {name}"
                raise InterruptError(self.where)
        return self._step
