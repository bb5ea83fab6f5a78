"""A group that leases, beside its model: what is leased until when, settled, or to come again.

Holds:    after every call: what was acked for sure never comes again; a leased message comes again
          neither before its lease is over nor with a wrong attempt; at the end each message of the
          topic is settled, or among the dead letters, and never both.
Fails:    AssertionError where the store says otherwise.
A call that was in flight when the process died may have happened or not: then both are allowed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tests.support.model import Queue
from timerstore import AckResult, LeasedMessage, LeaseLostError, TimerStore
from timerstore.errors import FlowControlError

GROUP = "lessees"
ATTEMPTS_MAX = 4
BACKOFF_S = (0.5, 3)
_DEAD = f"%DLQ%{GROUP}"

Seen = dict[Queue, list[tuple[bytes, int]]]


class LateClock(Protocol):
    """A clock that knows how late it ever was."""

    latest_ms: int
    now_ms: int

    def set(self, now_ms: int) -> None: ...


@dataclass
class _Lease:
    topic: str
    attempt: int  # for sure
    more: int  # attempts that may have been, beside those
    ready_ms: int  # before that it surely does not come again
    receipts: list[str] = field(default_factory=list)  # the last one counts
    is_held: bool = True  # as far as the caller knows
    is_done: bool = False  # acked
    is_sure: bool = True  # nothing about it was in flight when the process died


class Lessees:
    """All leases of the group, over all topics."""

    def __init__(self, clock: LateClock) -> None:
        self._clock = clock
        self._leases: dict[bytes, _Lease] = {}
        self._dead: dict[bytes, int] = {}
        self._topics: set[str] = set()

    # --- calls ---

    def receive(
        self,
        store: TimerStore,
        topic: str,
        count: int,
        lease_ms: int,
        seen: Seen,
        reached: list[str],
    ) -> list[LeasedMessage]:
        """Lease; `reached`: not empty once the process has died meanwhile."""
        self._topics.add(topic)
        got = store.receive(
            topic,
            GROUP,
            lease=lease_ms / 1000,
            max_count=count,
            max_attempts=ATTEMPTS_MAX,
            backoff=BACKOFF_S,
        )
        assert len(got) <= count
        assert len({one.body for one in got}) == len(got), "one message twice"
        for message in got:
            self._came(message, lease_ms, seen, sure=not reached)
        return got

    def _came(self, message: LeasedMessage, lease_ms: int, seen: Seen, *, sure: bool) -> None:
        queue = message.topic, message.queue_id
        known = seen[queue][message.queue_offset]
        assert known == (message.body, message.delivered_ms), f"{known} was seen: {message}"
        assert message.lease_until_ms == self._clock.now_ms + lease_ms
        one = self._leases.get(message.body)
        if one is None:
            one = self._leases[message.body] = _Lease(message.topic, 0, 0, 0)
        assert not one.is_done, f"acked, but it came again: {one} {message}"
        assert message.body not in self._dead, f"dead, but it came: {message}"
        assert self._clock.latest_ms >= one.ready_ms, f"leased by another: {one} {message}"
        low, high = one.attempt + 1, one.attempt + one.more + 1
        assert low <= message.attempt <= high, f"wanted attempt {low} to {high}: {message}"
        assert message.is_last_attempt == (message.attempt >= ATTEMPTS_MAX)
        one.receipts.append(message.receipt)
        one.is_held = True
        if sure:
            one.attempt, one.more, one.is_sure = message.attempt, 0, True
            one.ready_ms = message.lease_until_ms
        else:
            one.more, one.is_sure = message.attempt - one.attempt, False

    def settle(self, store: TimerStore, kind: str, which: int, ms: int, reached: list[str]) -> None:
        """Ack, nack or extend one of the leases, a late one too."""
        choice = [one for one in self._leases.values() if one.receipts]
        if not choice:
            return
        one = choice[which % len(choice)]
        receipt = one.receipts[-1 - (which % 7 == 6 and len(one.receipts) > 1)]
        is_newest = receipt == one.receipts[-1]
        if kind == "extend":
            self._extend(store, one, receipt, ms, reached)
            return
        if kind == "nack":
            answer = store.nack(receipt, delay=ms / 1000)
            wanted = AckResult.NACKED
        else:
            answer = store.ack(receipt) if kind == "ack" else store.ack_many([receipt])[0]
            wanted = AckResult.ACKED
        if answer is not wanted:
            self._refused(one, answer, is_newest)
            return
        assert is_newest or not one.is_sure, f"by an old receipt: {one}"
        assert not one.is_done, f"settled twice: {one}"
        one.is_held = False
        if kind != "nack":
            one.is_done, one.is_sure = not reached, one.is_sure and not reached
            if reached:
                one.is_held = True
            return
        ready_ms = self._clock.now_ms + ms if one.attempt + one.more < ATTEMPTS_MAX else 0
        one.ready_ms = min(one.ready_ms, ready_ms) if reached else ready_ms
        one.is_sure = one.is_sure and not reached

    def _extend(
        self, store: TimerStore, one: _Lease, receipt: str, ms: int, reached: list[str]
    ) -> None:
        is_newest = receipt == one.receipts[-1]
        try:
            longer = store.extend(receipt, lease=ms / 1000)
        except LeaseLostError as error:
            self._refused(one, AckResult(error.result), is_newest)
            return
        assert is_newest or not one.is_sure, f"by an old receipt: {one}"
        assert not one.is_done
        until_ms = self._clock.now_ms + ms
        one.ready_ms = min(one.ready_ms, until_ms) if reached else until_ms
        one.is_sure = one.is_sure and not reached
        one.receipts.append(longer)

    def _refused(self, one: _Lease, answer: AckResult, is_newest: bool) -> None:
        if answer is AckResult.EXPIRED:
            may_be_over = self._clock.latest_ms >= one.ready_ms or not is_newest
            assert may_be_over or not one.is_sure, f"expired too soon: {one}"
        elif answer is AckResult.SETTLED:
            assert not (one.is_held and is_newest and one.is_sure), f"nobody settled it: {one}"
        else:  # retention may have removed what a settled one was
            assert answer is AckResult.UNKNOWN
            is_over = not one.is_held or not is_newest or self._clock.latest_ms >= one.ready_ms
            assert is_over or not one.is_sure, f"unknown, but it is held: {one}"

    # --- the end ---

    def finish(
        self,
        store: TimerStore,
        seen: Seen,
        settle: Callable[[], None],
        begin_of: Callable[[Queue], int] = lambda _queue: 0,
    ) -> None:
        """All of a topic that it leased from is acked, or dead. `begin_of`: the
        first offset of a queue that is left: what was removed before the group was known of is no
        loss.
        """
        if not self._topics:
            return
        for _ in range(3 * ATTEMPTS_MAX):
            latest = max((one.ready_ms for one in self._leases.values()), default=0)
            self._clock.set(max(self._clock.now_ms, latest))
            settle()
            self._read_dead(store)
            for topic in sorted(self._topics):
                while got := self._receive_all(store, topic, seen, settle):
                    assert set(store.ack_many(got)) == {AckResult.ACKED}
                    for message in got:
                        self._leases[message.body].is_done = True
            if all(one.is_done or body in self._dead for body, one in self._leases.items()):
                break
        self._read_dead(store)
        for topic in self._topics:
            for queue, messages in seen.items():
                if queue[0] != topic:
                    continue
                begin = begin_of(queue)
                for offset, (body, _) in enumerate(messages):
                    one = self._leases.get(body)
                    if offset < begin and one is None:
                        continue
                    is_over = one is not None and (one.is_done or not one.is_sure)
                    assert is_over or body in self._dead, f"lost: {body[:6]!r} {one}"

    def _receive_all(
        self, store: TimerStore, topic: str, seen: Seen, settle: Callable[[], None]
    ) -> list[LeasedMessage]:
        for _ in range(100):
            try:
                return self.receive(store, topic, 100, 1000, seen, [])
            except FlowControlError:  # for this slot
                self._clock.set(self._clock.now_ms + 1000)
                settle()
        raise AssertionError("every slot is full")

    def _read_dead(self, store: TimerStore) -> None:
        for queue_id in range(store.topics().get(_DEAD, 0)):
            offset = 0
            while True:
                result = store.pull(_DEAD, queue_id, offset)
                for message in result.messages:
                    one = self._leases.get(message.body)
                    at = self._dead.setdefault(message.body, message.log_offset)
                    assert at == message.log_offset, f"dead twice: {message}"
                    assert one is not None
                    assert not one.is_done, f"acked, but dead: {message}"
                    assert one.attempt + one.more >= ATTEMPTS_MAX, f"dead too soon: {one}"
                if result.next_offset <= offset:
                    break
                offset = result.next_offset
