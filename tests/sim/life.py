"""Run a process on a simulated disk and clock, and end it by a kill or a power cut.

A life is the time from an opening to a death. It ends at a chosen call of the disk or at a fail
point. The simulator copies the disk there, as a kill or a power cut leaves it. The running call
continues as a ghost on the old disk, which is not used again. So its receipt is known to the model,
for a call that may have happened or not. Then the copy is opened. In this way a life can end
anywhere, also during recovery, and no call stack has to be unwound.

Invariants:
    1. This module knows nothing of stores. Subclasses record their knowledge at the end of a life
       (`note_end`), and open their stores again (`_open_stores`, `after_opening`).
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
    """A clock that remembers the latest time it showed, and the number of puts at that time."""

    __slots__ = ("onces", "peaks", "put_count", "turn_ms_max", "turned_ms")

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.turn_ms_max = 2**62  # largest step forward
        self.put_count = 0
        # pairs of the number of messages and the time to which the clock was set
        self.peaks = [(0, now_ms)]
        self.turned_ms = 0  # sum of all steps forward
        self.onces = Onces()

    def _turn(self, ms: int, *, relative: bool) -> None:
        before = self.now_ms
        ms = min(ms, self.turn_ms_max + (0 if relative else before))
        super()._turn(ms, relative=relative)
        self.turned_ms += max(0, self.now_ms - before)
        self.onces.turned(self.now_ms)
        self.peaks.append((self.put_count, self.now_ms))

    def suspend(self, ms: int) -> None:
        """Let the machine sleep: the wall clock goes on, and the monotonic clock stops."""
        ms = min(ms, self.turn_ms_max)
        self._monotonic_ns -= ms * 1_000_000
        self.advance(ms)

    def listeners(self) -> list[Callable[[], None]]:
        """Return the listeners that are called after a turn."""
        return list(self._listeners)

    def listen_again(self, listeners: list[Callable[[], None]]) -> None:
        """Replace the listeners."""
        self._listeners[:] = listeners

    def forget_listeners(self) -> None:
        """Remove the listeners of a process that died."""
        self._listeners.clear()

    def latest_since(self, put_count: int) -> int:
        """Return the latest time shown while there were at least this many messages."""
        return max((now_ms for count, now_ms in self.peaks if count >= put_count), default=0)


class Life:
    """The process that runs on one disk, and dies with it."""

    def __init__(self, allocations: Allocations) -> None:
        self.allocations = allocations
        self.clock = SimClock(START_MS)
        self.disk = SimDisk()
        self.may_scan_all = True
        self.shown_ms = 0  # latest time that the clock showed in the previous life
        self._begun = 0  # the clock's mark when this life began
        self.has_failed = False  # a call of this life failed, and the store rejects later ones
        self.reached: dict[str, int] = {}  # fail points
        self.counts: dict[str, int] = {}  # number of events by name
        self.is_dead = False
        self.images: list[SimDisk] = []  # of the last power cut, to be checked
        self.image_count = 0  # number of images for each cut
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

    # --- open stores ---

    def _open_stores(self) -> None:
        raise NotImplementedError

    def note_end(self) -> None:
        """Record the knowledge of the open stores at the end of a life."""
        raise NotImplementedError

    def after_opening(self) -> None:
        raise NotImplementedError

    def after_error(self, error: Exception, seed: int) -> None:
        raise NotImplementedError

    def _open(self) -> None:
        anew = self.reached.get("recover_rebuild_begun", 0)
        is_ghost = self.is_dead  # the process died while it restored a backup
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
        """End the life at a trigger.

        A trigger is the n-th call, the n-th write across the edge of a page, of which some eighths
        are done, or the n-th time that a fail point is passed.
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
        """Cancel the trigger."""
        self._point = None
        self.disk.crash_at = self.disk.torn_left = 0

    def end_life(self) -> None:
        """End the life now. The running call continues as a ghost."""
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
        """Drop the old disk, and take the copy in its place."""
        assert self._next is not None
        self.clock.forget_listeners()
        self.disk, self._next = self._next, None
        self.is_dead = self._is_open = False

    def raise_again(self, deaths: list[list[Any]], downtime_ms: int = 0) -> None:
        """Open the disk that is left.

        Each entry of `deaths` ends the process once more during an opening.
        """
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
        """Let time pass while the store is closed."""
        self.shown_ms = self.clock.highest_since(self._begun)
        if downtime_ms:
            self.clock.suspend(downtime_ms)

    def die(
        self, trigger: list[Any], end: list[Any], deaths: list[list[Any]], call: Callable[[], None]
    ) -> None:
        """Make a call, and die during it, or after it if the trigger is not reached."""
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
        """Die between two calls. With "drop", the process dies and clean pages leave the cache."""
        how = end[0]
        self._how, self._lottery = ("kill" if how == "drop" else how), of_schedule(end[1])
        self.count("drop", how == "drop")
        self.end_life()
        assert self._next is not None
        if how == "drop" and isinstance(self._lottery, Random):
            self._next.drop_cache(self._lottery)
            self.was_cut = True
        self.bury()

    # --- injected errors ---

    @property
    def is_limited(self) -> bool:
        """Return whether an error may come from an injected fault or from a full disk."""
        fault = self.disk.fault or self.allocations.fault
        return fault is not None or self.disk.free_pages is not None

    def heal(self) -> None:
        """Remove all faults from disk and memory."""
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
        """Return the number of messages."""
        raise NotImplementedError

    # --- operations ---

    def note_op(self, op: Op) -> None:
        """Record the begin of an operation, also of one inside another operation."""
        raise NotImplementedError

    def _lose(self, one: Any, close: Callable[[], None], which: int, kill: bool) -> None:
        """Remove some files of one store while it is closed."""
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
        """Die, and let a call fail during the next opening."""
        self.heal()
        self.end_now(end[:2])
        self.op_fault(*fault)
        self._guarded(lambda: self.raise_again([], end[2]))
        self.heal()

    def op_write_back(self, number: int) -> None:
        """Write back random pages, as the kernel may. So after a cut, pages have different ages."""
        self.disk.write_back(Random(number))

    def op_full(self, pages: int) -> None:
        self.disk.free_pages = pages if self.disk.free_pages is None else None
