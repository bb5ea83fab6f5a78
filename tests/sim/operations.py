"""The operations of a schedule, one method each: called on the store, and told to the model.

Holds:    a number in an operation chooses among what there is at the time, so that it still means
          something when operations before it were left out.
"""

from collections.abc import Callable
from typing import Any

from tests.sim.audit import due_buckets, end_buckets
from tests.sim.disk import Fault
from tests.sim.schedule import DAY_MS, PAGE, Op
from tests.sim.world import Attempt, World
from tests.support.driver import START_MS, named
from tests.support.model import Put, Queue
from timerstore import CancelResult, PutReceipt, StoreConfig
from timerstore.errors import (
    FailedError,
    FullError,
    MessageError,
    TimerStoreError,
)
from timerstore.layout.handle import decode, encode
from timerstore.queues.levels import parse_level_delays

_YEAR_MS = 31_557_600_000
_DERIVED = (
    "timerstore/watermark", "timerstore/state", "timerstore/counts", "timerstore/index", "index",
    "timerwheel", "timerlog", "consumequeue", "config/timercheck", "config/timermetrics",
    "checkpoint",
)  # fmt: skip
_STEPS_MAX = 20_000  # of one service without a pause: no schedule has so many messages
_OVERHEAD = 330  # of a record beside its body, before the first one told better
_SHOWS_NOTHING = {
    "put", "put_many", "put_level", "cancel", "reschedule", "advance", "back", "to_due", "to_slot",
    "fault", "full", "nothing", "reader",
}  # fmt: skip
"""Operations after which no pull gives more than before: a service has to run first."""


class Operations(World):
    """A world that can be told what to do."""

    def __init__(self, config: StoreConfig, allocations: Any, *, is_small: bool) -> None:
        super().__init__(config, allocations)
        self.is_small = is_small
        self.waited_ms = 0  # on the clock, with messages put; of one turn a month counts at most
        self._overhead = _OVERHEAD

    # --- running ---

    def do(self, op: Op) -> None:
        """Run one operation of a schedule; the model agrees with the store after it."""
        name, arguments = op[0], op[1:]
        self.count(f"op_{name}")
        if name not in ("advance", "to_due", "to_slot", "settle", "die"):
            self.is_settled = False
        before_ms, is_pending = self.clock.turned_ms, bool(self.model.puts)
        try:
            getattr(self, f"op_{name}")(*arguments)
        except (FullError, FailedError, MemoryError) as error:
            self.after_error(error, len(self.model.puts))
        if is_pending:
            self.waited_ms += min(self.clock.turned_ms - before_ms, _YEAR_MS // 12)
        if not self.is_dead and name not in _SHOWS_NOTHING:
            self._guarded(self.look)

    def _guarded(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except (FullError, FailedError, MemoryError) as error:
            self.after_error(error, len(self.model.puts))

    # --- sizes and times ---

    def due(self, spec: Any) -> int | None:
        """Turn what a schedule says of a time into one."""
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
        """Turn what a schedule says of a size into bytes of the body."""
        bytes_max = min(self.config.commit_log_segment_bytes - 16, 65_536) - 600
        if isinstance(spec, int):
            return min(spec, bytes_max)
        width = {"page": PAGE, "sector": 512, "segment": self.config.commit_log_segment_bytes}
        at = self.store._log.end + self._overhead + 6
        size = (-at + spec[1]) % width[spec[0]] + 6
        return min(size, bytes_max)

    def _note_sizes(self, receipt: PutReceipt, body: bytes, due_ms: int | None) -> None:
        end = self.store._log.end
        if receipt.log_offset < end:
            self._overhead = end - receipt.log_offset - len(body)
        for bucket in end_buckets(end, self.config):
            self.count(bucket)
        for bucket in due_buckets(due_ms, self.clock.now_ms, self.config):
            self.count(bucket)

    # --- puts ---

    def _attempt(self, queue: Queue, bodies: list[bytes], dues: list[int], level: int = 0) -> None:
        now_ms = self.clock.now_ms
        self._tried = [
            Attempt(
                queue, body, max(due_ms, now_ms), due_ms > now_ms, level, self.model.next_order()
            )
            for body, due_ms in zip(bodies, dues, strict=True)
        ]
        for body in bodies:
            self.note_body(body)

    def _putting(self, call: Callable[[], None]) -> None:
        """Nobody gets a receipt from a call that fails: it may have done its work, or a part."""
        try:
            call()
        except FullError as error:
            if self.store._log.failed is not None:
                self.attempts += self._tried
            else:
                self.attempts += self._tried[: getattr(error, "stored_count", 0)]
            raise
        except (FailedError, MemoryError):
            self.attempts += self._tried
            raise

    def op_put(self, queue: list[Any], due: Any, size: Any, flush: str | None) -> None:
        at, due_ms, body = (queue[0], queue[1]), self.due(due), self._body(self.size(size))
        self._attempt(at, [body], [due_ms or 0])
        if (flush or self.config.flush) == "async":
            self.async_bodies.add(body)

        def put() -> None:
            receipt = self._put(at, body, due_ms, flush)
            self._note_sizes(receipt, body, due_ms)
            self._note_put(at, body, due_ms, receipt, sure=not self.is_dead)

        with self._limited([due_ms or 0]):
            self._putting(put)

    def op_put_level(self, queue: list[Any], level: int, size: int) -> None:
        at, body = (queue[0], queue[1]), self._body(size)
        delays = parse_level_delays(self.config.level_delays)
        due_ms = self.clock.now_ms + delays[min(level, len(delays)) - 1]
        self._attempt(at, [body], [due_ms], level)
        if self.config.flush == "async":
            self.async_bodies.add(body)

        def put() -> None:
            self._put_level(at, level, body, sure=False)
            self.model.puts[body].sure = not self.is_dead

        self._putting(put)

    def op_put_many(self, queue: list[Any], items: list[Any], buffer: bool) -> None:
        at = (queue[0], queue[1])
        given = [(self.due(due) or 0, self.size(size)) for due, size in items]
        given = [(due_ms if due_ms > self.clock.now_ms else 0, size) for due_ms, size in given]
        bodies = [self._body(size) for _, size in given]
        dues = [due_ms for due_ms, _ in given]
        self._attempt(at, bodies, dues)
        if self.config.flush == "async":
            self.async_bodies.update(bodies)

        def put() -> None:
            self._put_many(at, given, bodies, buffer=buffer, sure=False)
            for body in bodies:
                self.model.puts[body].sure = not self.is_dead

        with self._limited(dues):
            self._putting(put)

    # --- cancels and reschedules ---

    def _chosen(self, which: str, number: int) -> Put | None:
        if which == "old":
            puts = self.model.moved_ones()
        else:
            puts = self.model.known(waiting=which != "any")
        puts = [p for p in puts if p.receipt.timer_id >= 0 or not p.waited]
        return puts[number % len(puts)] if puts else None

    def op_cancel(self, which: str, number: int, how: str) -> None:
        one = self._chosen(which, number)
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
        self.model.cancel(one, answer, self.clock.latest_ms, sure=not self.is_dead)

    def op_reschedule(self, which: str, number: int, due: Any, how: str) -> None:
        one = self._chosen(which, number)
        if one is None or one.maybe_moved is not None:
            return
        due_ms = self.due(due) or self.clock.now_ms
        if how == "receipt" and one.receipt.waits_for_level:
            return
        try:
            receipt = self._reschedule(one, due_ms, how)
        except MessageError:
            if len(one.body) > self.config.commit_log_segment_bytes - 2000:
                return  # its delete record and itself do not fit into one segment
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
        """What the error promises: it may be tried again, as if it had never been asked."""
        return isinstance(error, FullError) and self.store._log.failed is None

    # --- looking ---

    def op_wait(self, queue: list[Any], tag: str | None) -> None:
        if not self.is_dead:
            self.wait((queue[0], queue[1]), tag)

    def op_pending(self, _number: int) -> None:
        if not self.is_dead and not self._has_doubts:
            self.compare_pending()

    def op_filtered(self, number: int) -> None:
        wanted = [("Aa",), ("BB", "c"), ("Aa", "c")][number % 3]
        listed = ", ".join(f"'{tag}'" for tag in wanted)
        how = {"sql": f"TAGS IN ({listed})"} if number & 4 else {"tags": " || ".join(wanted)}
        if not self.is_dead:
            self.look_filtered(list(wanted), how)

    def op_query(self, number: int) -> None:
        if not self.is_dead and self.config.index_enabled and not self._has_doubts:
            self.query(("orders", "mail")[number % 2], f"key-{number % 5}")

    def op_query_one(self, number: int) -> None:
        puts = self.model.known()
        if puts and not self.is_dead and self.config.index_enabled and not self._has_doubts:
            self.query_one(puts[number % len(puts)])

    def op_again(self, _number: int) -> None:
        if not self.is_dead:
            self.look_again()

    def op_verify(self, _number: int) -> None:
        if not self.is_dead and not self.is_limited:
            report = self.store.verify()
            assert report.clean, report

    @property
    def _has_doubts(self) -> bool:
        """Whether a call failed whose outcome the model does not know."""
        puts = self.model.puts.values()
        return bool(self.attempts) or any(
            one.maybe_cancelled or one.maybe_moved is not None or not one.sure for one in puts
        )

    def look(self) -> None:
        """Pull what is new, and compare."""
        self.may_ring_early = self.is_limited
        for queue, known in self.model.seen.items():
            new = self._pull_new(queue, len(known))
            self._look_at_waiting(queue, new)
            if any(one.maybe_moved is not None for one in self.model.puts.values()):
                return  # decided when it is opened again
            self.check_not_early(new)
            self._adopt(new)
            self.model.came(queue, new)
            if new and not self.is_order_waived:
                self.model.check_order(queue)

    @property
    def is_order_waived(self) -> bool:
        """Whether the store said that it gave up the order of equal due times (a full wheel)."""
        self.waivers += self._opened_metric("dequeue_put_order_waivers")
        return self.waivers > 0

    def _opened_metric(self, name: str) -> int:
        return self.store._opened.metrics.values()[name]

    def _adopt(self, new: list[Any]) -> None:
        """What was put and raised an error has come all the same: then it is there."""
        for message in new:
            for one in [a for a in self.attempts if a.body == message.body]:
                self.attempts.remove(one)
                self.adopt(one, message)

    # --- a group ---

    def op_reader(self, kind: str, topic: str, which: int, at: int) -> None:
        if self.config.visibility == "written" or (self.is_dead and kind != "commit"):
            return
        if kind == "join":
            self.readers.join(self.store, topic)
        elif kind == "leave":
            self.readers.leave(topic, which)
        elif kind == "read":
            self.look()
            self.readers.read(self.store, topic, which, at + 1, self.model.seen)
        elif kind == "seek":
            self.readers.seek(self.store, topic, which, at)
        else:
            self._commit(topic, which)

    def _commit(self, topic: str, which: int) -> None:
        before = dict(self.readers.committed)
        try:
            self.readers.commit(topic, which)
        except (FullError, FailedError, MemoryError):
            self.readers.fail_commit(topic, which)
            raise
        if self.is_dead:
            self.readers.doubt_commit(before)

    # --- time ---

    def op_advance(self, ms: int, sleeps: bool) -> None:
        if self.clock.now_ms + ms > START_MS + 300 * _YEAR_MS:
            return
        if sleeps:
            self.clock.suspend(ms)
        else:
            self.clock.advance(ms)

    def op_back(self, ms: int) -> None:
        self.clock.set(max(1_000_000, self.clock.now_ms - ms))

    def op_to_due(self, which: int, edge: int) -> None:
        waiting = self.model.waiting()
        if waiting:
            due_ms = waiting[which % len(waiting)].due_ms
            self.clock.set(max(self.clock.now_ms, due_ms + edge))

    def op_to_slot(self, slots: int, edge: int) -> None:
        due_ms = self.due(["slot", slots, edge])
        assert due_ms is not None
        self.clock.set(due_ms)

    # --- services ---

    def step_one(self, name: str) -> bool:
        """As a service's thread does: what may pass is tried again, the rest stops the store."""
        try:
            return bool(self.services[name].step())
        except TimerStoreError as error:
            if not error.retryable:
                self.store._opened._failed(name, error)
                raise
            if not self.is_limited:
                raise AssertionError(f"an error that nobody asked for: {error!r}") from error
            self.count("retries")
            return False
        except MemoryError as error:
            self.store._opened._failed(name, error)
            raise

    def op_step(self, names: list[str]) -> None:
        for name in names:
            self.step_one(name)

    def op_run(self, order: list[str], count: int) -> None:
        """The first that has work, again and again."""
        for _ in range(count):
            if not any(self.step_one(name) for name in order):
                return

    def op_settle(self) -> None:
        was_settled, seen = self.is_settled, {q: len(k) for q, k in self.model.seen.items()}
        self._settle_services()
        if self.is_dead:
            return
        self.look()
        if self._may_be_late:
            return
        if not self.is_limited and not self.config.start_delay_ms:
            self.model.check_settled(self.clock.now_ms)
            self.is_settled = True
            if was_settled and not self.is_order_waived:
                self._check_burst(seen)

    @property
    def _may_be_late(self) -> bool:
        """Whether the store waits for its next try, after a full disk."""
        return bool(self.store._opened.schedule._retry_ns > self.clock.monotonic_ns)

    def _settle_services(self) -> None:
        for _ in range(1000):
            worked = [self._drain(name) for name in self.services]
            if not any(worked):
                return
        raise AssertionError("still at work after 1000 rounds")

    def _drain(self, name: str) -> bool:
        for count in range(_STEPS_MAX):
            if not self.step_one(name):
                return count > 0
        raise AssertionError(f"{name} is still at work after {_STEPS_MAX} steps")

    def _check_burst(self, seen: dict[Queue, int]) -> None:
        """Nothing was at work when the clock was turned: what came is in order of due time."""
        for queue, known in self.model.seen.items():
            new = [self.model.puts[body] for body, _ in known[seen.get(queue, 0) :]]
            timers = [one for one in new if one.waited and not one.level]
            keys = [(one.due_ms, one.order) for one in timers]
            assert keys == sorted(keys), f"a burst out of order: {timers}"

    def op_flush(self) -> None:
        self.store.flush()

    def op_nothing(self) -> None:
        pass

    # --- ends and faults ---

    def op_die(self, trigger: Op, end: Op, deaths: list[Op], op: Op) -> None:
        self.heal()
        self.count(f"op_{op[0]}")
        if op[0] not in ("settle", "nothing"):
            self.is_settled = False
        if op[0] == "reopen" and trigger[0] == "point" and trigger[1].startswith("close"):
            self.may_scan_all = True
        call = getattr(self, f"op_{op[0]}")
        self.die(trigger, end, deaths, lambda: call(*op[1:]))

    def op_reopen(self, downtime_ms: int) -> None:
        self._close()
        if downtime_ms:
            self.clock.suspend(downtime_ms)
        if not self.is_dead:
            self._open()
            if not self.is_dead:
                self._after_opening()

    def _close(self) -> None:
        self._is_open = self._is_open and self.is_dead
        self._durable = self.store._log.durable
        self.may_scan_all = True
        try:
            self.store.close()
        finally:
            if not self.is_dead:
                self._durable = self.store._log.durable

    def op_lose(self, which: int, kill: bool) -> None:
        """Some of the files that are derived from the log are gone."""
        self.heal()
        if kill:
            self.end_now(["kill", 0])
        else:
            self.store.close()
            self.clock.forget_listeners()
            self._is_open = False
        for at, name in enumerate(_DERIVED):
            if which >> at & 1:
                self._remove(f"/store/{name}")
        self.may_scan_all = True
        self.raise_again([])

    def _remove(self, path: str) -> None:
        for folder in [f for f in self.disk.names if f == path or f.startswith(path + "/")]:
            del self.disk.names[folder]
            self.disk.synced.pop(folder, None)
        parent, _, name = path.rpartition("/")
        self.disk.names.get(parent, {}).pop(name, None)
        self.disk.synced.get(parent, {}).pop(name, None)

    def op_fault(self, kind: str, nth: int, code: int, once: bool) -> None:
        self.heal()
        fault = Fault(kind, nth, code, once=once)
        if kind == "alloc":
            self.allocations.fault = fault
        else:
            self.disk.fault = fault

    def op_fault_in_recovery(self, end: Op, fault: Op) -> None:
        """Die, and have a call fail while it is opened again."""
        self.heal()
        self.end_now(end[:2])
        self.op_fault(*fault)
        self._guarded(lambda: self.raise_again([], end[2]))
        self.heal()

    def op_full(self, pages: int) -> None:
        self.disk.free_pages = pages if self.disk.free_pages is None else None

    # --- the end ---

    def finish(self, *, is_thorough: bool) -> None:
        """No fault any more, the clock goes on: all comes, once; the store checks clean; close."""
        self.heal()
        if self._has_failed or self.attempts or self._has_doubts:
            self.end_now(["kill", 0])
            self.raise_again([])
        self._come_to_rest()
        self.look_again()
        self.compare_pending()
        self.readers_finish()
        assert self.store.stats()["level_pending_messages"] == 0
        if is_thorough and self.config.index_enabled:
            self.query_all()
        if is_thorough:
            self.op_reopen(0)
            self.op_settle()
            self.compare_pending()
        report = self.store.verify()
        assert report.clean, report
        self.store.close()

    @property
    def _has_failed(self) -> bool:
        return self.store._log.failed is not None

    def _come_to_rest(self) -> None:
        self.clock.advance(self.config.start_delay_ms)
        for _ in range(100):
            self._settle_services()
            dues = [one.due_ms for one in self.store.pending()]
            if not dues:
                break
            due_ms = dues[-1] if self._may_be_late else dues[len(dues) // 2]
            self.clock.set(max(self.clock.now_ms + 1, due_ms))
        assert not list(self.store.pending()), "still waiting after 100 turns"
        latest_ms = max((one.due_ms for one in self.model.waiting()), default=0)
        self.clock.set(max(self.clock.now_ms, latest_ms) + DAY_MS)  # levels: no part of pending()
        self._settle_services()
        self.look()
        self.model.check_settled(self.clock.now_ms)

    def readers_finish(self) -> None:
        if self.config.visibility != "written":
            self.readers.finish(self.store, self.model.seen)
