"""Run the operations of a schedule, one method each, on the store and on the model.

Invariants:
    1. A number in an operation chooses among the messages or queues that exist at that time. So it
       keeps its meaning when earlier operations are left out.
"""

import errno
from dataclasses import replace
from random import Random
from typing import Any

from tests.sim.disk import Fault
from tests.sim.drawing import DAY_MS, Op
from tests.sim.halving import Halving
from tests.sim.images import check_image
from tests.sim.reading import Reading
from tests.sim.scrapping import Scrapping
from tests.support.driver import START_MS
from tests.support.inside import inside
from tests.support.inside.parts import retry_ns_of
from tests.support.models.messages import Queue
from timerstore import StoreConfig
from timerstore.errors import FailedError, TimerStoreError

YEAR_MS = 31_557_600_000
_DERIVED = (
    "timerstore/watermark", "timerstore/state", "timerstore/counts", "timerstore/index", "index",
    "timerwheel", "timerlog", "consumequeue", "config/timercheck", "config/timermetrics",
    "checkpoint", "timerstore/far-0", "timerstore/far-1", "timerstore/far",
)  # fmt: skip
_RETRY_MS = 60_000  # longer than the engine waits between two tries
_STEPS_MAX = 3_000  # of one service without a pause; a schedule has fewer messages
SHOWS_NOTHING = {
    "put", "put_many", "put_once", "put_many_once", "put_level", "put_many_level", "cancel",
    "reschedule", "advance", "back", "to_due", "to_slot", "fault", "full", "crowd", "nothing",
    "reader", "backup", "settle_lease", "leases", "replace", "rounds", "every", "cancel_every",
    "put_spread", "put_many_spread", "cancel_many", "half", "scrap",
}  # fmt: skip
"""Operations after which a pull returns nothing new until a service has run."""
_AT_REST = {"advance", "to_due", "to_slot", "settle", "die", "nothing"}
"""Operations after which idle services stay idle unless the clock gives them work."""


class Operations(Reading, Halving, Scrapping):
    """A world that can run all operations."""

    def __init__(self, config: StoreConfig, allocations: Any, *, is_small: bool) -> None:
        super().__init__(config, allocations)
        self.is_small = is_small
        # time that passed on the clock with messages pending; one turn counts a year at most
        self.waited_ms = 0

    # --- running ---

    def do(self, op: Op) -> None:
        """Run one operation of a schedule. The model agrees with the store afterwards."""
        name, arguments = op[0], op[1:]
        self.note_op(op)
        before_ms, is_pending = self.clock.turned_ms, bool(self.model.puts)
        self._guarded(lambda: getattr(self, f"op_{name}")(*arguments))
        if is_pending:
            self.waited_ms += min(self.clock.turned_ms - before_ms, YEAR_MS // 12)
        if not self.is_dead and name not in SHOWS_NOTHING:
            self._guarded(self.look)
        if not self.is_dead and self.may_forget:
            self._guarded(self.check_removed)
        is_turn = self.image_count and self.disk.count % 3 == 0
        if is_turn and self._is_open and not self.attempts:
            check_image(self, self.disk.killed().cut(Random(self.disk.count)))

    def note_op(self, op: Op) -> None:
        self.count(f"op_{op[0]}")
        if op[0] not in _AT_REST:
            self.is_settled = False

    @property
    def put_count(self) -> int:
        return len(self.model.puts)

    def line(self, step: int, op: Op) -> str:
        """Return the text of an operation for a trace."""
        log = inside(self.store).log
        seen = {queue: len(known) for queue, known in self.model.seen.items()}
        return (
            f"{step} {op} log={log.end} durable={log.durable} calls={self.disk.count} "
            f"now={self.clock.now_ms} seen={seen} puts={len(self.model.puts)}\n"
        )

    # --- queries ---

    def op_wait(self, queue: list[Any], tag: str | None) -> None:
        if not self.is_dead:
            self.wait((queue[0], queue[1]), tag)

    def op_pending(self, _number: int) -> None:
        if not self.is_dead and not self.has_doubts:
            self.compare_pending()

    def op_pending_part(self, number: int) -> None:
        """Check that a listing by topic and time range is that part of the whole listing."""
        if self.is_dead:
            return
        everything = list(self.store.pending())
        topic = (None, "orders", "mail")[number % 3]
        first = everything[number % len(everything)].due_ms if everything else 0
        begin_ms, end_ms = first + number % 2, first + number % 5000
        found = list(self.store.pending(begin_ms=begin_ms, end_ms=end_ms, topic=topic))
        assert found == [
            one for one in everything
            if begin_ms <= one.due_ms < end_ms and topic in (None, one.topic)
        ]  # fmt: skip

    def op_filtered(self, number: int) -> None:
        wanted = [("Aa",), ("BB", "c"), ("Aa", "c")][number % 3]
        listed = ", ".join(f"'{tag}'" for tag in wanted)
        how = {"sql": f"TAGS IN ({listed})"} if number & 4 else {"tags": " || ".join(wanted)}
        if not self.is_dead:
            self.look_filtered(list(wanted), how)

    def op_query(self, number: int) -> None:
        if not self.is_dead and self.config.index_enabled and not self.has_doubts:
            self.query(("orders", "mail")[number % 2], f"key-{number % 5}")

    def op_query_part(self, number: int) -> None:
        """Check that a query by time range returns that part of the whole query."""
        if self.is_dead or not self.config.index_enabled:
            return
        asked = ("orders", "mail")[number % 2], f"key-{number % 5}"
        everything = self.store.query(*asked, max_count=1_000_000)
        begin_ms = everything[number % len(everything)].store_ms if everything else 0
        end_ms = begin_ms + number % 5000
        found = self.store.query(*asked, begin_ms=begin_ms, end_ms=end_ms, max_count=1_000_000)
        if self.store.query(*asked, max_count=1_000_000) != everything:
            return  # the query has written out more of the log, and made it visible
        assert found == [m for m in everything if begin_ms <= m.store_ms < end_ms]

    def op_offset_at(self, number: int) -> None:
        """Check that `offset_at` names the first message stored at or after a time.

        This holds also if the clock was set back.
        """
        for queue in self.model.seen if not self.is_dead else ():
            if self.store.topics().get(queue[0], 0) <= queue[1]:
                continue
            begin = self.begin_of(queue)
            times = [message.store_ms for message in self._pull_new(queue, begin)]
            wanted_ms = (times[number % len(times)] if times else 0) + number % 3 - 1
            at = self.store.offset_at(*queue, wanted_ms) - begin
            assert 0 <= at <= len(times), f"{queue}: beyond {begin} to {begin + len(times)}"
            assert max(times[:at], default=wanted_ms - 1) < wanted_ms, f"{queue}: one lies before"
            assert at == len(times) or times[at] >= wanted_ms, f"{queue}: it is from before"

    def op_query_one(self, number: int) -> None:
        puts = self.model.known()
        if puts and not self.is_dead and self.config.index_enabled and not self.has_doubts:
            self.query_one(puts[number % len(puts)])

    def op_again(self, _number: int) -> None:
        if not self.is_dead:
            self.look_again()

    def op_verify(self, _number: int) -> None:
        if not self.is_dead and not self.is_limited:
            report = self.store.verify()
            assert report.clean, report

    # --- time ---

    def op_advance(self, ms: int, sleeps: bool) -> None:
        if self.clock.now_ms + ms > START_MS + 300 * YEAR_MS:
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
        """Step a service as its thread does.

        A retryable error is tried again, and others stop the store.
        """
        try:
            return bool(self.services[name].step())
        except TimerStoreError as error:
            if not error.retryable:
                inside(self.store).fail_service(name, error)
                raise
            if not self.is_limited:
                raise AssertionError(f"an error without an injected fault: {error!r}") from error
            self.count("retries")
            return False
        except MemoryError as error:
            inside(self.store).fail_service(name, error)
            raise

    def op_step(self, names: list[str]) -> None:
        for name in names:
            self.step_one(name)

    def op_run(self, order: list[str], count: int) -> None:
        """Step the first service that has work, repeatedly."""
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
            self.model.check_settled(self.clock.now_ms, self.paced)
            self.check_rates()
            if self._recurs:
                self.ticks.settled(self.store, self.clock)
            self.is_settled = not self.paced
            if was_settled:
                self._check_burst(seen)

    @property
    def _may_be_late(self) -> bool:
        """Return whether the store waits for its next try after a full disk."""
        return bool(retry_ns_of(inside(self.store).schedule) > self.clock.monotonic_ns)

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
        """Check that messages which fell due in one turn of the clock, with idle services, are in
        due order.
        """
        for queue, known in self.model.seen.items():
            new = [self.model.puts[body] for body, _ in known[seen.get(queue, 0) :]]
            timers = [one for one in new if one.waited and not one.level]
            keys = [(one.due_ms, one.order) for one in timers]
            assert keys == sorted(keys), f"a burst out of order: {timers}"

    def op_flush(self) -> None:
        self.store.flush()

    def op_checkpoint(self) -> None:
        """Let all services become idle, and make a checkpoint."""
        self._settle_services()
        self.services["flush"].request_checkpoint()
        self._drain("flush")

    # --- deaths and faults ---

    def bury(self) -> None:
        """Take over the disk that is left, and check the crash images first."""
        super().bury()
        images, self.images = self.images, []
        for image in images if self._restoring is None else ():
            check_image(self, image)

    def op_reopen(self, downtime_ms: int, far_wheel: Any = None) -> None:
        self._close()
        self.config = replace(self.config, far_wheel=far_wheel or self.config.far_wheel)
        self.rest(downtime_ms)
        if not self.is_dead:
            self._open()
            if not self.is_dead:
                self.after_opening()

    def _close(self) -> None:
        self._is_open = self._is_open and self.is_dead
        self._durable = inside(self.store).log.durable
        self.may_scan_all = True
        try:
            self.store.close()
        finally:
            if not self.is_dead:
                self._durable = inside(self.store).log.durable

    def op_lose(self, which: int, kill: bool) -> None:
        """Lose some of the files that are derived from the log."""
        self._lose(self, self.store.close, which, kill)

    def op_failed_sync(self, op: Any, nth: int, which: int, number: int) -> None:
        """Let a sync fail, and cut the power later.

        The sync fails in an operation, the process dies, and some derived files are lost. The store
        is opened and works on. Then the power is cut: pages that were only marked clean since the
        failed sync are not on the disk.
        """
        self.heal()
        begin = inside(self.store).log.segments.begin
        self.disk.fault = Fault("sync", nth, errno.EIO, once=True)
        try:
            getattr(self, f"op_{op[0]}")(*op[1:])
            self.op_flush()
        except FailedError:
            self.count("failed sync, then a kill")
        self.heal()
        self.end_now(["kill", number])
        self.remove_derived(which, begin)
        self.may_scan_all = True
        self.raise_again([])
        self.op_settle()
        self.end_now(["cut", number])
        self.may_scan_all = True
        self.raise_again([])

    def remove_derived(self, which: int, begin: int) -> None:
        """Remove derived files while the store is closed. `begin` is the begin of its log."""
        names = [name for at, name in enumerate(_DERIVED) if which >> at & 1]
        # the segment number decides which counts of the file of ids are valid
        if "timerstore/counts" in names:
            self.lost_below = begin
        if begin > 0 and any(name.startswith("timerstore/") for name in names):
            # The end of a queue whose messages are all removed is known only to these files or to
            # its own.
            names = [name for name in names if name != "consumequeue"]
        self.has_lost_names |= bool(names)
        for name in names:
            self.disk.remove_tree(self.store_path() / name)

    # --- the end ---

    def finish(self, *, is_thorough: bool) -> None:
        """Remove all faults, let time pass, check that each message is delivered once, verify and
        close.
        """
        self.heal()
        if self.store_has_failed or self.attempts or self.has_doubts:
            self.end_now(["kill", 0])
            self.raise_again([])
        self.bring_to_end(is_thorough=is_thorough)
        if is_thorough:
            self.op_reopen(0)
            self.op_settle()
            self.compare_pending()
        report = self.store.verify()
        assert report.clean, report
        self.store.close()

    def bring_to_end(self, *, is_thorough: bool) -> None:
        """Deliver and read all messages, and settle all leases."""
        self.end_ticks()
        self.unpace()
        self.ingest_rest()
        self._come_to_rest()
        self.look_again()
        self.compare_pending()
        self.readers_finish()
        self.finish_leases()
        assert self.store.stats()["level_pending_messages"] == 0
        if is_thorough and self.config.index_enabled:
            self.query_all()

    @property
    def store_has_failed(self) -> bool:
        return inside(self.store).log.failed is not None

    def _come_to_rest(self) -> None:
        self.clock.advance(self.config.start_delay_ms)
        for _ in range(100):
            self._settle_services()
            dues = [one.due_ms for one in self.store.pending()]
            if not dues:
                break
            due_ms = dues[-1] if self._may_be_late else dues[len(dues) // 2]
            pause_ms = _RETRY_MS if self._may_be_late else 1
            self.clock.set(max(self.clock.now_ms + pause_ms, due_ms))
        assert not list(self.store.pending()), "still waiting after 100 turns"
        latest_ms = max((one.due_ms for one in self.model.waiting()), default=0)
        # messages of delay levels are not part of pending()
        self.clock.set(max(self.clock.now_ms, latest_ms) + DAY_MS)
        self._settle_services()
        self.look()
        self.model.check_settled(self.clock.now_ms)
