"""Restore the timing wheel and the timer log as of a watermark, or find that they are damaged."""

import numpy as np

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import counts_json
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.log.log_recovery import first_offsets
from timerstore._engine.log.scanned_records import IN_TIMER_TOPIC, Scan
from timerstore._engine.log.timer_states import TimerStates
from timerstore._engine.queues.routes import Routes
from timerstore._engine.storage.segments import Segments
from timerstore._engine.timer import chain_compaction, timer_recovery
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.wheel import Wheel
from timerstore.errors import CorruptError

# --- timer restore ---


class TimerRestore(NotCopyable):
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
        added = int(np.isin(scanned["kind"], IN_TIMER_TOPIC).sum())
        put = timer_recovery.timer_route(self._routes).queue.count + added
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


# --- queue recovery ---
# Recover the consume queues as of a watermark, or restart them for a rebuild from the log.


def recover_queues(
    routes: Routes, known_counts: counts_json.Pending, log_end: int, log_begin: int
) -> bool:
    """Recover each queue; return False if files are missing or a count is not as known.

    known_counts: queue counts by topic and queue number, as of the watermark.
    """
    for route in routes.by_index:
        if not route.queue.is_whole(log_begin):
            return False
        route.queue.recover(log_end, log_begin)
    for topic, queues in known_counts.items():
        for queue_id, count in queues.items():
            found = routes.get(topic, queue_id)
            if found is None or found.queue.count != count:
                return False
    return True


def restart_queues(
    routes: Routes,
    scanned: Scan,
    begin: int,
    end: int,
    known_counts: counts_json.Pending,
    now_ms: int,
) -> None:
    """Empty each queue and let it begin at its first record in the log [begin, end).

    A queue without a record in the log keeps its units. If retention removed all its records, it
    continues at its count in `known_counts`.

    Without such a count the timer topic begins at 0. Then neither a copy nor a watermark is left
    that vouches for the store's id, so the timer ids are those of a new store id.
    """
    for topic, queues in known_counts.items():
        for queue_id in queues:
            routes.make(topic, queue_id, now_ms)
    found = first_offsets(scanned)
    first = dict(found.by_route)
    for queue_id, offset in found.by_level.items():
        level = routes.get(SCHEDULE_TOPIC, queue_id)
        assert level is not None, "the scan has made this route"
        first[int(level.native.index)] = offset
    if found.timer is not None:
        first[int(timer_recovery.timer_route(routes).native.index)] = found.timer
    for route in routes.by_index:
        at = first.get(int(route.native.index))
        known = known_counts.get(route.topic, {}).get(route.queue_id, 0)
        if at is not None:
            route.queue.restart(at)
        elif route.queue.has_incompatible_files:
            route.queue.restart(known)
        else:
            route.queue.recover(end, begin)
            route.queue.cut()
            if route.queue.count < known:
                route.queue.restart(known)
