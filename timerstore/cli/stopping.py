"""Handle Ctrl-C and SIGTERM between two steps of a command, so that it closes its store.

Inside `with stopping():` the first signal only sets a flag, and `Stop.check` raises it. A second
signal ends the process at once; the store then recovers as after any crash.

Thread safety: signal handlers run on the main thread.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.base.service import WakeEvent
from timerstore.cli.exits import Exit

_CODES = {signal.SIGINT: Exit.INTERRUPTED, signal.SIGTERM: Exit.TERMINATED}


class Stopped(BaseException):
    """A signal requested the end of the command."""

    def __init__(self, code: Exit) -> None:
        super().__init__(code)
        self.code = code


class Stop(NotCopyable):
    """Whether the command should end, as a signal or the command itself requested."""

    def __init__(self) -> None:
        self._is_asked = False
        self._wakeup = WakeEvent()  # a handler may set it inside its `wait`
        self._code = Exit.FINE
        self._deadline: float | None = None

    @property
    def is_asked(self) -> bool:
        """Return whether the command should end."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self.finish()
        return self._is_asked

    def end_within(self, span: timedelta | None) -> None:
        """Request the end after a time; None sets no limit."""
        if span is not None:
            self._deadline = time.monotonic() + span.total_seconds()

    def finish(self) -> None:
        """Request the end because the command has finished its work."""
        self._is_asked = True
        self._wakeup.set()

    def check(self) -> None:
        """Raise Stopped if a signal arrived."""
        if self._code is not Exit.FINE:
            raise Stopped(self._code)

    def wait(self, seconds: float) -> bool:
        """Wait for at most `seconds`; return whether the command should end."""
        if not self._is_asked:
            self._wakeup.wait(min(seconds, threading.TIMEOUT_MAX))
        return self.is_asked

    def ask(self, number: int, _frame: FrameType | None = None) -> None:
        """Handle a signal."""
        code = _CODES[signal.Signals(number)]
        if self._code is not Exit.FINE:
            os._exit(code)
        self._code = code
        self.finish()


@contextmanager
def stopping() -> Iterator[Stop]:
    """Defer signals inside the block. Raise Stopped at its end if one arrived."""
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
    """Handle SIGTERM outside of `stopping`."""
    raise Stopped(_CODES[signal.Signals(number)])
