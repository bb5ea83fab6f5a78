"""Read the dead letters of a group, and which of them were requeued.

A dead letter stays in the topic %DLQ%<group> until retention removes it. The message that `requeue`
puts into the group's retry topic names its dead letter, and that message marks the dead letter as
requeued. It is stored later than the dead letter, so retention never removes it first.

Thread safety: any thread; one thread at a time uses a RequeuedPlaces.
Raises: what pulls raise.
See also: docs/decisions/0017-dead-letters-and-priorities.md.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from timerstore._engine.base import argument_types, message_fields
from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.lease import (
    ERROR_PROPERTY,
    LEASE_PROPERTY,
    RENEWED_PROPERTY,
    RETRY_PREFIX,
    TOPIC_PROPERTY,
    Lease,
    LetterReceipt,
    Place,
    dead_letter_topic,
    read_lease,
    read_letter,
    requeued_places,
    retry_topic,
    write_letter,
)
from timerstore._engine.leases.leased_message import DeadLetter, body_of, properties_of
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.read.groups import check_name
from timerstore._engine.write.append import Appender, OwnMessage
from timerstore.errors import MessageError
from timerstore.types.messages import Message, MessageBatch

# --- dead letter reader ---


_PAGE = 256
_SCANNED = 10_000  # messages of a retry topic that one pull reads

PlacedLetter = tuple[Place, DeadLetter]

_COPIED = [one.name for one in fields(Message) if one.init]


class RequeuedPlaces(NotCopyable):
    """The dead letters of one group that were requeued."""

    def __init__(self) -> None:
        self.places: set[Place] = set()
        self.scanned: dict[tuple[str, int], int] = {}
        """The offset after the last message read, by retry topic and queue."""


class CountedLetters(NotCopyable):
    """The dead letters of one group that were not requeued, by place and by topic."""

    def __init__(self) -> None:
        self.by_topic: Counter[str] = Counter()
        self.topics: dict[Place, str] = {}
        self.scanned: dict[int, int] = {}
        """The offset after the last dead letter read, by queue."""
        self.begins: dict[int, int] = {}
        """The offset of the first dead letter that retention has kept, by queue."""
        self.requeued_count = 0
        """The number of requeued dead letters that were subtracted."""

    def add(self, place: Place, topic: str) -> None:
        """Add a dead letter, if it is not there: a count may have been interrupted."""
        if place not in self.topics:
            self.topics[place] = topic
            self.by_topic[topic] += 1

    def discard(self, places: Iterable[Place]) -> None:
        """Subtract dead letters, if they are there."""
        for place in places:
            if (topic := self.topics.pop(place, None)) is not None:
                self.by_topic[topic] -= 1


class DeadLetterReader(NotCopyable):
    """Reads the dead letters of one store."""

    def __init__(
        self,
        store_id: int,
        topics: Callable[[], dict[str, int]],
        pull: Callable[..., MessageBatch],
        deleted_below: Mapping[str, int],
    ) -> None:
        """`topics`, `pull`: as StoreApi.topics and StoreApi.pull_batch. `deleted_below`: as in
        Routes.
        """
        self._deleted_below = deleted_below
        self._store_id = store_id
        self._topics = topics
        self._pull = pull

    def unrequeued(
        self, group: str, topic: str | None, scan: Callable[[], set[Place]]
    ) -> Iterator[DeadLetter]:
        """Yield the dead letters of a group, and of a topic, that were not requeued.

        scan: returns the requeued ones; called after each page was read, so a dead letter is never
            left out before its message is in the retry topic.
        """
        for page in self.pages(group):
            requeued = scan()
            for place, one in page:
                if place in requeued or self.is_deleted(one.topic, one.log_offset):
                    continue
                if topic in (None, one.topic):
                    yield one

    def is_deleted(self, topic: str, log_offset: int) -> bool:
        """Return whether a dead letter was deleted with its topic."""
        return log_offset < self._deleted_below.get(topic, 0)

    def scan(self, group: str, known: RequeuedPlaces) -> None:
        """Add the dead letters whose messages were requeued since the last scan."""
        prefix = f"{RETRY_PREFIX}{group}|"
        for topic, count in self._topics().items():
            if topic.startswith(prefix):
                for queue_id in range(count):
                    begin = known.scanned.get((topic, queue_id), 0)
                    for batch in self._batches(topic, queue_id, begin, _SCANNED):
                        begins = set(batch.properties_offsets.tolist())
                        found = requeued_places(batch.properties, begins, self._store_id)
                        known.places.update(found)
                        known.scanned[topic, queue_id] = batch.next_offset

    def has_letters(self, group: str) -> bool:
        """Return whether the group ever had a dead letter."""
        return dead_letter_topic(group) in self._topics()

    def count(self, group: str, counted: CountedLetters, requeued: set[Place]) -> None:
        """Add the dead letters since the last call; subtract requeued and removed ones."""
        dead = dead_letter_topic(group)
        for queue_id in range(self._topics().get(dead, 0)):
            begin = counted.scanned.get(queue_id, 0)
            for batch in self._batches(dead, queue_id, begin, _PAGE):
                for one in batch:
                    place = queue_id, one.queue_offset
                    topic = one.properties.get(TOPIC_PROPERTY, one.topic)
                    if place not in requeued and not self.is_deleted(topic, one.log_offset):
                        counted.add(place, topic)
                counted.scanned[queue_id] = batch.next_offset
            least = self._pull(dead, queue_id, begin, max_count=1).min_offset
            if least > counted.begins.get(queue_id, 0):
                counted.begins[queue_id] = least
                counted.discard(
                    [one for one in counted.topics if one[0] == queue_id and one[1] < least]
                )
        if len(requeued) != counted.requeued_count:
            counted.discard([one for one in counted.topics if one in requeued])
            counted.requeued_count = len(requeued)

    def pages(self, group: str) -> Iterator[list[PlacedLetter]]:
        """Yield the dead letters that there are now, with requeued ones, oldest first by queue."""
        topic = dead_letter_topic(group)
        for queue_id in range(self._topics().get(topic, 0)):
            for batch in self._batches(topic, queue_id, 0, _PAGE):
                yield [self._letter(group, one) for one in batch]

    def at(self, group: str, place: Place) -> PlacedLetter | None:
        """Return the dead letter at a place, or None."""
        topic, (queue_id, offset) = dead_letter_topic(group), place
        if queue_id >= self._topics().get(topic, 0):
            return None
        for one in self._pull(topic, queue_id, offset, max_count=1):
            if one.queue_offset == offset:
                return self._letter(group, one)
        return None

    def place_of(self, group: str, letter: object) -> Place:
        """Return the place of a dead letter of the group, given as such or as its receipt."""
        receipt = read_letter(letter.receipt if isinstance(letter, DeadLetter) else letter)
        if receipt.store_id != self._store_id:
            raise MessageError(
                f"dead letter: wanted one of store {self._store_id:08x}, got one of store "
                f"{receipt.store_id:08x}"
            )
        if receipt.group != group:
            raise MessageError(
                f"dead letter: wanted one of group {group!r}, got one of group {receipt.group!r}"
            )
        return receipt.queue_id, receipt.queue_offset

    def _batches(
        self, topic: str, queue_id: int, begin: int, max_count: int
    ) -> Iterator[MessageBatch]:
        """Yield the messages from an offset up to the end that the queue has at the first step."""
        offset, end = begin, None
        while end is None or offset < end:
            batch = self._pull(topic, queue_id, offset, max_count=max_count)
            end = batch.max_offset if end is None else end
            if batch.next_offset <= offset:
                return
            if len(batch):
                yield batch
            offset = batch.next_offset

    def _letter(self, group: str, message: Message) -> PlacedLetter:
        values: dict[str, Any] = {name: getattr(message, name) for name in _COPIED}
        properties = dict(message.properties)
        lease = read_lease(properties.pop(LEASE_PROPERTY, ""))
        values["topic"] = properties.pop(TOPIC_PROPERTY, message.topic)
        values["properties"] = properties
        error = properties.pop(ERROR_PROPERTY, None)
        properties.pop(RENEWED_PROPERTY, None)
        attempt = 0
        if lease is not None and lease.store_id == self._store_id:
            attempt = lease.attempt
            values |= {
                "queue_id": lease.queue_id,
                "queue_offset": lease.queue_offset,
                "due_ms": lease.due_ms,
                "delivered_ms": lease.delivered_ms,
                "born_ms": lease.born_ms,
                "flag": lease.flag,
            }
        place = message.queue_id, message.queue_offset
        receipt = write_letter(LetterReceipt(self._store_id, *place, group))
        return place, DeadLetter(
            **values, group=group, receipt=receipt, attempt=attempt, error=error
        )


def check_names(group: object, topic: object) -> tuple[str, str | None]:
    """Return a group and a topic or None; raise MessageError if one of them is not a name."""
    checked = check_name("group", group)
    return checked, None if topic is None else check_name("topic", topic)


# --- requeuer ---
# Put dead letters back into the retry topic of their group, each once.
#
#     dead letter 17 of %DLQ%billing  ->  %RETRY%billing|orders, with the place (queue 0, offset 17)
#
# The record that delivers the message again names its dead letter. So one append does both: there
# is nothing that a crash could separate.
#
# Thread safety: any thread.
# Locking: `_lock` during a requeue, but not during its sync.
# Invariants:
#     1. A dead letter is requeued at most once: its place is in `_requeued` in the critical section
#        that appends the message, and after an opening it is read from the retry topics.
# Raises: MessageError for invalid arguments; FullError. Dead letters that were requeued before the
# error stay so.
# See also: docs/decisions/0017-dead-letters-and-priorities.md.


_PROBLEMS_MAX = 10  # that an error lists

LetterOrReceipt = str | DeadLetter
"""A dead letter, or its receipt."""


Copy = tuple[str, int, OwnMessage]
"""A dead letter as a message again: the retry topic, its queue, and the message."""


class Requeuer(NotCopyable):
    """Lists and requeues the dead letters of one store."""

    def __init__(
        self,
        store_id: int,
        log: CommitLog,
        appender: Appender,
        reader: DeadLetterReader,
    ) -> None:
        self._store_id = store_id
        self._log = log
        self._appender = appender
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
                    copies: dict[Place, Copy] = {}
                    for place, one in page:
                        if place in requeued or topic not in (None, one.topic):
                            continue
                        if self._reader.is_deleted(one.topic, one.log_offset):
                            continue
                        try:
                            copies[place] = self._copy(group, place, one)
                        except MessageError as error:
                            if places is not None:
                                raise
                            problems += error.problems
                    self._put_back(copies, requeued)
                    count += len(copies)
        finally:
            self._log.sync_through(self._log.end)  # whatever `flush` is, as bury and nack
        if problems:
            left = [f"... and {more} more"] if (more := len(problems) - _PROBLEMS_MAX) > 0 else []
            raise MessageError(
                [*problems[:_PROBLEMS_MAX], *left, f"requeue: {count} others were requeued"]
            )
        return count

    def forget(self, topic: str) -> None:
        """Count no dead letters of a deleted topic any more."""
        with self._lock:
            for counted in self._counted.values():
                counted.discard([place for place, one in counted.topics.items() if one == topic])

    def count(self, group: str, topic: str) -> int:
        """Return the number of dead letters of a group and topic that were not requeued.

        Each dead letter is read once, by the first call after it was stored.
        """
        with self._lock:
            counted = self._counted.setdefault(group, CountedLetters())
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

    def _put_back(self, copies: Mapping[Place, Copy], requeued: set[Place]) -> None:
        for place, (topic, queue_id, own) in copies.items():
            _, route = self._appender.place_of(topic, queue_id)
            self._appender.append_own(route, own, 0, lambda *_, place=place: requeued.add(place))
            reach("requeue_appended")

    def _copy(self, group: str, place: Place, letter: DeadLetter) -> Copy:
        topic = letter.topic
        where = f"requeue: dead letter {place[1]} of queue {place[0]} of group {group!r}"
        if topic == dead_letter_topic(group):
            raise MessageError(f"{where}: wanted the property RETRY_TOPIC, which names its topic")
        lease = Lease(
            self._store_id, 0, False, *place, letter.queue_id, letter.queue_offset,
            letter.due_ms, letter.delivered_ms, letter.born_ms, letter.flag,
        )  # fmt: skip
        message_id = letter.message_id or self._appender.make_id()
        queue_id = self._appender.targets.retry_queue(
            topic, letter.queue_id, is_grouped=bool(letter.message_group)
        )
        text = properties_of(letter, lease, topic)
        own = OwnMessage(message_id.encode(), body_of(letter), text)
        config = self._appender.config
        try:
            again = retry_topic(topic, group)
            message_fields.check_sizes(
                len(own.body),
                len(text) + len(own.message_id),
                message_fields.check_topic(again),
                properties_bytes_max=config.properties_bytes_max,
                record_bytes_max=config.record_bytes_max,
            )
        except MessageError as error:
            raise MessageError([f"{where}: {what}" for what in error.problems]) from error
        return again, queue_id, own
