"""Renew a lease again and again while a block runs.

    with store.heartbeat(message, lease=60) as beat:
        work()                  # renewed every 20 s, by a thread
        if beat.lost: ...       # the lease is over: another consumer may have the message

Thread safety: one thread uses the block; `lost` may be read by any.
Invariants:
    1. A renewal begins when a third of the lease has passed, so one that fails is tried again twice
       before the lease ends.
    2. A lease that was settled during the block ends the renewals, and is no error.
"""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from timerstore._engine.base.owner import Owner
from timerstore._engine.leases.leased_message import AckResult
from timerstore.errors import LeaseLostError, TimerStoreError

_PARTS = 3  # of a lease, between two renewals


class Beats(Owner):
    """The renewals of one lease, for a thread or a task that waits between them."""

    def __init__(self, lease_s: float) -> None:
        self.interval_s = lease_s / _PARTS
        self.lost: LeaseLostError | None = None
        """Why the lease is not held any more; None while it is."""
        self._failures = 0

    def renewed(self) -> None:
        """Note that a renewal succeeded."""
        self._failures = 0

    def failed(self, error: TimerStoreError) -> bool:
        """Note that a renewal failed; return whether to try again."""
        if isinstance(error, LeaseLostError):
            if error.result != AckResult.SETTLED:
                self.lost = error
            return False
        self._failures += 1
        if self._failures < _PARTS:
            return True
        self.lost = LeaseLostError(
            f"heartbeat: the lease was not renewed before its end ({error})",
            result=AckResult.EXPIRED,
        )
        self.lost.__cause__ = error
        return False


class Heartbeat(Owner):
    """Renews a lease while a `with` block runs; see StoreApi.heartbeat."""

    def __init__(self, renew: Callable[[], int], lease_s: float) -> None:
        self._renew = renew
        self._beats = Beats(lease_s)
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def lost(self) -> LeaseLostError | None:
        """Why the lease is not held any more; None while it is."""
        return self._beats.lost

    def __enter__(self) -> Self:
        self._renew()
        self._thread = threading.Thread(target=self._run, name="timerstore-heartbeat", daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._is_over.wait(self._beats.interval_s):
            try:
                self._renew()
            except TimerStoreError as error:
                if not self._beats.failed(error):
                    return
            else:
                self._beats.renewed()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        if error is None and self.lost is not None:
            raise self.lost
