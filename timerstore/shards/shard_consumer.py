"""ShardConsumer: reads a topic for a group, in all shards.

Threads:  any, as one shard's Consumer.
Holds:    what a shard's Consumer holds, by shard: messages of one queue of one shard are handed out
          in order; no shard keeps the others waiting; who waits stands in each shard's hold table
          and is woken by the message.
Fails:    as Consumer; errors name the shard.
"""

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Self

from timerstore._engine.base.closing import Closing
from timerstore._engine.base.service import WakeEvent
from timerstore._engine.read.consumer import Consumer
from timerstore._engine.read.groups import AssignedQueue
from timerstore._engine.read.validation import wait_problems, whole_or
from timerstore._engine.read.waiting_poll import WaitingPoll
from timerstore.clock import Clock
from timerstore.errors import ClosedError, MessageError, TimerStoreError, quoted
from timerstore.messages import Message
from timerstore.shards.receipt import ShardMessage, in_shard

ShardQueue = tuple[int, int]
"""A shard and one of its queues."""


class ShardConsumer(Closing):
    """One reader of a topic for a group; `ShardedStore.consumer` makes it. Iterates as Consumer."""

    def __init__(self, clock: Clock, consumers: Sequence[Consumer], wait: float | None) -> None:
        self._clock = clock
        self._consumers = tuple(consumers)
        self._wait_s = wait
        self._turn = 0
        self.topic = consumers[0].topic
        self.group = consumers[0].group

    # --- reading ---

    def poll(self, max_count: int = 32, wait: float = 0.0) -> list[ShardMessage]:
        """Give the next messages, at most `max_count`, of any shard; waits up to `wait` seconds for
        the first. None came: an empty list.
        """
        problems = wait_problems(wait)
        if whole_or(max_count, 0) < 1:
            problems.append(f"max_count: wanted a whole number from 1 on, got {quoted(max_count)}")
        if problems:
            raise MessageError(problems)
        return self._poll(int(max_count), wait)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ShardMessage:
        try:
            found = self._poll(1, self._wait_s)
        except ClosedError:
            found = []
        if not found:
            raise StopIteration
        return found[0]

    def _poll(self, max_count: int, wait_s: float | None) -> list[ShardMessage]:
        found = self._look(max_count)
        if found or wait_s == 0:
            return found
        polls = [one.begin_poll(max_count, wait_s) for one in self._consumers]
        try:
            while not found and self._sleep(polls):
                found = self._look(max_count)
            return found
        finally:
            try:
                _end_all(polls)
            except BaseException:  # as Ctrl-C amid it: others wait behind
                _end_all(polls)
                raise

    def _sleep(self, polls: Sequence[WaitingPoll]) -> bool:
        """Wait for a reason to look again; False where the time is over, or a store is closed."""
        bell = WakeEvent()
        entered = []
        try:
            for poll in polls:
                if not poll.enter(bell.set):  # there is something to look at, or it is over
                    return poll.left_s > 0 and not poll.is_closed
                entered.append(poll)
            is_woken = bell.wait(min(polls[0].left_s, threading.TIMEOUT_MAX))
        finally:
            for poll in entered:
                poll.leave()
        # By hand: real seconds have passed, whatever the clock is.
        return (is_woken or not self._clock.by_hand) and not any(one.is_closed for one in polls)

    def _look(self, max_count: int) -> list[ShardMessage]:
        """Take what is there, from each shard in turn."""
        while ready := self._fetch(max_count):
            found: list[ShardMessage] = []
            for shard, queues in ready:
                messages = self._consumers[shard].hand_out(queues, max_count - len(found))
                found += [in_shard(shard, one) for one in messages]
            if found:
                return found  # else another thread was quicker
        return []

    def _fetch(self, max_count: int) -> list[tuple[int, list[AssignedQueue]]]:
        """Have so many messages at hand, where there are so many; the shards that have them.

        Nothing is handed out yet: an error of one shard, or a signal, must not lose what another
        gave, which the next commit would commit.
        """
        count, missing = len(self._consumers), max_count
        first = self._turn % count
        ready: list[tuple[int, list[AssignedQueue]]] = []
        for shard in (*range(first, count), *range(first)):
            try:
                poll = self._consumers[shard].begin_poll(missing)  # ClosedError where it is
                queues = poll.look()
            except TimerStoreError:
                # The next call begins with it; the one after, with the others.
                self._turn = shard if ready else shard + 1
                if not ready:
                    raise
                return ready
            if queues:
                ready.append((shard, queues))
                missing -= sum(len(held.buffered) for held in queues)
            if missing <= 0:
                break
        if ready:
            self._turn = ready[-1][0] + 1
        return ready

    # --- committing ---

    def commit(
        self, through: ShardMessage | Mapping[ShardQueue, int] | None = None
    ) -> dict[ShardQueue, int]:
        """Note that the group is done with what was handed out here; durable on return.

        `through`: only as far as this message in its queue, or {(shard, queue): offset of the next
        message}. A crash in between leaves some shards committed; the others come again.
        """
        if isinstance(through, ShardMessage):
            done = self._consumers[through.shard].commit(through)
            return {(through.shard, queue_id): offset for queue_id, offset in done.items()}
        if isinstance(through, Message):
            raise MessageError("commit: wanted a message of this consumer, which names its shard")
        committed = {}
        for shard, offsets in self._by_shard(through).items():
            for queue_id, offset in self._consumers[shard].commit(offsets).items():
                committed[shard, queue_id] = offset
        return committed

    def _by_shard(
        self, through: Mapping[ShardQueue, int] | None
    ) -> dict[int, dict[int, int] | None]:
        if through is None:
            return dict.fromkeys(range(len(self._consumers)))
        if not isinstance(through, Mapping):
            raise MessageError(
                f"commit: wanted a ShardMessage or a mapping, got {type(through).__name__}"
            )
        by_shard: dict[int, dict[int, int] | None] = {}
        problems = []
        given: Mapping[Any, int] = through
        for place, offset in given.items():
            shard = place[0] if isinstance(place, tuple) and len(place) == 2 else None
            if whole_or(shard, -1) not in range(len(self._consumers)):
                problems.append(
                    f"commit: wanted (shard, queue) of {len(self._consumers)} shards, got "
                    f"{quoted(place)}"
                )
            else:
                queues = by_shard.setdefault(int(place[0]), {})
                assert queues is not None, "made here"
                queues[place[1]] = offset
        if problems:
            raise MessageError(problems)
        return by_shard

    # --- seeking ---

    def seek(
        self, *, time: datetime | None = None, time_ms: int | None = None
    ) -> dict[ShardQueue, int]:
        """Go on from the first message stored at a time or later, in every queue; `commit` makes it
        last. To an offset: the Consumer of one shard (`ShardedStore.stores`).
        """
        return {
            (shard, queue_id): offset
            for shard, one in enumerate(self._consumers)
            for queue_id, offset in one.seek(time=time, time_ms=time_ms).items()
        }

    # --- state ---

    @property
    def queues(self) -> tuple[ShardQueue, ...]:
        """The queues that it has at present."""
        return tuple(
            (shard, queue_id)
            for shard, one in enumerate(self._consumers)
            for queue_id in one.queues
        )

    def close(self) -> None:
        """Leave the group in every shard. Commits nothing."""
        for consumer in self._consumers:
            consumer.close()

    def __repr__(self) -> str:
        return (
            f"<ShardConsumer topic={self.topic!r} group={self.group!r} "
            f"shards={len(self._consumers)}>"
        )


def _end_all(polls: Sequence[WaitingPoll]) -> None:
    for poll in polls:
        poll.end()
