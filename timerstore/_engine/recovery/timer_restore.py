"""Restore the timing wheel and the timer log as of a watermark, or find that they are damaged."""

import numpy as np

from timerstore._engine.base.native import lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.log.scanned_records import Scan
from timerstore._engine.queues.routes import Routes
from timerstore._engine.storage.segments import Segments
from timerstore._engine.timer import chain_compaction, timer_recovery
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.timer_states import TimerStates
from timerstore._engine.timer.wheel import Wheel
from timerstore.errors import CorruptError


class TimerRestore(Owner):
    """Restores the timer files of one store."""

    def __init__(
        self,
        segments: Segments,
        wheel: Wheel,
        timer_log: TimerLog,
        far: FarWheel,
        routes: Routes,
    ) -> None:
        self._segments = segments
        self._wheel = wheel
        self._timer_log = timer_log
        self._far = far
        self._routes = routes

    def restore(
        self, mark: Watermark, states: TimerStates, scanned: Scan, *, is_unclean: bool
    ) -> bool:
        """Restore wheel and timer log as of a watermark; return False if they are damaged.

        states: the states of all timers at the end of the log.
        scanned: the records after the watermark.
        """
        if not self._wheel.checks.fits(mark.wheel_writes):
            return False
        if is_unclean:
            try:
                if mark.is_clean:
                    self._settle_chains(mark)
                timer_recovery.cut_back(self._wheel, self._timer_log, mark)
            except CorruptError:  # a unit is torn, or damaged after the watermark
                return False
        else:
            self._timer_log.load(mark.timer_log_end)
        return self._far.load(mark.far_number) and self._has_all_pending(mark, states, scanned)

    def _settle_chains(self, mark: Watermark) -> None:
        """Complete an interrupted close, so that wheel and timer log agree.

        The process was killed between writing the compacted chains and the wheel, or before the
        skipped units were overwritten. Raises CorruptError if a rewritten unit is torn.
        """
        self._timer_log.load(mark.timer_log_end)
        self._timer_log.check()
        timer_log = self._timer_log.segments  # its last sync may have failed or not run
        timer_log.rewrite(mark.timer_log_begin, mark.timer_log_end)
        timer_log.sync()
        chain_compaction.settle(self._wheel, self._timer_log, mark.replay_slot, mark.timer_log_end)

    def _has_all_pending(self, mark: Watermark, states: TimerStates, scanned: Scan) -> bool:
        """Return whether the wheel has a unit for each pending message that was linked.

        A wheel of an older version has no checksums. If it was damaged, it may have fewer units.
        More units do no harm, because the states say which messages are pending.
        """
        kinds = (lib.TS_KIND_TIMER, lib.TS_KIND_DELETE, lib.TS_KIND_UNUSABLE)
        put = timer_recovery.timer_route(self._routes).queue.count + int(
            np.isin(scanned["kind"], kinds).sum()
        )
        linked = int(states.native.pending) - (put - mark.timer_queue_offset)
        try:
            linked -= self._far.count_pending(states.native, self._segments.begin)
            if self._wheel.units_from(mark.replay_slot, mark.timer_log_end) >= linked:
                return True
            # The slots' counts are approximate after a cut back, and a delete record lowers the
            # count of its own slot wherever its message is linked. The chains are exact.
            chain_compaction.recount(
                self._wheel, self._timer_log, mark.replay_slot, mark.timer_log_end
            )
            return self._wheel.units_from(mark.replay_slot, mark.timer_log_end) >= linked
        except CorruptError:
            return False
