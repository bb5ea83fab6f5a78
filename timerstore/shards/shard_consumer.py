"""ShardConsumer: read a topic for a group, in all shards.

Thread safety: any thread, as Consumer.
Invariants:
    1. The messages of one queue of one shard are returned in order.
    2. No shard delays the messages of another. A waiting consumer is registered in the long-poll
       table of each shard, and the message wakes it.
Raises: as Consumer; errors name the shard.
"""

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Self

from timerstore._engine.base.owner import Closing
from timerstore._engine.base.service import WakeEvent
from timerstore._engine.read.consumer import Consumer
from timerstore._engine.read.groups import AssignedQueue
from timerstore._engine.read.pull_request import wait_problems, whole_or
from timerstore._engine.read.waiting import WaitingPoll
from timerstore.errors import ClosedError, MessageError, TimerStoreError, kind_of, quoted
from timerstore.shards.receipt import ShardMessage, in_shard
from timerstore.types.clock import Clock
from timerstore.types.messages import Message

ShardQueue = tuple[int, int]
"""A shard and one of its queues."""


class ShardConsumer(Closing):
    """A group's reader of a topic; `ShardedStore.consumer` returns it. Iterable, like Consumer."""

    def __init__(self, clock: Clock, consumers: Sequence[Consumer], wait: float | None) -> None:
        self._clock = clock
        self._consumers = tuple(consumers)
        self._wait_s = wait
        self._turn = 0
        self.topic = consumers[0].topic
        self.group = consumers[0].group

    # --- reading ---

    def poll(self, max_count: int = 32, wait: float = 0.0) -> list[ShardMessage]:
        """Return the next messages of any shard, at most `max_count`.

        If no message is there, wait up to `wait` seconds for the first, then return an empty list.

        Raises:
            MessageError: an argument is invalid.
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
            except BaseException:  # such as Ctrl-C: other consumers wait for these to end
                _end_all(polls)
                raise

    def _sleep(self, polls: Sequence[WaitingPoll]) -> bool:
        """Wait for a reason to look again. Return False if the time has passed or a store is
        closed.
        """
        event = WakeEvent()
        entered = []
        try:
            for poll in polls:
                if not poll.enter(event.set):  # a message is there, or the poll has ended
                    return poll.left_s > 0 and not poll.is_closed
                entered.append(poll)
            is_woken = event.wait(min(polls[0].left_s, threading.TIMEOUT_MAX))
        finally:
            for poll in entered:
                poll.leave()
        # With a clock set by hand, a time-out ends the poll: real seconds have passed.
        return (is_woken or not self._clock.by_hand) and not any(one.is_closed for one in polls)

    def _look(self, max_count: int) -> list[ShardMessage]:
        """Return available messages, from each shard in turn."""
        while ready := self._fetch(max_count):
            found: list[ShardMessage] = []
            for shard, queues in ready:
                messages = self._consumers[shard].hand_out(queues, max_count - len(found))
                found += [in_shard(shard, one) for one in messages]
            if found:
                return found  # else another thread has taken the messages
        return []

    def _fetch(self, max_count: int) -> list[tuple[int, list[AssignedQueue]]]:
        """Fetch up to `max_count` messages, and return the shards that have them.

        No message is returned yet. If a shard raises an error, or a signal arrives, messages of
        other shards must not be lost: the next commit would commit them.
        """
        count, missing = len(self._consumers), max_count
        first = self._turn % count
        ready: list[tuple[int, list[AssignedQueue]]] = []
        for shard in (*range(first, count), *range(first)):
            try:
                poll = self._consumers[shard].begin_poll(missing)  # raises ClosedError
                queues = poll.look()
            except TimerStoreError:
                # The next call begins with this shard, and the call after that with the others.
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
        """Commit the messages that this consumer has returned; durable on return.

        Return the committed offset of each (shard, queue). After a crash during the call, some
        shards may be committed; the messages of the others are returned again.

        through: commit only up to this message in its queue, or a mapping from (shard, queue) to
        the offset of the next message.

        Raises:
            MessageError: an argument is invalid.
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
                f"commit: wanted a ShardMessage or a mapping, got {kind_of(through)}"
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
        """Continue from the first message stored at a time or later, in every queue. Return the
        offsets.

        Call `commit` to make the new position durable. To continue at an offset, use the Consumer
        of one shard (`ShardedStore.stores`).

        time, time_ms: an aware datetime, or milliseconds since 1970; exactly one.
        """
        return {
            (shard, queue_id): offset
            for shard, one in enumerate(self._consumers)
            for queue_id, offset in one.seek(time=time, time_ms=time_ms).items()
        }

    # --- state ---

    @property
    def queues(self) -> tuple[ShardQueue, ...]:
        """The queues that belong to this consumer now."""
        return tuple(
            (shard, queue_id)
            for shard, one in enumerate(self._consumers)
            for queue_id in one.queues
        )

    def close(self) -> None:
        """Leave the group in every shard. Nothing is committed."""
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
