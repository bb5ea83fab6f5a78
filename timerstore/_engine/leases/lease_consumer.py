"""LeaseConsumer: a loop over leased messages.

    for message in store.lease_consumer("orders", "billing", lease=60):
        with consumer.handling(message): ...


Threads:  any; each message is one thread's.
Fails:    MessageError on what a loop does not take; what receive, ack, nack and extend raise.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from timerstore._engine.base.owner import Owner
from timerstore._engine.leases.lease_request import check_loop
from timerstore._engine.leases.leased_message import AckResult, LeasedMessage
from timerstore.errors import ClosedError, TimerStoreError

Leased = TypeVar("Leased", bound=LeasedMessage)

LOOK_S = 3600.0
"""One wait of a loop that waits for ever."""


class LeaseConsumer(Owner, Generic[Leased]):
    """Iterates over a topic for a group, one lease at a time; `TimerStore.lease_consumer`.

        for message in consumer:
            with consumer.handling(message):
                handle(message)         # returns: acked; raises: given back, and raised

    Iterating ends when the store is closed, or, where it was made with `wait`, when so many seconds
    passed without a message.
    """

    def __init__(
        self,
        receive: Callable[..., list[Leased]],
        ack: Callable[[Leased], AckResult],
        nack: Callable[..., AckResult],
        topic: str,
        group: str,
        wait: float | None,
        asked: dict[str, Any],
    ) -> None:
        check_loop(asked)
        self.topic = topic
        self.group = group
        self._receive = receive
        self._ack = ack
        self._nack = nack
        self._wait = wait
        self._asked = asked

    def __iter__(self) -> Iterator[Leased]:
        return self

    def __next__(self) -> Leased:
        wait = LOOK_S if self._wait is None else self._wait
        while True:
            try:
                found = self._receive(self.topic, self.group, max_count=1, wait=wait, **self._asked)
                if not found and self._wait is None:
                    continue
            except ClosedError:
                found = []
            if not found:
                raise StopIteration
            return found[0]

    @contextmanager
    def handling(
        self,
        message: Leased,
    ) -> Iterator[Leased]:
        """Ack the message when the block ends, give it back when it raises."""
        try:
            yield message
        except BaseException as error:
            try:
                self._nack(message)
            except TimerStoreError as failed:  # it comes again when its lease is over
                error.add_note(f"and then, giving it back: {failed!r}")
            raise
        self._ack(message)
