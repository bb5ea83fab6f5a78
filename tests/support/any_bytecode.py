"""Raise an exception, or run a handler, at any bytecode of a call, as a signal may."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.support.interrupts import see_opcodes

_PATIENCE_S = 20.0


class InterruptedCallError(Exception):
    """Raised by `interrupted` inside the call."""


def _tracer(files: frozenset[str], reached: Callable[[], None]) -> Callable[..., Any]:
    """Return a trace function that calls `reached` before each bytecode of these files."""

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        if Path(frame.f_code.co_filename).name not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            reached()
        return trace

    return trace


def interrupted(call: Callable[[], Any], at: int, files: frozenset[str]) -> bool:
    """Make a call on a thread, and raise at its bytecode number `at`, counted in these files from
    0. Return False if it has fewer: then it was not interrupted.

    A thread of its own, as the interpreter's record of the exception in work is wrong after some
    bytecodes.
    """
    count = 0
    outcome: list[bool] = []

    def reached() -> None:
        nonlocal count
        count += 1
        if count > at:
            raise InterruptedCallError

    def run() -> None:
        see_opcodes()
        sys.settrace(_tracer(files, reached))
        try:
            call()
        except InterruptedCallError:
            outcome.append(True)
        else:
            outcome.append(False)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return outcome[0]


def handled(
    call: Callable[[], Any], handler: Callable[[], object], at: int, files: frozenset[str]
) -> bool:
    """Make a call on a thread, and run a handler in it at its bytecode number `at`, counted as in
    `interrupted`. Return False if it has fewer.

    Raises:
        TimeoutError: the call did not end.
    """
    count = 0

    def reached() -> None:
        nonlocal count
        count += 1
        if count == at + 1:
            handler()

    def run() -> None:
        see_opcodes()
        sys.settrace(_tracer(files, reached))
        call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    if thread.is_alive():
        raise TimeoutError(f"the call did not end after a handler at bytecode {at}")
    return count > at
