"""Loop over leased messages.

    consumer = store.lease_consumer("orders", "billing", lease=60)
    for message in consumer:
        with consumer.handling(message): ...

Thread safety: any thread; each message goes to one thread.
Raises: MessageError on options that a loop does not take; what receive, ack, nack and extend raise.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from traceback import format_exception_only
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.leases.leased_message import AckResult, LeasedMessage
from timerstore._engine.leases.receive_request import check_loop
from timerstore.errors import ClosedError, LeaseLostError, TimerStoreError

# --- lease consumer ---


Leased = TypeVar("Leased", bound=LeasedMessage)

LONGEST_WAIT_S = 3600.0
"""The longest single wait of a loop without a limit."""


def described(error: BaseException) -> str:
    """Return the type and the text of an exception, for `nack(error=)`."""
    return "".join(format_exception_only(error)).strip()


class LeaseConsumer(NotCopyable, Generic[Leased]):
    """Iterates over a topic for a group, one lease at a time; see `TimerStore.lease_consumer`.

        for message in consumer:
            with consumer.handling(message):
                handle(message)     # on return the message is acked; on an exception it is nacked

    Iterating ends if the store is closed, or, if the consumer was made with `wait`, after that many
    seconds without a message.
    """

    def __init__(
        self,
        receive: Callable[..., list[Leased]],
        ack: Callable[[Leased], AckResult],
        nack: Callable[..., AckResult],
        topic: str | Sequence[str],
        group: str,
        wait: float | None,
        options: dict[str, Any],
    ) -> None:
        check_loop(options)
        self.topic = topic
        self.group = group
        self._receive = receive
        self._ack = ack
        self._nack = nack
        self._wait = wait
        self._options = options

    def __iter__(self) -> Iterator[Leased]:
        return self

    def __next__(self) -> Leased:
        found = self._next(())
        if found is None:
            raise StopIteration
        return found

    def _next(self, acked: Sequence[Leased]) -> Leased | None:
        """Acknowledge messages, and return the next one; None at the end."""
        wait = LONGEST_WAIT_S if self._wait is None else self._wait
        while True:
            try:
                found = self._receive(
                    self.topic, self.group, max_count=1, wait=wait, ack=acked, **self._options
                )
            except ClosedError:
                return None
            if found or self._wait is not None:
                return found[0] if found else None
            acked = ()

    def acking(self) -> Iterator[Leased]:
        """Iterate, and acknowledge each message when the loop asks for the next one.

            for message in consumer.acking():
                handle(message)     # no other call is needed

        One call acknowledges a message and receives the next, so this takes half as many syncs and
        round trips as `handling`. The message of a loop that ends early, by `break` or by an
        exception, is not acknowledged; it is delivered again when its lease ends. The same holds
        if the store is closed before the next call, which ends the loop.
        """
        found = self._next(())
        while found is not None:
            yield found
            found = self._next((found,))

    @contextmanager
    def handling(
        self,
        message: Leased,
    ) -> Iterator[Leased]:
        """Ack the message if the block ends normally; nack it with the error if it raises."""
        try:
            yield message
        except BaseException as error:
            try:
                self._nack(message, error=described(error))
            except TimerStoreError as failed:  # it is delivered again when its lease is over
                error.add_note(f"and then the nack failed: {failed!r}")
            raise
        self._ack(message)


# --- heartbeat ---
# Renew a lease again and again while a block runs.
#
# In a block `with store.heartbeat(message, lease=60) as beat`, a thread renews the lease every
# 20 s. `beat.lost` tells that the lease is over: another consumer may have the message.
#
# Thread safety: one thread uses the block; `lost` may be read by any.
# Invariants:
#     1. A renewal begins when a third of the lease has passed. One that fails is tried again until
#        the lease has ended.
#     2. A lease that was settled during the block ends the renewals, and is no error.
#     3. If no renewal succeeded for the length of the lease, as after one that got no answer for so
#        long, the end of the block renews once more: the answer tells whether the lease was lost.


_PARTS = 3  # of a lease, between two renewals


class Beats(NotCopyable):
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


class Heartbeat(NotCopyable):
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
