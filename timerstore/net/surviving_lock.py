"""A lock that survives an exception at any line of its holder, as a signal handler may raise one.

`with lock:` does not: an exception between the end of the block and the release leaves the lock
taken for good. Here the release is repeated by a handler around all of it, and the lock knows its
owner, so that a release by another thread changes nothing.

Thread safety: any thread.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

from timerstore._engine.base.owner import NotCopyable


class SurvivingLock(NotCopyable):
    """One thread at a time runs a function under it.

    A caller with a handler of its own may use `acquire` and `release`, and `release_own` in the
    handler.
    """

    def __init__(self) -> None:
        lock = self._lock = threading.RLock()
        self.acquire, self.release = lock.acquire, lock.release

    def release_own(self) -> None:
        """Release the lock if this thread holds it."""
        with suppress(RuntimeError):
            self._lock.release()

    def run(self, function: Callable[[], object], timeout_s: float = -1.0) -> bool:
        """Run a function when the lock is free. Return False if it is not free in time.

        `timeout_s`: 0 does not wait; -1 waits without a limit.
        """
        lock = self._lock
        try:
            if timeout_s == 0:
                is_held = lock.acquire(blocking=False)
            else:
                is_held = lock.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))
            if not is_held:
                return False
            caught = _error_of(function)
            lock.release()
        except BaseException:
            self.release_own()
            raise
        if caught is not None:
            raise caught
        return True


def _error_of(function: Callable[[], object]) -> Exception | None:
    """Run a function and return its error. The holder raises it without its handler, which is for
    an exception that comes from elsewhere.
    """
    try:
        function()
    except Exception as error:  # noqa: BLE001 - the holder raises it
        return error
    return None
