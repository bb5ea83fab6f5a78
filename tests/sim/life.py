"""A disk and a clock, and how what runs on them ends.

A life ends at a chosen call of the disk, or at a fail point: there and then the disk is copied, as
a kill or a power cut leaves it. The call that runs goes on, on the disk that nobody will look at
again, so that its receipt is known to the model as of something that may or may not have happened;
then the copy is opened. So a life can end anywhere, inside recovery too, with nothing to unwind.

Holds:    knows nothing of stores: what is open says what it knew at its end (`note_end`), and how
          it is opened again (`_open_stores`, `after_opening`).
"""

from collections.abc import Callable
from random import Random
from typing import Any

from tests.sim.disk import Fault, SimDisk
from tests.sim.drawing import Op
from tests.sim.lottery import Chosen, of_schedule
from tests.sim.paths import SimPath
from tests.sim.seams import Allocations
from tests.support.driver import START_MS
from tests.support.inside import inside
from tests.support.models.dedupe import Onces
from tests.support.turned_clock import TurnedClock
from timerstore._engine.base import failpoints
from timerstore.errors import FailedError, FullError

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

    def listeners(self) -> list[Callable[[], None]]:
        """Those that are called after a turn."""
        return list(self._listeners)

    def listen_again(self, listeners: list[Callable[[], None]]) -> None:
        """Only these are called from now on."""
        self._listeners[:] = listeners

    def forget_listeners(self) -> None:
        """Who listened is dead."""
        self._listeners.clear()

    def latest_since(self, put_count: int) -> int:
        """How late it ever was while there were so many messages, or more."""
        return max((now_ms for count, now_ms in self.peaks if count >= put_count), default=0)


class Life:
    """What runs on one disk, and dies with it."""

    def __init__(self, allocations: Allocations) -> None:
        self.allocations = allocations
        self.clock = SimClock(START_MS)
        self.disk = SimDisk()
        self.may_scan_all = True
        self.shown_ms = 0  # by the clock, at most, in the life before
        self._begun = 0  # of the clock, when this life began
        self.has_failed = False  # a call of this life failed for good
        self.reached: dict[str, int] = {}  # fail points
        self.counts: dict[str, int] = {}  # what happened how often
        self.is_dead = False
        self.images: list[SimDisk] = []  # of the last power cut, to be looked at
        self.image_count = 0  # how many of each
        self._is_open = False
        self._next: SimDisk | None = None
        self._how = "kill"
        self._lottery: Random | Chosen = Random(0)
        self._point: tuple[str, int] | None = None
        self._passed = 0
        self.was_cut = False
        failpoints.hook = self._reach

    def count(self, name: str, more: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + more

    # --- what is open ---

    def _open_stores(self) -> None:
        raise NotImplementedError

    def note_end(self) -> None:
        """It ends here; what is open says what it knew."""
        raise NotImplementedError

    def after_opening(self) -> None:
        raise NotImplementedError

    def after_error(self, error: Exception, seed: int) -> None:
        raise NotImplementedError

    def _open(self) -> None:
        anew = self.reached.get("recover_rebuild_begun", 0)
        is_ghost = self.is_dead  # it died while a backup was restored
        self._open_stores()
        if self.reached.get("recover_rebuild_begun", 0) != anew:
            self.count("scans_of_everything")
            assert self.may_scan_all or is_ghost, "it did not go on from its watermark"
        if not self.is_dead:
            self._is_open = True
            self.may_scan_all = False
            self._begun = self.clock.mark()
            self.count("openings")

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
            self.note_end()
        self.count(self._how)
        if isinstance(self._lottery, Random):
            self.disk.lottery = self._lottery
        self._next = self.disk.killed()
        if self._how != "kill":
            whole = self._next
            self._next = whole.cut(self._lottery)
            self.was_cut = True
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
        self.after_opening()

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

    def end_now(self, end: list[Any]) -> None:
        """Die between two calls. "drop": the process dies, and clean pages leave the cache."""
        how = end[0]
        self._how, self._lottery = ("kill" if how == "drop" else how), of_schedule(end[1])
        self.count("drop", how == "drop")
        self.end_life()
        assert self._next is not None
        if how == "drop" and isinstance(self._lottery, Random):
            self._next.drop_cache(self._lottery)
            self.was_cut = True
        self.bury()

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

    def _guarded(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except (FullError, FailedError, MemoryError) as error:
            self.after_error(error, self.put_count)

    @property
    def put_count(self) -> int:
        """How many messages there are."""
        raise NotImplementedError

    # --- operations ---

    def note_op(self, op: Op) -> None:
        """An operation begins; inside another one, too."""
        raise NotImplementedError

    def _lose(self, one: Any, close: Callable[[], None], which: int, kill: bool) -> None:
        """Some of the files of one store are gone while nobody has it open."""
        self.heal()
        begin = inside(one.store).log.segments.begin
        if kill:
            self.end_now(["kill", 0])
        else:
            close()
            self.clock.forget_listeners()
            self._is_open = False
        one.remove_derived(which, begin)
        self.may_scan_all = True
        self.raise_again([])

    def op_nothing(self) -> None:
        pass

    def op_die(self, trigger: Op, end: Op, deaths: list[Op], op: Op) -> None:
        self.heal()
        self.note_op(op)
        if op[0] == "reopen" and trigger[0] == "point" and trigger[1].startswith("close"):
            self.may_scan_all = True
        call = getattr(self, f"op_{op[0]}")
        self.die(trigger, end, deaths, lambda: call(*op[1:]))

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

    def op_write_back(self, number: int) -> None:
        """The kernel writes back what it likes. So after a cut pages are of different ages."""
        self.disk.write_back(Random(number))

    def op_full(self, pages: int) -> None:
        self.disk.free_pages = pages if self.disk.free_pages is None else None
