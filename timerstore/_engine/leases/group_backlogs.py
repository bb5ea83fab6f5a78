"""Count what each group has to do: messages to receive, leased, in back-off, and dead letters.

    ready        the topic's and the retry topic's queues, from the group's offset to their ends
    leased       pending timers of the retry topic, without those in back-off, and last attempts
    in back-off  lease_timers.py
    dead         dead_letters.py

Nothing is read again for each call, except the record of the first message of each queue with
messages to receive. The first call after an opening reads the pending messages, if there are
leases from before, and the dead letters of the group.

Thread safety: any thread.
Locking: `_lock` for the first reading; the append lock for counts.
Invariants: numbers are exact while no call changes them. A message that moves during a call may be
counted in both places.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import queue_unit
from timerstore._engine.format.lease import (
    BACKOFF_PROPERTY,
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    TOPIC_PROPERTY,
    group_of,
    retry_topic,
)
from timerstore._engine.leases.lease_timers import Key, LeaseKinds
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.record_lookup import real_routes, record_fields
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.consumer_offsets import LeaseProgress, Offsets
from timerstore._engine.read.pull import Puller
from timerstore._engine.timer.level_delivery import pending_by_topic
from timerstore._engine.timer.log_retention import Retention
from timerstore._engine.timer.pending import Backlog, PendingReader
from timerstore.errors import CorruptError, GoneError, MessageError
from timerstore.types.messages import parse_properties
from timerstore.types.reports import GroupBacklog

_logger = logging.getLogger("timerstore.leases")

LetterCount = Callable[[str, str], int]
"""Returns the number of dead letters of a group and a topic."""


class _Queued(NamedTuple):
    ready: int
    first_ms: int | None  # when the first of them was stored; None without any


class GroupBacklogs(NotCopyable):
    """The backlogs of the groups of one store."""

    def __init__(
        self,
        core: Core,
        offsets: Offsets,
        progress: LeaseProgress,
        puller: Puller,
        timers: Backlog,
        pending: PendingReader,
        retention: Retention,
        kinds: LeaseKinds,
    ) -> None:
        self._clock = core.clock
        self._log = core.log
        self._routes = core.routes
        self._offsets = offsets
        self._progress = progress
        self._puller = puller
        self._timers = timers
        self._pending = pending
        self._retention = retention
        self._kinds = kinds
        self._lock = Lock()
        self._has_read = False

    def known(self) -> list[Key]:
        """Return each topic and group that has committed or leased, in order of their names."""
        found = {*self._offsets.known(), *self._progress.known(), *self._kinds.in_backoff.known()}
        return sorted(one for one in found if not one[0].startswith(RETRY_PREFIX))

    def all_of(self, letters: LetterCount) -> dict[Key, GroupBacklog]:
        """Return the backlog of each known topic and group.

        Groups that cannot be counted, as a record is damaged, are logged and left out: the other
        statistics of a damaged store are needed most. `one` raises the error.
        """
        found: dict[Key, GroupBacklog] = {}
        try:
            self._read_once()
        except CorruptError as error:
            _logger.warning("groups not counted error=%r", str(error))
            return found
        pending = self._pending_by_topic()
        for key in self.known():
            try:
                found[key] = self._one(*key, pending, letters)
            except CorruptError as error:
                _logger.warning("topic=%r group=%r not counted error=%r", *key, str(error))
        return found

    def one(self, topic: str, group: str, letters: LetterCount) -> GroupBacklog:
        """Return the backlog of a group in a topic."""
        self._read_once()
        return self._one(topic, group, self._pending_by_topic(), letters)

    def forget(self, topic: str) -> None:
        """Forget the groups of a deleted topic."""
        self._kinds.in_backoff.forget(topic)
        self._kinds.last_attempts.forget(topic)

    def _pending_by_topic(self) -> dict[str, int]:
        with self._log.lock:
            return pending_by_topic(self._routes)[0]

    def _one(
        self, topic: str, group: str, pending: dict[str, int], letters: LetterCount
    ) -> GroupBacklog:
        try:
            again = retry_topic(topic, group)
        except MessageError:  # names that no lease can have: the group reads with consumers
            again = ""
        queued = [self._queued(topic, group)]
        if again:
            queued.append(self._queued(again, group))
        in_backoff = self._kinds.in_backoff.count(topic, group)
        leased = pending.get(again, 0) - in_backoff + self._kinds.last_attempts.count(topic, group)
        firsts = [one.first_ms for one in queued if one.first_ms is not None]
        return GroupBacklog(
            ready=sum(one.ready for one in queued),
            leased=max(0, leased),
            in_backoff=in_backoff,
            dead_letters=letters(group, topic) if again else 0,
            oldest_ms=max(0, self._clock.now_ms - min(firsts)) if firsts else 0,
        )

    # --- messages to receive ---

    def _queued(self, topic: str, group: str) -> _Queued:
        self._puller.catch_up()
        positions = {**self._offsets.committed(topic, group)}
        for queue_id, offset in self._progress.recorded(topic, group).items():
            positions[queue_id] = max(offset, positions.get(queue_id, 0))
        count, firsts = 0, []
        for queue_id in range(self._routes.full_queue_count(topic)):
            route = self._routes.get(topic, queue_id)
            if route is None:
                continue
            begin = max(positions.get(queue_id, 0), route.queue.min_offset)
            end = route.queue.visible(self._puller.visible_end)
            if begin < end:
                count += end - begin
                firsts.append(self._stored_ms(route, begin))
        return _Queued(count, min(firsts, default=None))

    def _stored_ms(self, route: Route, offset: int) -> int:
        """Return when a message of a queue was stored, or now if retention has just removed it."""
        units = queue_unit.read(route.queue.read(offset, 1))
        if not len(units):
            return self._clock.now_ms
        try:
            return self._timers.store_ms(int(units["log_offset"][0]))
        except GoneError:
            return self._clock.now_ms

    # --- leases from before the opening ---

    def _read_once(self) -> None:
        """Find the pending timers of leases that this opening has not made itself."""
        with self._lock:
            if self._has_read:
                return
            if any(group_of(topic) for topic in self._pending_by_topic()):
                with self._retention.still():
                    self._read()
            self._has_read = True

    def _read(self) -> None:
        entries = self._pending.entries()
        found = real_routes(
            self._log, self._routes, entries["log_offset"], entries["size"], is_level=False
        )
        topics = [one.topic for one in self._routes.by_index]
        is_of_lease = [group_of(topic) is not None for topic in topics]
        for timer_id, log_offset, index in zip(
            entries["id"].tolist(), entries["log_offset"].tolist(), found.tolist(), strict=True
        ):
            if index >= 0 and is_of_lease[index]:
                self._add(topics[index], timer_id, log_offset)

    def _add(self, lease_topic: str, timer_id: int, log_offset: int) -> None:
        segments = self._log.segments
        with segments.view(self._log.written_through(log_offset + 1)) as view:
            _, _, text = record_fields(segments, view, log_offset)
        properties, group = parse_properties(text), group_of(lease_topic)
        topic = properties.get(TOPIC_PROPERTY)
        if topic is None or group is None:
            return
        if lease_topic.startswith(DEAD_LETTER_PREFIX):
            self._kinds.last_attempts.add(topic, group, timer_id)
        elif BACKOFF_PROPERTY in properties:
            self._kinds.in_backoff.add(topic, group, timer_id)
