"""Remove dead units of the far wheel, so that its log does not grow without limit.

Thread safety: enqueue-put calls it, and closing does after the services have stopped.
Locking: the linker's lock, then the wheel's lock.
Raises: FullError; nothing was changed. FailedError if units could not be written. CorruptError if a
    unit is damaged.
See also: docs/decisions/0003-timing-wheel.md
"""

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_arrays import Records
from timerstore._engine.timer.timer_states import TimerStates
from timerstore._engine.timer.wheel import Wheel
from timerstore.errors import FailedError, FullError


class FarTidier(Owner):
    """Tidies the far wheel of one store."""

    def __init__(
        self,
        lock: Lock,
        log: CommitLog,
        wheel: Wheel,
        far: FarWheel,
        states: TimerStates,
        open_slot: OpenSlot,
    ) -> None:
        """Create the tidier of a linker, whose lock is `lock`."""
        self._lock = lock
        self._log = log
        self._wheel = wheel
        self._far = far
        self._states = states
        self._open_slot = open_slot

    def tidy(self) -> bool:
        """Remove a far log file that is not needed, or copy live units if most units are dead.

        Return whether there was anything to do.

        Raises:
            FullError: the disk is full; nothing was changed.
            FailedError: units could not be written; the store has failed.
            CorruptError: a unit of the far wheel is damaged.
        """
        far = self._far
        self.drop_overflow()
        if far.unlink():
            reach("far_unlinked")
            return True
        with self._lock:
            with self._wheel.lock:
                slot = far.next_to_copy(self._open_slot.overflow_count)
            if slot is None:
                return False
            units = far.first_of(slot)
            alive = units.copy()
            out = ffi.from_buffer("ts_far_unit[]", alive)
            begin = self._log.segments.begin
            count = lib.ts_far_pending(self._states.native, begin, out, len(alive))
            far.reserve(count)
            with self._wheel.lock:
                far.take_off(slot, units)
                if count:
                    self._copy(alive[:count])
        reach("far_tidied")
        return True

    def drop_overflow(self) -> None:
        """Drop the overflow's units if none of its messages is pending."""
        if not self._far.has_overflow:
            return
        with self._wheel.lock:
            if not self._open_slot.overflow_count:
                self._far.drop_overflow()

    def _copy(self, units: Records) -> None:
        try:
            self._far.add(units)
        except FullError as error:
            raise FailedError(
                f"far units could not be written: {error}", where=self._far.segments.directory
            ) from error
