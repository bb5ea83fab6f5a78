"""Ctrl-C and SIGTERM: asked for between two steps, so that a store is closed, not torn off.

Threads:  signals come to the main thread.
Holds:    inside `with stopping():` a first signal only sets a flag, which `Stop.check` raises; a
          second one ends the process at once, which a store survives like any kill.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType

from timerstore._engine.base.owner import Owner
from timerstore.cli.exits import Exit

_CODES = {signal.SIGINT: Exit.INTERRUPTED, signal.SIGTERM: Exit.TERMINATED}


class Stopped(BaseException):
    """A signal asked for the end."""

    def __init__(self, code: Exit) -> None:
        super().__init__(code)
        self.code = code


class Stop(Owner):
    """Whether the end was asked for: by a signal, or by the command itself."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._code = Exit.FINE
        self._deadline: float | None = None

    @property
    def is_asked(self) -> bool:
        """Whether it is time to end."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._event.set()
        return self._event.is_set()

    def end_within(self, span: timedelta | None) -> None:
        """Ask for the end after so long; None: never."""
        if span is not None:
            self._deadline = time.monotonic() + span.total_seconds()

    def finish(self) -> None:
        """Ask for the end: all is done."""
        self._event.set()

    def check(self) -> None:
        """Raise Stopped where a signal came."""
        if self._code is not Exit.FINE:
            raise Stopped(self._code)

    def wait(self, seconds: float) -> bool:
        """Wait, at most so long; whether it is time to end."""
        self._event.wait(min(seconds, threading.TIMEOUT_MAX))
        return self.is_asked

    def ask(self, number: int, _frame: FrameType | None = None) -> None:
        """Take a signal."""
        code = _CODES[signal.Signals(number)]
        if self._code is not Exit.FINE:
            os._exit(code)
        self._code = code
        self._event.set()


@contextmanager
def stopping() -> Iterator[Stop]:
    """Hold signals back; at the end raise Stopped where one came."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {one: signal.signal(one, stop.ask) for one in _CODES}
    try:
        yield stop
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    stop.check()


def raise_terminated(number: int, _frame: FrameType | None) -> None:
    """What SIGTERM does outside of `stopping`."""
    raise Stopped(_CODES[signal.Signals(number)])
