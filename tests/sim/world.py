"""One store on a simulated disk, beside its model: it dies, and is opened again.

A life ends at a chosen call of the disk, or at a fail point: there and then the disk is copied, as
a kill or a power cut leaves it. The call that runs goes on, on the disk that nobody will look at
again, so that its receipt is known to the model as of something that may or may not have happened;
then the copy is opened. So a life can end anywhere, inside recovery too, with nothing to unwind.

Holds:    after every operation the model agrees with what the store shows (tests/support/model.py).
Fails:    AssertionError where store and model differ; what the store raises passes through, but for
          errors that were asked for.
"""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from tests.sim.disk import SimDisk
from tests.sim.lottery import Chosen, of_schedule
from tests.sim.paths import SimPath
from tests.sim.seams import Allocations
from tests.support.driver import START_MS, Driver, key_of
from tests.support.ingesting import Version
from tests.support.lessees import Lessees
from tests.support.model import Model, Put, Queue
from tests.support.onces import Onces
from tests.support.readers import GROUP, Readers
from tests.support.rounds import Rounds
from tests.support.ticks import Ticks
from tests.support.turned_clock import TurnedClock
from timerstore import CancelResult, Message, PutReceipt, StoreConfig, TimerStore, failpoint
from timerstore.errors import FailedError, TimerStoreError
from timerstore.layout.handle import decode
from timerstore.message import KeptOrigin
from timerstore.testing import Stepper

ROOT: Any = SimPath("/store")


class SimClock(TurnedClock):
    """Remembers how late it was, and after how many puts."""

    __slots__ = ("onces", "peaks", "put_count", "turn_ms_max", "turned_ms")

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.turn_ms_max = 2**62  # forward, at once
        self.put_count = 0
        self.peaks = [(0, now_ms)]  # how many messages there were, and the time it was turned to
        self.turned_ms = 0  # forward, in all
        self.onces = Onces()

    def _turn(self, ms: int, *, relative: bool) -> None:
        before = self.now_ms
        ms = min(ms, self.turn_ms_max + (0 if relative else before))
        super()._turn(ms, relative=relative)
        self.turned_ms += max(0, self.now_ms - before)
        self.onces.turned(self.now_ms)
        self.peaks.append((self.put_count, self.now_ms))

    def suspend(self, ms: int) -> None:
        """The machine sleeps: the wall clock goes on, the monotonic one does not."""
        ms = min(ms, self.turn_ms_max)
        self._monotonic_ns -= ms * 1_000_000
        self.advance(ms)

    def forget_listeners(self) -> None:
        """Who listened is dead."""
        self._listeners.clear()

    def latest_since(self, put_count: int) -> int:
        """How late it ever was while there were so many messages, or more."""
        return max((now_ms for count, now_ms in self.peaks if count >= put_count), default=0)


class Attempt(NamedTuple):
    """A put that raised an error: nobody got a receipt."""

    queue: Queue
    body: bytes
    due_ms: int
    waits: bool
    level: int
    order: int
    name: str = ""  # a message id that the caller gave
    put_ms: int = 0


class World(Driver):
    """The store and all that can be done to it."""

    def __init__(self, config: StoreConfig, allocations: Allocations) -> None:
        self.root = ROOT
        self.config = config
        self.allocations = allocations
        self.clock = SimClock(START_MS)
        self.model = Model(is_each_level_alone=config.level_async)
        self.readers = Readers(self._begin_of)
        self.lessees, self.rounds, self.ticks = Lessees(), Rounds(), Ticks()
        self.disk = SimDisk()
        self.may_scan_all = True
        self.may_ring_early = False
        self.shown_ms = 0  # by the clock, at most, in the life before
        self._begun = 0  # of the clock, when this life began
        self.has_failed = False  # a call of this life failed for good
        self.reached: dict[str, int] = {}  # fail points
        self.counts: dict[str, int] = {}  # what happened how often
        self.is_dead = False
        self.attempts: list[Attempt] = []
        self.tried: list[Attempt] = []  # by the last call that puts
        self.images: list[SimDisk] = []  # of the last power cut, to be looked at
        self.image_count = 0  # how many of each
        self.born: dict[bytes, tuple[int, int]] = {}  # messages put before it; when
        self.async_bodies: set[bytes] = set()
        self.groups: list[list[bytes]] = []  # that were put all or none
        self.onces = self.clock.onces
        self.versions: dict[tuple[str, int], Version] = {}
        self.is_settled = False
        self._number = 0
        self._next: SimDisk | None = None
        self._how = "kill"
        self._lottery: Random | Chosen = Random(0)
        self._point: tuple[str, int] | None = None
        self._passed = 0
        self._durable = 0  # of the log, when this life ended or began
        self._was_cut = False
        failpoint.hook = self._reach

    def begin(self) -> None:
        """Open for the first time."""
        self._open()

    def count(self, name: str, more: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + more

    # --- the end of a life ---

    def _reach(self, name: str) -> None:
        self.reached[name] = self.reached.get(name, 0) + 1
        if self._point is not None and name == self._point[0] and not self.is_dead:
            self._passed += 1
            if self._passed == self._point[1]:
                self.end_life()

    def arm(self, trigger: list[Any], end: list[Any]) -> None:
        """The life ends at a trigger: the n-th call, the n-th write over a page's edge, of which
        some eighths are done, or a point passed for the n-th time.
        """
        self._how, self._lottery = end[0], of_schedule(end[1])
        self._passed = 0
        self.disk.on_crash = self.end_life
        if trigger[0] == "call":
            self.disk.crash_at, self.disk.torn = self.disk.count + trigger[1], 0
        elif trigger[0] == "torn":
            self.disk.torn_left, self.disk.torn = trigger[1], trigger[2]
        else:
            self._point = (trigger[1], trigger[2])

    def disarm(self) -> None:
        """It does not end by itself any more."""
        self._point = None
        self.disk.crash_at = self.disk.torn_left = 0

    def end_life(self) -> None:
        """Here and now; what runs goes on as a ghost."""
        if self.is_dead:
            return
        self.is_dead = True
        self.count("torn writes", self.disk.is_torn)
        self.disarm()
        if self._is_open:
            self._durable = self.store._log.durable
        self.count(self._how)
        if isinstance(self._lottery, Random):
            self.disk.lottery = self._lottery
        self._next = self.disk.killed()
        if self._how != "kill":
            whole = self._next
            self._next = whole.cut(self._lottery)
            self._was_cut = True
            self.images = [whole.cut(Random(k)) for k in range(self.image_count)]

    def bury(self) -> None:
        """Nobody looks at the old disk again; the new one is there to be opened."""
        assert self._next is not None
        self.clock.forget_listeners()
        self.disk, self._next = self._next, None
        self.is_dead = self._is_open = False

    def raise_again(self, deaths: list[list[Any]], downtime_ms: int = 0) -> None:
        """Open what is left; `deaths`: while it opens it dies again, and again."""
        self.rest(downtime_ms)
        for trigger, end in deaths:
            self.arm(trigger, end)
            self._open()
            self.disarm()
            if self.is_dead:
                self.count("deaths_in_recovery")
                self.bury()
                self.may_scan_all = True
            else:
                break
        else:
            self._open()
        self._after_opening()

    def rest(self, downtime_ms: int) -> None:
        """Nobody has it open for so long."""
        self.shown_ms = self.clock.highest_since(self._begun)
        if downtime_ms:
            self.clock.suspend(downtime_ms)

    def die(
        self, trigger: list[Any], end: list[Any], deaths: list[list[Any]], call: Callable[[], None]
    ) -> None:
        """Do something, and die meanwhile, or after it where the trigger is not met."""
        self.arm(trigger, end)
        try:
            call()
        finally:
            self.disarm()
        if not self._is_open and not self.is_dead:
            self._how, self._lottery = end[0], of_schedule(end[1])
        self.end_life()
        self.bury()
        self.raise_again(deaths, end[2])

    # --- opening ---

    _is_open = False

    def _path(self) -> SimPath:
        return ROOT

    def _open(self) -> None:
        anew = self.reached.get("recover_anew_begun", 0)
        is_ghost = self.is_dead  # it died while a backup was restored
        self.store = TimerStore(ROOT, self.config, clock=self.clock, threads=False)
        if self.reached.get("recover_anew_begun", 0) != anew:
            self.count("scans_of_everything")
            assert self.may_scan_all or is_ghost, "it did not go on from its watermark"
        self.store._opened.retention.guards.append(self._lowest_unseen)
        self._waiting = {}
        self.services = self.store.services()
        self.stepper = Stepper(self.store)
        self.is_settled = False
        if not self.is_dead:
            self._is_open = True
            self.may_scan_all = False
            self._begun = self.clock.mark()
            self.count("openings")

    def _after_opening(self) -> None:
        if self._was_cut:
            self._doubt_asynchronous()
        self.lessees.cut(self._durable if self._was_cut else 2**62)
        for one in list(self.model.puts.values()):
            if one.maybe_moved is not None:
                self._decide_moved(one)
        self._decide_attempts()
        self._decide_unsure()
        self._durable = self.store._log.durable
        self._was_cut = False
        self.check_ingested()
        self.readers.lost()
        self.readers.check(self.store)
        if self.config.visibility == "durable":
            self.look_again()
        self.look()

    def _answered_again(self, one: Put) -> None:
        self.async_bodies.discard(one.body)

    def _doubt_asynchronous(self) -> None:
        """A power cut may have taken what was acknowledged in the page cache, a suffix of it."""
        for one in self.model.puts.values():
            taken = one.receipt.log_offset >= self._durable
            if taken and one.body in self.async_bodies and not one.cancelled:
                one.sure = False
        if self.config.visibility == "written":
            self._rewind()

    def _rewind(self) -> None:
        """Who pulls what is only written may find less after a power cut."""
        for queue, known in self.model.seen.items():
            begin = self._begin_of(queue)
            now = [(m.body, m.delivered_ms) for m in self._pull_new(queue, begin)]
            same = begin + next(
                (at for at, (a, b) in enumerate(zip(known[begin:], now, strict=False)) if a != b),
                min(len(known) - begin, len(now)),
            )
            for body, _ in known[same:]:
                self.model.puts[body].place = None
            del known[same:]

    # --- what became of calls that were not answered ---

    def _found(self, queue: Queue, body: bytes) -> Message | None:
        assert self.config.index_enabled
        found = self.store.query(queue[0], key_of(body), max_count=1_000_000)
        same = [message for message in found if message.body == body]
        assert len(same) <= 1, f"twice: {same}"
        return same[0] if same else None

    def _receipt(self, message: Message) -> PutReceipt:
        origin = KeptOrigin(
            message.topic,
            message.message_id,
            self.config.broker_name,
            self.config.precision_ms,
        )
        timer_id = decode(message.handle).timer_id if message.handle else None
        return PutReceipt(
            origin,
            0,
            -1 if timer_id is None else timer_id,
            message.queue_id,
            None if message.waits else message.queue_offset,
            message.log_offset,
            message.due_ms,
        )

    def _decide_attempts(self) -> None:
        """What was put and raised an error is there, for good, or never comes."""
        attempts, self.attempts = self.attempts, []
        for one in attempts:
            if not self.config.index_enabled:
                continue
            message = self._found(one.queue, one.body)
            if message is not None:
                self.adopt(one, message)

    def adopt(self, one: Attempt, message: Message) -> None:
        """It was put, though the call raised an error."""
        receipt = self._receipt(message)
        self.model.put(one.queue, one.body, one.due_ms, receipt, level=one.level)
        put = self.model.puts[one.body]
        put.waited, put.order = one.waits, one.order
        if one.name:
            self.onces.put((one.queue[0], one.name), put, one.put_ms, self.clock.latest_ms)

    def _decide_unsure(self) -> None:
        """What was in flight is there, for good, or never comes; and nothing behind it did."""
        if not self.config.index_enabled:
            return
        unsure = [p for p in self.model.puts.values() if not p.sure and p.place is None]
        lost_at: int | None = None
        for one in sorted(unsure, key=lambda p: p.receipt.log_offset):
            message = self._found(one.queue, one.body)
            if message is not None:
                assert lost_at is None or one.level < 0, f"a hole at {lost_at}, before {one}"
                one.sure = True
            else:
                lost_at = lost_at if one.maybe_cancelled else one.receipt.log_offset
                del self.model.puts[one.body]
                self.onces.lost(one)
        for group in self.groups:
            count = sum(body in self.model.puts for body in group)
            assert count in (0, len(group)), f"{count} of a group of {len(group)}"
        for one in self.model.puts.values():
            if one.maybe_cancelled and not one.cancelled and one.place is None:
                message = self._found(one.queue, one.body)
                one.cancelled = message is None
                one.maybe_cancelled = False

    def _decide_moved(self, one: Put) -> None:
        """A reschedule in flight took place, or it did not; where nobody got its new handle, it is
        known by the time that was asked for.
        """
        assert one.maybe_moved is not None
        receipt, due_ms = one.maybe_moved
        ids = one.receipt.message_id
        waiting = [p for p in self.store.pending() if p.message_id == ids]
        new = self._pull_new(one.queue, len(self.model.seen[one.queue]))
        came = {m.body for m in new}
        if receipt is one.receipt and waiting and waiting[0].handle != one.receipt.handle:
            assert waiting[0].due_ms == due_ms, f"neither time: {waiting[0]}"
            message = self._found(one.queue, one.body)
            assert message is not None
            one.maybe_moved = self._receipt(message), due_ms
        if not one.sure and not waiting and one.body not in came:
            one.maybe_moved = None
            return
        if receipt is one.receipt and one.maybe_moved[0] is receipt:
            one.maybe_moved = None  # it waits as before, or came
            if one.body in came:
                message = next(m for m in new if m.body == one.body)
                if message.due_ms != one.due_ms:
                    self.model.moved(one, self._receipt(message), message.due_ms)
            return
        self.model.decide_moved(one, [p.handle for p in waiting], came)

    @property
    def _has_doubts(self) -> bool:
        """Whether a call failed whose outcome the model does not know."""
        puts = self.model.puts.values()
        return bool(self.attempts) or any(
            one.maybe_cancelled or one.maybe_moved is not None or not one.sure for one in puts
        )

    # --- errors that were asked for ---

    @property
    def is_limited(self) -> bool:
        """Whether an error may be the disk's, or the memory's, doing."""
        fault = self.disk.fault or self.allocations.fault
        return fault is not None or self.disk.free_pages is not None

    def heal(self) -> None:
        """Disk and memory are well again."""
        for fault in (self.disk.fault, self.allocations.fault):
            if fault is not None and fault.hits:
                self.count(f"fault met: {fault.kind}")
        self.disk.fault = self.allocations.fault = None
        self.disk.free_pages = None

    def after_error(self, error: Exception, seed: int) -> None:
        """The call raised what was asked for: once a store has failed, it stays so."""
        assert self.is_limited, f"an error that nobody asked for: {error!r}"
        self.count("errors")
        self.may_scan_all = self.has_failed = True
        is_memory = isinstance(error, MemoryError)
        if self.is_dead:
            return
        if self._is_open and self.store._log.failed is not None:
            self.count("poisoned")
            try:
                self.store.put("orders", b"after the store has failed", flush="async")
            except FailedError:
                pass
            else:
                raise AssertionError("a put was taken after the store had failed")
        elif self._is_open and isinstance(error, TimerStoreError) and error.retryable:
            return  # nothing is lost: go on
        assert self.disk.sync_failures == 0 or not self._is_open or self.store._log.failed, (
            "a sync failed, and the store goes on"
        )
        self.heal()
        if is_memory and self._is_open:
            self.end_now(["kill", seed])
        else:
            self.end_now([Random(seed).choice(("kill", "drop", "cut")), seed])
        self.raise_again([])

    def end_now(self, end: list[Any]) -> None:
        """Die between two calls. "drop": the process dies, and clean pages leave the cache."""
        how = end[0]
        self._how, self._lottery = ("kill" if how == "drop" else how), of_schedule(end[1])
        self.count("drop", how == "drop")
        self.end_life()
        assert self._next is not None
        if how == "drop" and isinstance(self._lottery, Random):
            self._next.drop_cache(self._lottery)
            self._was_cut = True
        self.bury()

    # --- never early ---

    def note_body(self, body: bytes) -> None:
        """A message is put, or put off, now."""
        self.born[body] = self.clock.put_count, self.clock.now_ms
        self.clock.put_count += 1

    def check_not_early(self, messages: list[Message]) -> None:
        """Of each message the clock has shown its time since it was put."""
        for message in messages:
            one = self.model.puts.get(message.body)
            if one is not None and message.body in self.born:
                before, now_ms = self.born[message.body]
                latest = max(now_ms, self.clock.latest_since(before + 1))
                assert latest >= one.due_ms, f"early: it was {latest} at most: {message}"


__all__ = ["GROUP", "CancelResult", "World"]
