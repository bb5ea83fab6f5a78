"""Puts of a driver: single messages, batches, atomic groups, levels and ids."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from tests.support.driver.base import BaseDriver
from tests.support.driver.setup import (
    key_of,
)
from tests.support.inside import inside
from tests.support.models.messages import RANKED, Put, Queue, queue_of
from timerstore import (
    PutReceipt,
)
from timerstore._engine.format.delay_levels import parse_level_delays
from timerstore.errors import ConflictError, FlowControlError, MessageError


class PutDriver(BaseDriver):
    """Put messages, and record them in the model."""

    def put(self, queue: Queue, due_ms: int | None, size: int, flush: str | None = None) -> None:
        """Put one message; a `due_ms` of None means no due time."""
        body = self.new_body(size)
        with self._limited([due_ms or 0]):
            self.note_put(queue, body, due_ms, self._put(queue, body, due_ms, flush))

    def _put(self, queue: Queue, body: bytes, due_ms: int | None, flush: str | None) -> PutReceipt:
        return self.store.put(
            queue[0],
            body,
            deliver_ms=due_ms,
            **queue_of(queue),
            flush=flush,
            tags=self.next_tag(),
            keys=key_of(body),
        )

    def note_put(
        self, queue: Queue, body: bytes, due_ms: int | None, receipt: PutReceipt, sure: bool = True
    ) -> None:
        now_ms = self.clock.now_ms
        waits = due_ms is not None and due_ms > now_ms
        assert (receipt.queue_offset is None) == waits
        due_ms = due_ms if due_ms is not None and waits else now_ms
        assert receipt.due_ms == due_ms
        self.model.put(queue, body, due_ms, receipt, sure=sure)

    def put_level(self, queue: Queue, level: int, size: int) -> None:
        """Put one message with a fixed level."""
        self._put_level(queue, level, self.new_body(size), sure=True)

    def _put_level(self, queue: Queue, level: int, body: bytes, *, sure: bool) -> None:
        receipt = self.store.put(queue[0], body, level=level, **queue_of(queue), keys=key_of(body))
        delays = parse_level_delays(self.config.level_delays)
        due_ms = self.clock.now_ms + delays[min(level, len(delays)) - 1]
        assert (receipt.queue_offset, receipt.due_ms, receipt.handle) == (None, due_ms, "")
        self.model.put(queue, body, due_ms, receipt, level=level, sure=sure)

    def put_many_level(self, queue: Queue, level: int, sizes: list[int]) -> None:
        """Put many messages with one fixed level."""
        self._put_many_level(queue, level, [self.new_body(size) for size in sizes], sure=True)

    def _put_many_level(self, queue: Queue, level: int, bodies: list[bytes], *, sure: bool) -> None:
        batch = self.store.put_many(
            queue[0], bodies, level=level, **queue_of(queue), keys=[key_of(body) for body in bodies]
        )
        delays = parse_level_delays(self.config.level_delays)
        due_ms = self.clock.now_ms + delays[min(level, len(delays)) - 1]
        for body, receipt in zip(bodies, batch, strict=True):
            assert receipt.waits_for_level
            assert (receipt.queue_offset, receipt.due_ms, receipt.handle) == (None, due_ms, "")
            self.model.put(queue, body, due_ms, receipt, level=level, sure=sure)

    def put_many(
        self, queue: Queue, items: list[tuple[int, int]], *, buffer: bool, atomic: bool = False
    ) -> None:
        """Put many messages of (due_ms, size), or as one buffer with offsets if `buffer`."""
        bodies = [self.new_body(size) for _, size in items]
        with self._limited([due_ms for due_ms, _ in items]), self._grouped(bodies, atomic):
            self._put_many(queue, items, bodies, buffer=buffer, sure=True, atomic=atomic)

    def _put_many(
        self,
        queue: Queue,
        items: list[tuple[int, int]],
        bodies: list[bytes],
        *,
        buffer: bool,
        sure: bool,
        atomic: bool = False,
    ) -> None:
        dues = np.array([due for due, _ in items], np.int64)
        offsets = np.cumsum([0, *map(len, bodies)])
        given = (b"".join(bodies), offsets) if buffer else bodies
        batch = self.store.put_many(
            queue[0],
            given,
            deliver_ms=dues,
            **queue_of(queue),
            tags=self.next_tag(),
            keys=list(map(key_of, bodies)),
            atomic=atomic,
        )
        for (due_ms, _), body, receipt in zip(items, bodies, batch, strict=True):
            self.note_put(queue, body, due_ms, receipt, sure)

    @contextmanager
    def _grouped(self, bodies: list[bytes], atomic: bool) -> Iterator[None]:
        """Check that a group is rejected if it is too large, and only then."""
        limit, size = self.config.group_bytes_max, sum(map(len, bodies))
        try:
            yield
        except MessageError:
            assert atomic
            assert limit < size + 450 * len(bodies), "rejected, but it fits"
        else:
            assert not atomic or len(bodies) < 2 or limit >= size + 150 * len(bodies)

    @contextmanager
    def _limited(self, due_ms: list[int]) -> Iterator[None]:
        """Check that flow control rejects a put if its slot would be too full, and only then.

        In the present slot, delivered messages count too.
        """
        limit, precision_ms = self.config.slot_messages_max, self.config.precision_ms
        if not limit:
            yield
            return
        now_ms = self.clock.now_ms
        asked = Counter((due - 1) // precision_ms for due in due_ms if due > now_ms)
        waiting = self.store.congestion()
        full = {
            slot
            for slot, count in asked.items()
            if waiting.get(slot * precision_ms, 0) + count > limit
        }
        try:
            yield
        except FlowControlError:
            assert full or now_ms // precision_ms in asked, f"rejected: {asked} on {waiting}"
        else:
            assert not full, f"not rejected: {asked} on {waiting}"

    def put_once(self, queue: Queue, which: int, due_ms: int | None, size: int) -> None:
        """Put one message with a message id of the caller, of which there are few."""
        self._put_once(queue, which, due_ms, self.new_body(size), lambda: False)

    def _put_once(
        self,
        queue: Queue,
        which: int,
        due_ms: int | None,
        body: bytes,
        is_in_flight: Callable[[], bool],
    ) -> None:
        if self.config.slot_messages_max:
            due_ms = None  # flow control checks new messages only; test_dedupe.py covers the rest
        window_ms = self.config.dedupe_window_ms
        name = self.onces.name(queue[0], which, self.clock.now_ms, window_ms, self.lost_below)
        same = self.repeated(queue, name, which)
        if same is not None:
            body, due_ms = same
        try:
            receipt = self.store.put(
                queue[0], body, deliver_ms=due_ms, **queue_of(queue), message_id=name,
                keys=key_of(body),
            )  # fmt: skip
        except ConflictError as error:
            assert same is None, "a conflict with itself"
            self.note_conflict(queue, name, body, error, is_in_flight=is_in_flight())
        else:
            self.note_once(queue, name, due_ms, body, receipt, is_in_flight=is_in_flight())

    def repeated(self, queue: Queue, name: str, which: int) -> tuple[bytes, int | None] | None:
        """Return body and due time of the put that a put of this id repeats; None: of no put.

        Where contents are compared, ids with an even number come with the same contents again, and
        the others with new ones. A message with another priority has other contents.
        """
        if self.config.dedupe == "id" or which % 2:
            return None
        now_ms, window_ms = self.clock.now_ms, self.config.dedupe_window_ms
        one = self.onces.certain((queue[0], name), now_ms, window_ms, self.lost_below)
        if one is None or (queue[0] == RANKED and one.queue != queue):
            return None
        first = one.old[0] if one.old else one.receipt  # as it was put, before it was rescheduled
        return one.body, first.due_ms if one.waited and not one.level else None

    def note_conflict(
        self, queue: Queue, name: str, body: bytes, error: ConflictError, *, is_in_flight: bool
    ) -> None:
        """Record that a put was rejected, because its id was put with another body."""
        assert self.config.dedupe == "content"
        assert (error.topic, error.message_id) == (queue[0], name)
        assert "body" in error.differs
        now_ms, window_ms = self.clock.now_ms, self.config.dedupe_window_ms
        sure = not is_in_flight
        put = self.onces.conflicted((queue[0], name), body, now_ms, window_ms, sure=sure)
        if put is not None and sure:
            self._answered_again(put)

    def note_once(
        self,
        queue: Queue,
        name: str,
        due_ms: int | None,
        body: bytes,
        receipt: PutReceipt,
        *,
        is_in_flight: bool,
    ) -> None:
        """Record a put with an id; with `is_in_flight` the store was killed during it."""
        at, now_ms, window_ms = (queue[0], name), self.clock.now_ms, self.config.dedupe_window_ms
        if receipt.duplicate:
            begin = inside(self.store).log.segments.begin
            sure = not is_in_flight
            put = self.onces.answered(at, receipt, now_ms, window_ms, begin, sure=sure)
            is_compared = self.config.dedupe == "content" and receipt.log_offset >= begin
            assert put.body == body or not is_compared, f"swallowed: {body!r}"
            if sure:
                self._answered_again(put)
            return
        if not is_in_flight:
            for one in self.onces.was_new(at, now_ms, window_ms, self.lost_below):
                assert one.place is None  # in flight at a kill, and now known not to be stored
                del self.model.puts[one.body]
        self.note_put(queue, body, due_ms, receipt, sure=not is_in_flight)
        self.onces.put(at, self.model.puts[body], now_ms)

    def _answered_again(self, one: Put) -> None:
        """Record that a duplicate was answered, so that its original is durable."""
