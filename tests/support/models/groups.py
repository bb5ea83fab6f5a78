"""A model of the consumers of one group: the owner of each queue and its next offset.

Invariants, checked after every call by assertions:
    1. Each queue belongs to one consumer.
    2. In each queue, the next messages returned are those after the last ones returned, or after
       the committed offset if the queue moved to another consumer.
    3. A commit that returned survives any kind of end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.models.messages import Queue
from timerstore import Consumer, Message, TimerStore

GROUP = "readers"

Seen = dict[Queue, list[tuple[bytes, int]]]
"""Body and delivered_ms of every pulled message, by queue."""


@dataclass(eq=False)
class _Reader:
    consumer: Consumer
    next: dict[int, int] = field(default_factory=dict)  # queue -> the next offset
    moved: set[int] = field(default_factory=set)  # queues whose next offset was certainly read


def _of(topic: str, offsets: dict[Queue, int]) -> dict[Queue, int]:
    return {queue: offset for queue, offset in offsets.items() if queue[0] == topic}


class Readers:
    """The consumers of the group, for all topics."""

    def __init__(self, begin_of: Callable[[Queue], int] = lambda _queue: 0) -> None:
        self.begin_of = begin_of  # returns the first remaining offset of a queue
        self._readers: dict[str, list[_Reader]] = {}
        self.committed: dict[Queue, int] = {}
        self._in_flight: dict[Queue, int] = {}  # commits in flight when the store died

    # --- ends ---

    def lost(self) -> None:
        """Remove all consumers, after the store was closed or died."""
        self._readers.clear()

    def check(self, store: TimerStore) -> None:
        """Check the committed offsets; a commit in flight is stored completely or not at all."""
        for topic in {topic for topic, _ in [*self.committed, *self._in_flight]}:
            found = {(topic, q): n for q, n in store.committed(topic, GROUP).items()}
            before = _of(topic, self.committed)
            after = {**before, **_of(topic, self._in_flight)}
            assert found in (before, after), f"committed {found}, but {before} or {after}"
            self.committed.update(found)
        self._in_flight.clear()

    @property
    def has_doubts(self) -> bool:
        """Return whether a commit failed whose result is unknown."""
        return bool(self._in_flight)

    def known_topics(self) -> set[str]:
        """Return the topics in which the group has committed, or has a consumer."""
        return self.live_topics | {topic for topic, _ in self.committed}

    @property
    def live_topics(self) -> set[str]:
        """Return the topics in which the group has a consumer."""
        return {topic for topic, readers in self._readers.items() if readers}

    # --- calls ---

    def join(self, store: TimerStore, topic: str) -> None:
        """Add a consumer."""
        consumer = store.consumer(topic, GROUP, wait=0)
        self._readers.setdefault(topic, []).append(_Reader(consumer))
        self._divided(topic)

    def leave(self, topic: str, which: int) -> None:
        """Close a consumer."""
        readers = self._readers.get(topic, [])
        if readers:
            readers.pop(which % len(readers)).consumer.close()
            self._divided(topic)

    def read(self, store: TimerStore, topic: str, which: int, count: int, seen: Seen) -> None:
        """Read with one consumer; join one if the topic has no consumer."""
        reader = self._reader(store, topic, which)
        messages = reader.consumer.poll(count)
        self._divided(topic)  # the topic may have grown
        assert len(messages) <= count
        for message in messages:
            self._came(reader, message, seen)
        if len(messages) < count:
            for queue_id, at in reader.next.items():
                begin = self.begin_of((topic, queue_id))
                left = seen.get((topic, queue_id), [])[max(at, begin) :]
                assert not left, f"nothing came, but there are {left}"

    def _came(self, reader: _Reader, message: Message, seen: Seen) -> None:
        queue = message.topic, message.queue_id
        at = reader.next[message.queue_id]
        if at < message.queue_offset <= self.begin_of(queue):
            at = message.queue_offset  # retention removed earlier messages
        assert message.queue_offset == at, f"wanted offset {at} of {queue}: {message}"
        assert seen[queue][at] == (message.body, message.delivered_ms)
        reader.next[message.queue_id] = at + 1
        reader.moved.add(message.queue_id)

    def commit(self, topic: str, which: int, *, only: int | None = None) -> None:
        """Commit the messages that one consumer has read, of all its queues or only of one."""
        readers = self._readers.get(topic, [])
        if not readers:
            return
        reader = readers[which % len(readers)]
        wanted = self._wanted(topic, reader)
        surely = {queue: at for queue, at in wanted.items() if queue[1] in reader.moved}
        if only is None or not surely:
            answer = reader.consumer.commit()
        else:
            queue = sorted(surely)[only % len(surely)]
            wanted = surely = {queue: wanted[queue]}
            answer = reader.consumer.commit({queue[1]: wanted[queue]})
        got = {(topic, q): n for q, n in answer.items()}
        for at, n in got.items():
            if wanted.get(at, 0) < n <= self.begin_of(at):
                wanted[at] = reader.next[at[1]] = n  # it continued after the removed messages
                surely = {**surely, at: n} if at in surely else surely
        assert surely.items() <= got.items() <= wanted.items(), f"{got}, not {surely}"
        self.committed.update(got)

    def commit_in_flight(self, topic: str, which: int, is_dead: list[str]) -> None:
        """Commit while the store dies; if it did (`is_dead`), the commit may be stored or not."""
        before = dict(self.committed)
        self.commit(topic, which)
        if is_dead:
            self.doubt_commit(before)

    def fail_commit(self, topic: str, which: int) -> None:
        """Commit with an error: the commit may be stored or not."""
        readers = self._readers.get(topic, [])
        self._in_flight.update(self._wanted(topic, readers[which % len(readers)]))

    def doubt_commit(self, before: dict[Queue, int]) -> None:
        """Record that the store died in a commit; `before` has the earlier offsets."""
        changed = {q: n for q, n in self.committed.items() if before.get(q) != n}
        self.committed, self._in_flight = before, changed

    def seek(self, store: TimerStore, topic: str, which: int, at: int) -> None:
        """Seek with one consumer to an offset, or to the end of a shorter queue."""
        reader = self._reader(store, topic, which)
        self._divided(topic)
        for queue_id in reader.consumer.queues:
            length = store.pull(topic, queue_id, 2**62).max_offset
            place = min(max(at, self.begin_of((topic, queue_id))), length)
            assert reader.consumer.seek(place, queue_id=queue_id) == {queue_id: place}
            reader.next[queue_id] = place
            reader.moved.add(queue_id)

    def finish(self, store: TimerStore, seen: Seen) -> None:
        """Read and commit the rest, and check that each message is read once."""
        for topic in sorted({topic for topic, _ in seen}):
            for which in range(max(1, len(self._readers.get(topic, [])))):
                self.read(store, topic, which, 10_000, seen)
                self.commit(topic, which)
        for queue, known in seen.items():
            done = self.committed.get(queue, 0)
            assert done == len(known), f"{queue}: committed {done} of {len(known)}"

    # --- the model ---

    def _reader(self, store: TimerStore, topic: str, which: int) -> _Reader:
        if not self._readers.get(topic):
            self.join(store, topic)
        readers = self._readers[topic]
        return readers[which % len(readers)]

    def _divided(self, topic: str) -> None:
        """Update the model after the queues may have been assigned again."""
        readers = self._readers.get(topic, [])
        shares = [reader.consumer.queues for reader in readers]
        self._check_shares(shares)
        for reader, share in zip(readers, shares, strict=True):
            reader.moved &= reader.next.keys() & set(
                share
            )  # a queue that left and returned starts again
            reader.next = {
                q: reader.next[q] if q in reader.next else self._start(topic, q) for q in share
            }

    def _check_shares(self, shares: list[tuple[int, ...]]) -> None:
        everything = sorted(q for share in shares for q in share)
        assert everything == list(range(len(everything))), f"not each queue once: {shares}"
        sizes = [len(share) for share in shares] or [0]
        assert max(sizes) - min(sizes) <= 1, f"not shared fairly: {shares}"

    def _start(self, topic: str, queue_id: int) -> int:
        """Return where the group continues in a queue; without a commit, at its first offset."""
        return max(self.committed.get((topic, queue_id), 0), self.begin_of((topic, queue_id)))

    def _wanted(self, topic: str, reader: _Reader) -> dict[Queue, int]:
        """Return the offsets that a commit of all read messages must return."""
        return {
            (topic, q): at
            for q, at in reader.next.items()
            if at != self.committed.get((topic, q), 0)
        }
