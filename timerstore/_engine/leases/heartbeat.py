"""Renew a lease again and again while a block runs.

    with store.heartbeat(message, lease=60) as beat:
        work()                  # renewed every 20 s, by a thread
        if beat.lost: ...       # the lease is over: another consumer may have the message

Thread safety: one thread uses the block; `lost` may be read by any.
Invariants:
    1. A renewal begins when a third of the lease has passed. One that fails is tried again until
       the lease has ended.
    2. A lease that was settled during the block ends the renewals, and is no error.
    3. If no renewal succeeded for the length of the lease, as after one that got no answer for so
       long, the end of the block renews once more: the answer tells whether the lease was lost.
"""

import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from timerstore._engine.base.owner import Owner
from timerstore._engine.leases.leased_message import AckResult
from timerstore.errors import LeaseLostError, TimerStoreError

_PARTS = 3  # of a lease, between two renewals


class Beats(Owner):
    """The renewals of one lease, for a thread or a task that waits between them."""

    def __init__(self, lease_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self.interval_s = lease_s / _PARTS
        self.lost: LeaseLostError | None = None
        """Why the lease is not held any more; None while it is."""
        self._lease_s = lease_s
        self._now_s = now_s
        self._begun_s = self._end_s = math.inf  # of the last renewal, and of the lease

    @property
    def may_be_lost(self) -> bool:
        """Whether the lease has ended, unless it was settled or `lost` says so already."""
        return self._now_s() >= self._end_s

    def begin(self) -> None:
        """Note that a renewal begins."""
        self._begun_s = self._now_s()

    def renewed(self) -> None:
        """Note that the renewal succeeded."""
        self._end_s = self._begun_s + self._lease_s

    def failed(self, error: TimerStoreError) -> bool:
        """Note that the renewal failed; return whether to try again."""
        if not isinstance(error, LeaseLostError):
            if not self.may_be_lost:
                return True
            self.lost = LeaseLostError(
                f"heartbeat: the lease was not renewed before its end ({error})",
                result=AckResult.EXPIRED,
            )
            self.lost.__cause__ = error
        elif error.result != AckResult.SETTLED:
            self.lost = error
        self._end_s = math.inf
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
        self._beats.begin()
        self._renew()
        self._beats.renewed()
        self._thread = threading.Thread(target=self._run, name="timerstore-heartbeat", daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._is_over.wait(self._beats.interval_s):
            if not self._beat():
                return

    def _beat(self) -> bool:
        """Renew the lease; return whether to renew it again."""
        self._beats.begin()
        try:
            self._renew()
        except TimerStoreError as error:
            return self._beats.failed(error)
        self._beats.renewed()
        return True

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        if self._beats.may_be_lost:
            self._beat()
        if error is None and self.lost is not None:
            raise self.lost
