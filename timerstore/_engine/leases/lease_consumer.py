"""Loop over leased messages.

    consumer = store.lease_consumer("orders", "billing", lease=60)
    for message in consumer:
        with consumer.handling(message): ...

Thread safety: any thread; each message goes to one thread.
Raises: MessageError on options that a loop does not take; what receive, ack, nack and extend raise.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from traceback import format_exception_only
from typing import Any, Generic, TypeVar

from timerstore._engine.base.owner import Owner
from timerstore._engine.leases.leased_message import AckResult, LeasedMessage
from timerstore._engine.leases.receive_request import check_loop
from timerstore.errors import ClosedError, TimerStoreError

Leased = TypeVar("Leased", bound=LeasedMessage)

LONGEST_WAIT_S = 3600.0
"""The longest single wait of a loop without a limit."""


def described(error: BaseException) -> str:
    """Return the type and the text of an exception, for `nack(error=)`."""
    return "".join(format_exception_only(error)).strip()


class LeaseConsumer(Owner, Generic[Leased]):
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
        wait = LONGEST_WAIT_S if self._wait is None else self._wait
        while True:
            try:
                found = self._receive(
                    self.topic, self.group, max_count=1, wait=wait, **self._options
                )
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
