"""A model of a store in plain dicts: messages put, cancelled and delivered, and their checks.

A message is identified by its body, which is unique. `sure` tells whether the store acknowledged
it. A message in flight when the process died may exist or not, but it is never delivered twice or
early, and never half cancelled.

Invariants: the model knows nothing of files, wheels or threads. Each check raises an AssertionError
    that names its message.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from timerstore import CancelResult, Message, PutReceipt

Queue = tuple[str, int]

RANKED = "ranked"
"""The topic with priorities: its queues are priorities."""


def queue_of(queue: Queue) -> dict[str, Any]:
    """Return the argument of `put` that chooses a queue of a topic."""
    return {"priority" if queue[0] == RANKED else "queue_id": queue[1]}


@dataclass
class Put:
    """One message, as it was put."""

    order: int  # the order of puts, over all queues
    queue: Queue
    body: bytes
    due_ms: int
    waited: bool  # its due time was after the time of the put
    receipt: PutReceipt
    level: int = 0  # the fixed level of the put; -1: ingested
    sure: bool = True
    cancelled: bool = False  # the store returned CANCELLED
    maybe_cancelled: bool = False  # a cancel was in flight when the process died
    must_come: bool = False  # the store returned that it was too late to cancel
    place: int | None = None  # queue offset of the delivered message
    old: list[PutReceipt] = field(default_factory=list)  # receipts of its earlier due times
    maybe_moved: tuple[PutReceipt, int] | None = None  # a reschedule to this time was in flight

    def __repr__(self) -> str:
        said = ("sure", "cancelled", "maybe_cancelled", "must_come", "waited")
        true = [name for name in said if getattr(self, name)]
        where = f"place {self.place} at {self.receipt.log_offset}"
        return f"<{self.body[:6].decode()} {self.queue} due {self.due_ms} {where} {true}>"


@dataclass
class Model:
    """Everything that a caller knows about a store."""

    puts: dict[bytes, Put] = field(default_factory=dict)
    seen: dict[Queue, list[tuple[bytes, int]]] = field(default_factory=dict)  # body, delivered_ms
    is_each_level_alone: bool = False  # each level has its own order
    _orders: int = 0  # orders assigned so far

    def next_order(self) -> int:
        """Return the order of the next put."""
        self._orders += 1
        return self._orders - 1

    # --- what the caller does ---

    def put(
        self,
        queue: Queue,
        body: bytes,
        due_ms: int,
        receipt: PutReceipt,
        *,
        level: int = 0,
        sure: bool = True,
    ) -> None:
        """Record a put that returned, or was in flight."""
        assert body not in self.puts, "bodies tell messages apart"
        waited = receipt.queue_offset is None
        one = Put(self.next_order(), queue, body, due_ms, waited, receipt, level, sure)
        self.puts[body] = one
        self.seen.setdefault(queue, [])

    def cancel(self, one: Put, answer: CancelResult, latest_ms: int, *, sure: bool = True) -> None:
        """Record a cancel that returned, or was in flight and so may have happened.

        `latest_ms` is the latest time that the clock ever showed.
        """
        if not sure:
            one.maybe_cancelled = True
            return
        if answer is CancelResult.CANCELLED:
            assert one.place is None, f"cancelled after it was seen: {one}"
            assert not one.cancelled, f"cancelled twice: {one}"
            assert not one.must_come, f"cancelled after it was too late: {one}"
            one.cancelled = True
        elif answer is CancelResult.ALREADY_CANCELLED:
            assert one.cancelled or one.maybe_cancelled, f"nobody cancelled it: {one}"
            assert one.place is None, f"cancelled, but seen: {one}"
            one.cancelled = True
        elif answer is CancelResult.ALREADY_DELIVERED:
            assert not one.cancelled, f"cancelled before: {one}"
            assert latest_ms >= one.due_ms, f"delivered early: {one}"
            one.must_come = True
        else:
            assert not one.sure, f"unknown, but it was put: {one}"
            assert one.place is None, f"unknown, but it was seen: {one}"

    def moved(self, one: Put, receipt: PutReceipt, due_ms: int) -> None:
        """Record a reschedule that returned, as another put of the same message."""
        assert one.place is None, f"moved after it was seen: {one}"
        assert not one.cancelled, f"moved after it was cancelled: {one}"
        assert not one.must_come, f"moved after it was too late: {one}"
        assert receipt.message_id == one.receipt.message_id
        one.old.append(one.receipt)
        one.order, one.receipt, one.due_ms = self.next_order(), receipt, due_ms
        one.waited = receipt.queue_offset is None
        one.sure, one.maybe_cancelled, one.maybe_moved = True, False, None

    def decide_moved(self, one: Put, handles: list[str], bodies: set[bytes]) -> None:
        """Decide whether a reschedule in flight was stored; exactly one of its copies must exist.

        `handles` are those of pending messages with its id, `bodies` were delivered since.
        """
        assert one.maybe_moved is not None
        receipt, due_ms = one.maybe_moved
        one.maybe_moved = None
        came = one.body in bodies
        assert len(handles) + came == 1, f"{len(handles)} wait, {came}: {one}"
        if came or handles == [receipt.handle]:
            assert came == (receipt.queue_offset is not None), f"came, to wait for {due_ms}: {one}"
            self.moved(one, receipt, due_ms)
        else:
            assert handles == [one.receipt.handle], f"neither time: {one}"

    # --- what the store shows ---

    def came(self, queue: Queue, messages: Iterable[Message]) -> None:
        """Record the messages of a pull from the first offset not seen yet."""
        for message in messages:
            one = self.puts.get(message.body)
            assert one is not None, f"this was never put: {message}"
            assert one.queue == queue, f"came in another queue: {message}"
            assert one.place is None, f"came twice, the first time at {one.place}: {message}"
            assert not one.cancelled, f"came, but was cancelled: {message}"
            place = len(self.seen[queue])
            assert message.queue_offset == place, f"a gap before {message}"
            assert message.delivered_ms >= one.due_ms, f"early: {message} was due {one.due_ms}"
            is_now = not one.waited or (one.level < 0 and message.due_ms >= one.due_ms)
            assert message.due_ms == one.due_ms or is_now, f"due {one.due_ms}: {message}"
            assert message.message_id == one.receipt.message_id
            one.place = place
            one.sure = True
            self.seen[queue].append((message.body, message.delivered_ms))

    def same(self, queue: Queue, messages: Iterable[Message], begin: int = 0) -> None:
        """Check that a pull from the first remaining offset returns the same messages again."""
        again = [(m.body, m.delivered_ms) for m in messages]
        known = self.seen[queue][begin:]
        assert again[: len(known)] == known, f"{queue}: what was seen was taken back"

    def check_order(self, queue: Queue) -> None:
        """Check that messages with equal due times were delivered in put order.

        Timers and levels have separate orders.
        """
        last: dict[tuple[int, int], int] = {}
        for body, _ in self.seen[queue]:
            one = self.puts[body]
            if one.waited and one.level >= 0:
                level = one.level if self.is_each_level_alone else min(one.level, 1)
                assert last.get((one.due_ms, level), -1) < one.order, f"overtaken: {one}"
                last[one.due_ms, level] = one.order

    # --- expected state ---

    def waiting(self) -> list[Put]:
        """Return messages not seen and not certainly cancelled, by (due time, put order)."""
        left = [p for p in self.puts.values() if p.place is None and not p.cancelled]
        return sorted(left, key=lambda p: (p.due_ms, p.order))

    def moved_ones(self) -> list[Put]:
        """Return messages that were rescheduled."""
        return [p for p in self.puts.values() if p.old]

    def known(self, *, waiting: bool = False) -> list[Put]:
        """Return messages that a caller may try to cancel.

        A put in flight returned no receipt, although `pending()` may find its message.
        """
        found = self.waiting() if waiting else self.puts.values()
        return [p for p in found if (p.sure or p.waited) and not p.level]

    def check_settled(self, now_ms: int, held: Collection[str] = ()) -> None:
        """Check, when services are idle, that due messages were seen, except topics in `held`."""
        for one in self.waiting():
            if one.queue[0] in held and not one.level:
                continue
            if one.due_ms <= now_ms and one.sure and not one.maybe_cancelled:
                raise AssertionError(f"due, but it did not come by {now_ms}: {one}")
            assert not one.must_come, f"said to be delivered, but it did not come: {one}"

    @property
    def shared_ids(self) -> frozenset[str]:
        """Return ids that several messages have, as the id was put again after the window."""
        counts = Counter(one.receipt.message_id for one in self.puts.values())
        return frozenset(one for one, count in counts.items() if count > 1)

    def check_pending(self, ids: list[str], latest_ms: int) -> None:
        """Check the message ids that `pending()` returned."""
        by_id = {p.receipt.message_id: p for p in self.puts.values()}
        found = [by_id[each] for each in ids]
        assert len(set(ids)) == len(ids), "pending: one message twice"
        times = [p.due_ms for p in found]
        assert times == sorted(times), f"pending: not in order of due time: {times}"
        for level in {p.level for p in found}:  # 0: timers
            # Rows of an interrupted version may be older than their order.
            keys = [(p.due_ms, p.order * (level >= 0)) for p in found if p.level == level]
            assert keys == sorted(keys), f"pending: not in order of due time and put: {keys}"
        for one in found:
            assert one.place is None, f"pending, but seen: {one}"
            assert not one.cancelled, f"pending, but cancelled: {one}"
            assert one.waited, f"pending, but it never waited: {one}"
        for one in self.waiting():
            if one.due_ms > latest_ms and one.sure and not one.maybe_cancelled and one.waited:
                assert one in found, f"not pending: {one}"

    def check_query(
        self,
        topic: str,
        is_meant: Callable[[Put], bool],
        found: list[Message],
        durable: int,
        begin_of: Callable[[Queue], int],
        ends: dict[Queue, int],
        revocable: Collection[bytes],
    ) -> None:
        """Check the messages that a query returned, after everything was pulled.

        `durable` is the durable end of the log and `ends` are the ends of the queues before the
        query. `begin_of` returns the first remaining offset of a queue. `revocable` are messages
        whose cancel may not be visible yet, so that the query may still return them.
        """
        begins = {queue: begin_of(queue) for queue in self.seen if queue[0] == topic}
        places = [message.log_offset for message in found]
        assert places == sorted(set(places)), f"query: twice, or out of order: {places}"
        by_body = {message.body: message for message in found}
        assert len(by_body) == len(found), "query: one message twice"
        for message in found:
            one = self.puts[message.body]
            assert one.queue[0] == topic == message.topic, f"query: of another topic: {message}"
            assert is_meant(one), f"query: without the key: {message}"
            is_gone = one.cancelled and message.body not in revocable
            assert not is_gone, f"query: cancelled: {message}"
            assert message.queue_id == one.queue[1]
            assert message.message_id == one.receipt.message_id
            assert message.due_ms == one.due_ms or not one.waited or one.level < 0
            if message.waits:
                was_seen = one.place is not None and one.place < ends.get(one.queue, 0)
                assert not was_seen, f"query: waits, but was seen: {message}"
                assert one.level < 0 or message.handle == ("" if one.level else one.receipt.handle)
            else:
                assert message.queue_offset == one.place, f"query: not seen: {message}"
        for one in self.puts.values():
            is_seen = one.place is not None and one.place < ends.get(one.queue, 0)
            is_there = (is_seen and (one.place or 0) >= begins.get(one.queue, 0)) or (
                one.place is None
                and one.sure
                and not one.cancelled
                and not one.maybe_cancelled
                and one.receipt.log_offset < durable
            )
            if one.queue[0] == topic and is_meant(one) and is_there:
                assert one.body in by_body, f"query: not found: {one}"
