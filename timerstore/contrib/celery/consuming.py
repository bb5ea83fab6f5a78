"""The waits of one channel, each with a descriptor for the event loop. No thread waits.

There is one `receive` for all of its queues, and a `pull` for each exchange that its broadcast
queues read.

Thread safety: one thread at a time, that of the event loop.
Invariants: a `receive` asks for no more messages than the consumers take.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from timerstore.contrib.celery.broadcasts import BroadcastQueue, ExchangeSource
from timerstore.contrib.celery.broker import Broker
from timerstore.contrib.celery.held_leases import LEASE_S
from timerstore.contrib.celery.wire import GROUP
from timerstore.errors import ConnectionLostError

WAIT_S = 30.0


class Consuming:
    """What a channel waits for."""

    def __init__(self, broker: Broker, max_attempts: int) -> None:
        self._store = broker.store
        self._max_attempts = max_attempts
        self._tasks: tuple[tuple[str, ...], Any] | None = None  # topics, and the wait for them
        self._reads: dict[ExchangeSource, tuple[BroadcastQueue, Any]] = {}

    def want(
        self, topics: Sequence[str], free_count: int, queues: Sequence[BroadcastQueue]
    ) -> None:
        """Begin the waits that are missing, and cancel those for queues that are not consumed."""
        wanted = tuple(topics)
        if self._tasks is not None and self._tasks[0] != wanted:
            self._tasks[1].cancel()
            self._tasks = None
        if self._tasks is None and wanted and free_count:
            self._tasks = (
                wanted,
                self._store.begin_receive(
                    wanted,
                    GROUP,
                    lease=LEASE_S,
                    max_count=free_count,
                    wait=WAIT_S,
                    max_attempts=self._max_attempts,
                ),
            )
        sources = {source: one for one in queues for source in one.sources}
        for source in [one for one in self._reads if one not in sources]:
            self._reads.pop(source)[1].cancel()
        for source, queue in sources.items():
            if source not in self._reads:
                self._reads[source] = queue, source.begin(WAIT_S)

    @property
    def waits(self) -> Iterator[Any]:
        """The waits that have begun; each has a descriptor."""
        if self._tasks is not None:
            yield self._tasks[1]
        for _, wait in self._reads.values():
            yield wait

    def take_broadcasts(self) -> Iterator[tuple[BroadcastQueue, list[Any]]]:
        """Yield the broadcast messages that have come.

        A wait whose connection was lost begins again (`want`): that finds the next server, or
        raises.
        """
        for source, (queue, wait) in list(self._reads.items()):
            del self._reads[source]  # also after an error: it has ended then
            try:
                result = wait.take()
            except ConnectionLostError:
                continue
            if result is None:
                self._reads[source] = queue, wait
            else:
                yield queue, source.taken(result)

    def take_tasks(self) -> list[Any]:
        """Return the tasks that have come; otherwise as `take_broadcasts`."""
        if self._tasks is None:
            return []
        waiting, self._tasks = self._tasks, None  # also after an error: it has ended then
        try:
            found: list[Any] | None = waiting[1].take()
        except ConnectionLostError:
            return []
        if found is None:
            self._tasks = waiting
        return found or []

    def cancel(self) -> None:
        """Cancel all waits. Messages that are on their way go to other consumers."""
        self.want((), 0, ())
