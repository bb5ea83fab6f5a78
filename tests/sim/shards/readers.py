"""Test a group that reads all shards against the model of a group that reads one store.

One number stands for a shard and a queue in it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.support.models.groups import Readers
from tests.support.models.messages import Queue
from timerstore import Message
from timerstore.shards import ShardConsumer, ShardedStore

_WIDTH = 64  # more queues than a topic has here


def joined(shard: int, queue_id: int) -> int:
    """Return one number for a queue of a shard."""
    return shard * _WIDTH + queue_id


def parted(number: int) -> tuple[int, int]:
    """Return the shard, and its queue."""
    return divmod(number, _WIDTH)


class ReadWhole:
    """The ShardedStore, with the calls that a group needs."""

    def __init__(self, whole: ShardedStore) -> None:
        self._whole = whole

    def consumer(self, topic: str, group: str, *, wait: float) -> "_Consumer":
        return _Consumer(self._whole.consumer(topic, group, wait=wait))

    def committed(self, topic: str, group: str) -> dict[int, int]:
        return _joined(self._whole.committed(topic, group))

    def end_of(self, topic: str, number: int) -> int:
        """Return the first offset of a queue that holds no message."""
        shard, queue_id = parted(number)
        return self._whole.pull(topic, queue_id, 2**62, shard=shard).max_offset


class _Consumer:
    def __init__(self, consumer: ShardConsumer) -> None:
        self._consumer = consumer

    @property
    def queues(self) -> tuple[int, ...]:
        return tuple(joined(*one) for one in self._consumer.queues)

    def poll(self, count: int) -> list[Message]:
        found = self._consumer.poll(count)
        return [replace(one, queue_id=joined(one.shard, one.queue_id)) for one in found]

    def commit(self) -> dict[int, int]:
        return _joined(self._consumer.commit())

    def seek(self, time_ms: int) -> dict[int, int]:
        return _joined(self._consumer.seek(time_ms=time_ms))

    def close(self) -> None:
        self._consumer.close()


def _joined(offsets: dict[tuple[int, int], int]) -> dict[int, int]:
    return {joined(*place): offset for place, offset in offsets.items()}


class ShardReaders(Readers):
    """All consumers of the group, over all topics and shards."""

    def __init__(self, begin_of: Callable[[Queue], int], shard_count: int) -> None:
        super().__init__(begin_of)
        self._shard_count = shard_count

    def _check_shares(self, shares: list[tuple[int, ...]]) -> None:
        """Check that the queues of each shard are divided among the consumers."""
        for shard in range(self._shard_count):
            places = [[parted(one) for one in share] for share in shares]
            super()._check_shares([tuple(q for k, q in share if k == shard) for share in places])

    def seek(self, store: Any, topic: str, which: int, at: int) -> None:
        """Seek by time, to the begin or past the end of all queues.

        Time is the only position that all shards have in common.
        """
        reader: Any = self._reader(store, topic, which)
        self._divided(topic)
        is_end = at % 2 > 0
        found = reader.consumer.seek(2**53 if is_end else 0)
        assert sorted(found) == sorted(reader.consumer.queues)
        for number, place in found.items():
            begin = self.begin_of((topic, number))
            wanted = max(begin, store.end_of(topic, number)) if is_end else begin
            assert place == wanted, f"queue {number}: {place}, not {wanted}"
            reader.next[number] = place
            reader.moved.add(number)


class PartOfReaders:
    """The part of the group that concerns one shard."""

    def __init__(self, readers: ShardReaders, shard: int) -> None:
        self._readers = readers
        self._shard = shard

    @property
    def committed(self) -> dict[Queue, int]:
        found = {}
        for (topic, number), offset in self._readers.committed.items():
            shard, queue_id = parted(number)
            if shard == self._shard:
                found[topic, queue_id] = offset
        return found

    @property
    def has_doubts(self) -> bool:
        return self._readers.has_doubts

    def known_topics(self) -> set[str]:
        return self._readers.live_topics | {topic for topic, _ in self.committed}

    def lost(self) -> None:
        """Report the loss to the whole group."""

    def check(self, _store: Any) -> None:
        """Do nothing: the whole group is checked."""
