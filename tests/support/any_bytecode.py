"""Raise an exception at any bytecode of a call, as a signal handler may."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any


class InterruptedCallError(Exception):
    """Raised by `interrupted` inside the call."""


def interrupted(call: Callable[[], Any], at: int, files: frozenset[str]) -> bool:
    """Make a call on a thread, and raise at its bytecode number `at`, counted in these files from
    0. Return False if it has fewer: then it was not interrupted.

    A thread of its own, as the interpreter's record of the exception in work is wrong after some
    bytecodes.
    """
    count = 0
    outcome: list[bool] = []

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count
        if Path(frame.f_code.co_filename).name not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            if count > at:
                raise InterruptedCallError
        return trace

    def run() -> None:
        sys.settrace(trace)
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
