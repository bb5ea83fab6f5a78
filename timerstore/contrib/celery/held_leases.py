"""The leases of the messages that a worker has: renewed while it has them, and settled.

One thread renews the leases of a process, also while the pool `solo` runs a task in the thread of
the event loop. A settlement whose connection was lost is repeated by its receipt, which stays valid
over restarts of the server.

Thread safety: any thread. Tables are changed by single steps of the interpreter.
Raises: what settling raises, so that Celery logs it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable

from timerstore.contrib.celery.address import Store
from timerstore.errors import (
    ClosedError,
    ConnectionLostError,
    LeaseLostError,
    TimerStoreError,
    UnavailableError,
)

LEASE_S = 60.0
_RENEW_S = LEASE_S / 3
_REPEAT_S = 1.0

_log = logging.getLogger(__name__)


class HeldLeases:
    """The leases of the users of one store in this process."""

    def __init__(self, store: Store, on_settled: Callable[[], None]) -> None:
        """`on_settled`: called by the thread when the last late settlement was repeated."""
        self._store = store
        self._on_settled = on_settled
        self._renewed_s: dict[str, float] = {}  # by receipt, on the monotonic clock
        self._late: dict[str, Callable[[str], object]] = {}  # settlements to be repeated
        self._wake = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def has_late(self) -> bool:
        """Whether settlements are still to be repeated."""
        return bool(self._late)

    def add(self, receipts: Iterable[str]) -> None:
        """Renew these leases from now on."""
        now_s = time.monotonic()
        self._renewed_s.update((one, now_s) for one in receipts)
        self._start()

    def settle(self, receipt: str, call: Callable[[str], object]) -> None:
        """Settle a message by `call`, a call of the store with its receipt."""
        self._renewed_s.pop(receipt, None)
        try:
            result = str(call(receipt))
        except TimerStoreError as error:
            if error.retryable or isinstance(error, ConnectionLostError | UnavailableError):
                self._late[receipt] = call
                self._start()
                self._wake.set()
            raise
        _warn_if_late(receipt, result)

    def give_back(self, receipts: Iterable[str]) -> None:
        """Return those leases that are held, so that other workers get the messages now. Without a
        server they return when they end.
        """
        found = [one for one in receipts if self._renewed_s.pop(one, None) is not None]
        for count, one in enumerate(found):
            try:
                self._store.nack(one, delay=0)
            except TimerStoreError as error:
                _log.warning(
                    "%d tasks are delivered again in up to %d s only: %s",
                    len(found) - count,
                    LEASE_S,
                    error,
                )
                return

    def forget_in_child(self) -> None:
        """Hold nothing in a forked child: the leases, and the thread, are the parent's."""
        self._renewed_s, self._late = {}, {}
        self._wake = threading.Event()
        self._thread = None

    def close(self) -> None:
        """End the thread, after the store was closed: so a call that it waits in ends."""
        self._is_closed = True
        self._wake.set()
        if self._thread not in (None, threading.current_thread()):
            self._thread.join()

    # --- the thread ---

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="timerstore-celery-leases", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        while not self._is_closed:
            self._wake.wait(_REPEAT_S if self._late else _RENEW_S / 2)
            self._wake.clear()
            had_late = self.has_late
            try:
                self.step()
            except ClosedError:
                return
            except TimerStoreError as error:
                _log.warning("leases of tasks could not be renewed: %s", error)
            if had_late and not self.has_late:
                self._on_settled()

    def step(self) -> None:
        """Renew the leases of which a third has passed, and repeat settlements."""
        for receipt, renewed_s in list(self._renewed_s.items()):
            if time.monotonic() < renewed_s + _RENEW_S:
                continue
            try:
                self._store.renew(receipt, lease=LEASE_S)
            except LeaseLostError as error:
                if self._renewed_s.pop(receipt, None) is not None:  # not settled in between
                    _log.warning(
                        "a running task lost its lease and may run a second time: %s", error
                    )
            else:
                if receipt in self._renewed_s:  # not settled in between
                    self._renewed_s[receipt] = time.monotonic()
        for receipt, call in list(self._late.items()):
            result = str(call(receipt))
            del self._late[receipt]
            _log.warning("a task was settled after a lost connection (%s)", result)
            _warn_if_late(receipt, result)


def _warn_if_late(receipt: str, result: str) -> None:
    if result in ("EXPIRED", "SETTLED", "UNKNOWN"):
        _log.warning(
            "a task ended after its lease (%s): it may run a second time; receipt %s",
            result,
            receipt,
        )
