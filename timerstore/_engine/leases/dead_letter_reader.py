"""Read the dead letters of a group, and which of them were requeued.

A dead letter stays in the topic %DLQ%<group> until retention removes it. The message that `requeue`
puts into the group's retry topic names its dead letter, and that message marks the dead letter as
requeued. It is stored later than the dead letter, so retention never removes it first.

Thread safety: any thread; one thread at a time uses a RequeuedPlaces.
Raises: what pulls raise.
See also: docs/decisions/0017-dead-letters-and-priorities.md.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any

from timerstore._engine.base.owner import Owner
from timerstore._engine.format.dead_letter import (
    LetterReceipt,
    Place,
    read_letter,
    requeued_places,
    write_letter,
)
from timerstore._engine.format.lease import (
    ERROR_PROPERTY,
    LEASE_PROPERTY,
    RENEWED_PROPERTY,
    RETRY_PREFIX,
    TOPIC_PROPERTY,
    dead_letter_topic,
    read_lease,
)
from timerstore._engine.leases.leased_message import DeadLetter
from timerstore._engine.read.groups import check_name
from timerstore.errors import MessageError
from timerstore.messages import Message, MessageBatch

_PAGE = 256
_SCANNED = 10_000  # messages of a retry topic that one pull reads

PlacedLetter = tuple[Place, DeadLetter]

_COPIED = [one.name for one in fields(Message) if one.init]


class RequeuedPlaces(Owner):
    """The dead letters of one group that were requeued."""

    def __init__(self) -> None:
        self.places: set[Place] = set()
        self.scanned: dict[tuple[str, int], int] = {}
        """The offset after the last message read, by retry topic and queue."""


class CountedLetters(Owner):
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


class DeadLetterReader(Owner):
    """Reads the dead letters of one store."""

    def __init__(
        self,
        store_id: int,
        topics: Callable[[], dict[str, int]],
        pull: Callable[..., MessageBatch],
    ) -> None:
        """`topics`, `pull`: as StoreApi.topics and StoreApi.pull_batch."""
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
                if place not in requeued and topic in (None, one.topic):
                    yield one

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
                    if place not in requeued:
                        counted.add(place, one.properties.get(TOPIC_PROPERTY, one.topic))
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
