"""Put dead letters back into the retry topic of their group, each once.

    dead letter 17 of %DLQ%billing  ->  %RETRY%billing|orders, with the place (queue 0, offset 17)

The record that delivers the message again names its dead letter. So one append does both: there is
nothing that a crash could separate.

Thread safety: any thread.
Locking: `_lock` during a requeue, but not during its sync.
Invariants:
    1. A dead letter is requeued at most once: its place is in `_requeued` in the critical section
       that appends the message, and after an opening it is read from the retry topics.
Raises: MessageError for invalid arguments; FullError. Dead letters that were requeued before the
error stay so.
See also: docs/decisions/0017-dead-letters-and-priorities.md.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from timerstore._engine.base import argument_types, message_fields
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.base.priorities import PriorityQueueId
from timerstore._engine.format.dead_letter import Place
from timerstore._engine.format.lease import Lease, dead_letter_topic, retry_topic
from timerstore._engine.leases.dead_letter_reader import (
    CountedLetters,
    DeadLetterReader,
    PlacedLetter,
    RequeuedPlaces,
    check_names,
)
from timerstore._engine.leases.leased_message import DeadLetter
from timerstore._engine.leases.message_copies import body_of, columns_of, properties_of
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.write.append import Appender
from timerstore._engine.write.places import Destination, TrackedPlaces
from timerstore.errors import MessageError
from timerstore.receipts import unique_key

_PROBLEMS_MAX = 10  # that an error lists

LetterOrReceipt = str | DeadLetter
"""A dead letter, or its receipt."""


class _Copy(NamedTuple):
    place: Place
    topic: str
    queue_id: PriorityQueueId | None  # of the retry topic
    message_id: str
    body: bytes
    text: bytes


class _RequeuedRows(TrackedPlaces):
    """The places of requeued messages; records their dead letters when they are assigned."""

    def __init__(self, copies: Sequence[_Copy], requeued: set[Place]) -> None:
        super().__init__(len(copies))
        self._copies = copies
        self._requeued = requeued

    def placed(self, begin: int, end: int) -> None:
        """Record the dead letters; the caller has the append lock."""
        self._requeued.update(one.place for one in self._copies[begin:end])


class Requeuer(Owner):
    """Lists and requeues the dead letters of one store."""

    def __init__(
        self,
        store_id: int,
        id_prefix: str,
        log: CommitLog,
        putting: Appender,
        reader: DeadLetterReader,
    ) -> None:
        self._store_id = store_id
        self._id_prefix = id_prefix
        self._log = log
        self._putting = putting
        self._reader = reader
        self._lock = Lock()
        self._requeued: dict[str, RequeuedPlaces] = {}  # by group
        self._counted: dict[str, CountedLetters] = {}  # by group

    def letters(self, group: str, topic: str | None) -> Iterator[DeadLetter]:
        """Yield the dead letters of a group, as TimerStore.dead_letters."""

        def requeued() -> set[Place]:
            with self._lock:
                return self._requeued_of(group)

        return self._reader.unrequeued(group, topic, requeued)

    def requeue(
        self,
        group: str,
        letters: Iterable[LetterOrReceipt] | LetterOrReceipt | None,
        topic: str | None,
    ) -> int:
        """Requeue dead letters, as TimerStore.requeue."""
        group, topic = check_names(group, topic)
        if isinstance(letters, str | DeadLetter):
            letters = [letters]
        places = None
        if letters is not None:

            def read(one: object) -> Place:
                return self._reader.place_of(group, one)

            places = argument_types.each_of("letters", letters, read)
        self._log.check_alive()
        count = 0
        problems: list[str] = []
        try:
            with self._lock:
                requeued = self._requeued_of(group)
                for page in self._pages(group, places):
                    copies: dict[Place, _Copy] = {}
                    for place, one in page:
                        if place in requeued or topic not in (None, one.topic):
                            continue
                        try:
                            copies[place] = self._copy(group, place, one)
                        except MessageError as error:
                            if places is not None:
                                raise
                            problems += error.problems
                    self._put_back(group, list(copies.values()), requeued)
                    count += len(copies)
        finally:
            self._log.sync_through(self._log.end)  # whatever `flush` is, as bury and nack
        if problems:
            left = [f"... and {more} more"] if (more := len(problems) - _PROBLEMS_MAX) > 0 else []
            raise MessageError(
                [*problems[:_PROBLEMS_MAX], *left, f"requeue: {count} others were requeued"]
            )
        return count

    def count(self, group: str, topic: str) -> int:
        """Return the number of dead letters of a group and topic that were not requeued.

        Each dead letter is read once, by the first call after it was stored.
        """
        with self._lock:
            counted = self._counted.get(group)
            if counted is None:
                counted = self._counted[group] = CountedLetters()
            if self._reader.has_letters(group):
                self._reader.count(group, counted, self._requeued_of(group))
            return counted.by_topic[topic]

    def _pages(self, group: str, places: list[Place] | None) -> Iterator[list[PlacedLetter]]:
        if places is None:
            yield from self._reader.pages(group)
            return
        found = (self._reader.at(group, place) for place in places)
        yield from ([one] for one in found if one is not None)

    def _requeued_of(self, group: str) -> set[Place]:
        """Return the requeued dead letters of a group; the caller holds `_lock`.

        They are read from the retry topics once; later ones are recorded as they are appended.
        """
        known = self._requeued.get(group)
        if known is None:
            known = RequeuedPlaces()
            self._reader.scan(group, known)
            self._requeued[group] = known
        return known.places

    def _put_back(self, group: str, copies: Sequence[_Copy], requeued: set[Place]) -> None:
        for (topic, queue_id), run in groupby(copies, lambda one: (one.topic, one.queue_id)):
            rows = list(run)
            due = np.zeros(len(rows), np.int64)
            places = _RequeuedRows(rows, requeued)
            to = Destination(self._putting.place_of(retry_topic(topic, group), queue_id)[0])
            self._putting.append_rows(to, columns_of(rows, due), due, places)
            reach("requeue_appended")

    def _copy(self, group: str, place: Place, letter: DeadLetter) -> _Copy:
        topic = letter.topic
        where = f"requeue: dead letter {place[1]} of queue {place[0]} of group {group!r}"
        if topic == dead_letter_topic(group):
            raise MessageError(f"{where}: wanted the property RETRY_TOPIC, which names its topic")
        lease = Lease(
            self._store_id, 0, False, *place, letter.queue_id, letter.queue_offset,
            letter.due_ms, letter.delivered_ms, letter.born_ms, letter.flag,
        )  # fmt: skip
        message_id = letter.message_id or unique_key(self._id_prefix, self._putting.take_ids(1))
        queue_id = self._putting.targets.priority_queue(topic, letter.queue_id)
        text = properties_of(letter, lease, topic)
        copy = _Copy(place, topic, queue_id, message_id, body_of(letter), text)
        config = self._putting.config
        try:
            message_fields.check_sizes(
                len(copy.body),
                len(copy.text) + len(message_id.encode()),
                message_fields.check_topic(retry_topic(topic, group)),
                properties_bytes_max=config.properties_bytes_max,
                record_bytes_max=config.record_bytes_max,
            )
        except MessageError as error:
            raise MessageError([f"{where}: {what}" for what in error.problems]) from error
        return copy
