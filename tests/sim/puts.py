"""Operations that put, cancel and reschedule, made to the store and to the model."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.sim.audit import due_buckets, end_buckets
from tests.sim.drawing import PAGE
from tests.sim.looking import Looking
from tests.sim.world import Attempt
from tests.support.driver import key_of, named
from tests.support.inside import inside
from tests.support.models.messages import Put, Queue, queue_of
from timerstore import CancelResult, PutReceipt
from timerstore._engine.format.delay_levels import parse_level_delays
from timerstore._engine.format.handle import decode, encode
from timerstore.errors import (
    ConflictError,
    FailedError,
    FullError,
    MessageError,
    TimerStoreError,
)

_OVERHEAD = 330  # bytes of a record without its body, until the first record gave a better value
# bytes kept for the header of a chunk, and for the rest of a row without its body
_HEADER_BYTES = 4096 + 300
_DELETE_BYTES = 2000  # most bytes of a delete record and of the rest of a record without its body


class Puts(Looking):
    """A world with puts, cancels and reschedules."""

    _overhead = _OVERHEAD
    spare_bytes = 0  # bytes of a segment kept for a lease and the record that settles it

    # --- sizes and times ---

    def due(self, spec: Any) -> int | None:
        """Convert the due time in a schedule to a time."""
        if spec is None:
            return None
        now_ms, precision_ms = self.clock.now_ms, self.config.precision_ms
        kind = spec[0]
        if kind == "ms":
            return int(now_ms + spec[1])
        if kind == "far":
            return min(now_ms + spec[1] + spec[2], now_ms + self.config.delay_ms_max)
        if kind == "slot":
            return int((now_ms // precision_ms + spec[1]) * precision_ms + spec[2])
        width = self.config.roll_slots if kind == "roll" else self.config.wheel_slot_count
        slot = now_ms // precision_ms + spec[1] * width + spec[2]
        return int(slot * precision_ms + spec[3])

    def size(self, spec: Any) -> int:
        """Convert the size in a schedule to the number of bytes of a body."""
        bytes_max = min(self.config.commit_log_segment_bytes - 16, 65_536) - 600 - self.spare_bytes
        if isinstance(spec, int):
            return min(spec, bytes_max)
        width = {"page": PAGE, "sector": 512, "segment": self.config.commit_log_segment_bytes}
        at = inside(self.store).log.end + self._overhead + 6
        size = (-at + spec[1]) % width[spec[0]] + 6
        return min(size, bytes_max)

    def _note_sizes(self, receipt: PutReceipt, body: bytes, due_ms: int | None) -> None:
        end = inside(self.store).log.end
        if receipt.log_offset < end:
            self._overhead = end - receipt.log_offset - len(body)
        for bucket in end_buckets(end, self.config):
            self.count(bucket)
        for bucket in due_buckets(due_ms, self.clock.now_ms, self.config):
            self.count(bucket)

    # --- puts ---

    def note_attempt(
        self,
        queue: Queue,
        bodies: list[bytes],
        dues: list[int],
        level: int = 0,
        names: list[str] | None = None,
        flush: str | None = None,
    ) -> None:
        """Record a put before the call. `names` are message ids that the caller gives."""
        now_ms = self.clock.now_ms
        self.tried = [
            Attempt(
                queue, body, max(due_ms, now_ms), due_ms > now_ms, level,
                self.model.next_order(), name, now_ms,
            )
            for body, due_ms, name in zip(bodies, dues, names or [""] * len(bodies), strict=True)
        ]  # fmt: skip
        for body in bodies:
            self.note_body(body)
        if (flush or self.config.flush) == "async":
            self.async_bodies.update(bodies)

    def _putting(self, call: Callable[[], None]) -> None:
        """Make a put.

        A call that fails returns no receipt, although it may have stored all or a part.
        """
        try:
            call()
        except FullError as error:
            if inside(self.store).log.failed is not None:
                self.attempts += self.tried
            else:
                self.attempts += self.tried[: getattr(error, "stored_count", 0)]
            self.may_come()
            raise
        except (FailedError, MemoryError):
            self.attempts += self.tried
            self.may_come()
            raise

    def may_come(self) -> None:
        """Read the messages of failed puts before retention removes them."""
        for one in self.attempts:
            self.model.seen.setdefault(one.queue, [])

    def op_put(self, queue: list[Any], due: Any, size: Any, flush: str | None) -> None:
        at, due_ms, body = (queue[0], queue[1]), self.due(due), self.new_body(self.size(size))
        self.note_attempt(at, [body], [due_ms or 0], flush=flush)

        def put() -> None:
            receipt = self._put(at, body, due_ms, flush)
            self._note_sizes(receipt, body, due_ms)
            self.note_put(at, body, due_ms, receipt, sure=not self.is_dead)

        with self._limited([due_ms or 0]):
            self._putting(put)

    def op_put_level(self, queue: list[Any], level: int, size: int) -> None:
        at, body = (queue[0], queue[1]), self.new_body(size)
        self.note_attempt(at, [body], [self._level_due_ms(level)], level)

        def put() -> None:
            self._put_level(at, level, body, sure=False)
            self.model.puts[body].sure = not self.is_dead

        self._putting(put)

    def _level_due_ms(self, level: int) -> int:
        delays = parse_level_delays(self.config.level_delays)
        return self.clock.now_ms + delays[min(level, len(delays)) - 1]

    def op_put_many_level(self, queue: list[Any], level: int, sizes: list[int]) -> None:
        at, bodies = (queue[0], queue[1]), [self.new_body(size) for size in sizes]
        self.note_attempt(at, bodies, [self._level_due_ms(level)] * len(bodies), level)

        def put() -> None:
            self._put_many_level(at, level, bodies, sure=False)
            for body in bodies:
                self.model.puts[body].sure = not self.is_dead

        self._putting(put)

    def op_put_many(
        self, queue: list[Any], items: list[Any], buffer: bool, atomic: bool = False
    ) -> None:
        at = (queue[0], queue[1])
        given = [(self.due(due) or 0, self.size(size)) for due, size in items]
        given = [(due_ms if due_ms > self.clock.now_ms else 0, size) for due_ms, size in given]
        bodies = [self.new_body(size) for _, size in given]
        dues = [due_ms for due_ms, _ in given]
        self.note_attempt(at, bodies, dues)
        if atomic:
            self.groups.append(bodies)

        def put() -> None:
            self._put_many(at, given, bodies, buffer=buffer, sure=False, atomic=atomic)
            for body in bodies:
                self.model.puts[body].sure = not self.is_dead

        with self._limited(dues), self._grouped(bodies, atomic):
            self._putting(put)

    # --- puts that may be retried ---

    def op_put_once(self, queue: list[Any], which: int, due: Any, size: Any) -> None:
        at, body = (queue[0], queue[1]), self.new_body(self.size(size))
        due_ms, name = self.once_due(due), self._name(at, which)
        if self.repeated(at, name, which) is None:
            self.note_attempt(at, [body], [due_ms or 0], names=[name])
        else:
            self.tried = []
        self._putting(lambda: self._put_once(at, which, due_ms, body, lambda: self.is_dead))

    def op_put_many_once(self, queue: list[Any], items: list[Any]) -> None:
        at = (queue[0], queue[1])
        bodies = [self.new_body(size) for _, _, size in items]
        dues = [self.once_due(due) or 0 for _, due, _ in items]
        names = [self._name(at, which) for which, _, _ in items]
        new = []
        for k, (which, _, _) in enumerate(items):
            same = self.repeated(at, names[k], which)
            if same is None:
                new.append(k)
            else:
                bodies[k], dues[k] = same[0], same[1] or 0
        tried = [[column[k] for k in new] for column in (bodies, dues, names)]
        self.note_attempt(at, tried[0], tried[1], names=tried[2])  # type: ignore[arg-type]

        def put() -> None:
            keys = list(map(key_of, bodies))
            try:
                batch = self.store.put_many(
                    at[0], bodies, deliver_ms=np.array(dues, np.int64), **queue_of(at), keys=keys,
                    message_ids=names,
                )  # fmt: skip
            except ConflictError as error:
                k = names.index(error.message_id)
                self.note_conflict(at, names[k], bodies[k], error, is_in_flight=self.is_dead)
                return
            given = zip(names, dues, bodies, batch, strict=True)
            for name, due_ms, body, receipt in given:
                self.note_once(at, name, due_ms, body, receipt, is_in_flight=self.is_dead)

        self._putting(put)

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
        if receipt.duplicate:
            self._adopt_named(queue, name)
        super().note_once(queue, name, due_ms, body, receipt, is_in_flight=is_in_flight)

    def note_conflict(
        self, queue: Queue, name: str, body: bytes, error: ConflictError, *, is_in_flight: bool
    ) -> None:
        self._adopt_named(queue, name)
        super().note_conflict(queue, name, body, error, is_in_flight=is_in_flight)

    def _adopt_named(self, queue: Queue, name: str) -> None:
        """Adopt a message with an id that is known now, of a put that raised an error."""
        if self.config.index_enabled:
            for one in [a for a in self.attempts if (a.queue[0], a.name) == (queue[0], name)]:
                message = self._found(one.queue, one.body)
                if message is not None:
                    self.attempts.remove(one)
                    self.adopt(one, message)

    def _name(self, queue: Queue, which: int) -> str:
        now_ms, window_ms = self.clock.now_ms, self.config.dedupe_window_ms
        return self.onces.name(queue[0], which, now_ms, window_ms, self.lost_below)

    def once_due(self, due: Any) -> int | None:
        """Return a due time, or now if slots have a limit, which applies to new messages only."""
        return None if self.config.slot_messages_max else self.due(due)

    # --- sources ---

    def op_ingest(self, source: str, number: int, items: list[Any], cut: int) -> None:
        """Ingest all rows of a version. `items` are its rows when the version is named first."""
        room = self.config.group_bytes_max - _HEADER_BYTES - _OVERHEAD
        if room < _OVERHEAD:
            return  # no segment is large enough for a row and its header
        rows = [(self.once_due(due) or 0, min(self.size(size), room)) for due, size in items]
        version = self._version(source, number, rows)
        was_complete = number in self.store.ingested(source)
        receipt = self.store.ingest(source, number, version.batches(cut))
        if self.is_dead:
            return
        assert was_complete or not version.is_sure, f"forgotten: {source} {number}"
        assert receipt == (source, number, len(version.rows), was_complete)
        assert number in self.store.ingested(source)
        version.is_sure = True
        for body, _ in version.rows:
            self.model.puts[body].sure = True

    # --- cancels and reschedules ---

    def _nameable(self, which: str) -> list[Put]:
        if which == "old":
            puts = self.model.moved_ones()
        else:
            puts = self.model.known(waiting=which != "any")
        return [p for p in puts if p.receipt.timer_id >= 0 or not p.waited]

    def chosen_put(self, which: str, number: int) -> Put | None:
        puts = self._nameable(which)
        return puts[number % len(puts)] if puts else None

    def op_cancel(self, which: str, number: int, how: str) -> None:
        one = self.chosen_put(which, number)
        if one is None:
            return
        if which == "old":
            self.cancel_old(one, number)
            return
        if which == "stranger":
            if one.waited:
                handle = decode(one.receipt.handle)
                stranger = encode(handle._replace(message_id=handle.message_id[:-1] + "x"))
                assert self.store.cancel(stranger) is CancelResult.UNKNOWN
            return
        try:
            answer = self.store.cancel(named(one, how))
        except (TimerStoreError, MemoryError) as error:
            if not self._is_nothing_changed(error):
                one.maybe_cancelled = not one.cancelled
            raise
        self.note_cancel(one, answer, sure=not self.is_dead)

    def op_cancel_many(self, which: str, number: int, hows: list[str]) -> None:
        """Cancel several adjacent messages. If there are few, the first of them is named twice."""
        puts = self._nameable(which)
        chosen = [puts[(number + k) % len(puts)] for k in range(len(hows))] if puts else []
        given = [named(one, how) for one, how in zip(chosen, hows[: len(chosen)], strict=True)]
        try:
            answers = self.store.cancel_many(given)
        except (TimerStoreError, MemoryError):
            for one in chosen:
                one.maybe_cancelled = not one.cancelled
            raise
        for one, answer in zip(chosen, answers, strict=True):
            self.note_cancel(one, answer, sure=not self.is_dead)

    def op_reschedule(self, which: str, number: int, due: Any, how: str) -> None:
        one = self.chosen_put(which, number)
        if one is None or one.maybe_moved is not None:
            return
        due_ms = self.due(due) or self.clock.now_ms
        if how == "receipt" and one.receipt.waits_for_level:
            return
        try:
            receipt = self._reschedule(one, due_ms, how)
        except MessageError:
            if len(one.body) > self.config.commit_log_segment_bytes - _DELETE_BYTES:
                return  # the delete record and the new record do not fit into one segment
            raise
        except (FullError, FailedError, MemoryError) as error:
            if not self._is_nothing_changed(error):
                one.maybe_moved = (one.receipt, max(due_ms, self.clock.now_ms))
                self.note_body(one.body)
            raise
        if receipt is None:
            return
        self.note_body(one.body)
        if self.is_dead:
            one.maybe_moved = (receipt, receipt.due_ms)
        else:
            self.model.moved(one, receipt, receipt.due_ms)

    def _is_nothing_changed(self, error: Exception) -> bool:
        """Return whether an error promises that the call changed nothing and may be made again."""
        return isinstance(error, FullError) and inside(self.store).log.failed is None
