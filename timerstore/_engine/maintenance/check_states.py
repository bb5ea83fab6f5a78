"""Check the states of timers and levels in memory, in the side files and in the log.

In an open store the fold of the log at its end must equal memory, and the fold at the watermark
must equal the side files. Of a directory only the side files are checked.
"""

import numpy as np

from timerstore._engine.format import counts_json
from timerstore._engine.format.counts_json import Counts
from timerstore._engine.log.fold import fold
from timerstore._engine.log.scanned_records import Scan
from timerstore._engine.maintenance import id_states
from timerstore._engine.maintenance.check_log import LogResult
from timerstore._engine.maintenance.check_side import (
    check_counts_file,
    check_message_ids,
    check_states_file,
)
from timerstore._engine.maintenance.expected_states import Expected
from timerstore._engine.maintenance.findings import place
from timerstore._engine.maintenance.id_states import NAMES, LogFold
from timerstore._engine.maintenance.live_view import scan_log
from timerstore._engine.maintenance.store_view import LiveStore, Memory, StoreView

_MATCHED_RECORDS_MAX = 2_000_000
"""A log with timers of others is matched whole up to so many records (250 MB). A longer one is
folded by id only."""


def check_states(view: StoreView, log: LogResult) -> None:
    """Compare memory, side files and log, as far as the view has them."""
    if view.mark is not None and view.side is not None:
        counts = counts_json.read_counts(view.side.counts, view.mark.log_end, view.mark.sequence)
    else:
        counts = None
    if view.engine is None or view.memory is None:
        check_states_file(view, None, only_known=False, floor=0)
        check_counts_file(view, counts, None, None)
        check_message_ids(view, counts)
    elif log.is_damaged:  # then the states that the log requires are not known
        check_states_file(view, None, only_known=False, floor=0)
    else:
        _OpenStates(view, view.engine, view.memory, log, counts).check()


class _OpenStates:
    """Compares the states of an open store."""

    def __init__(
        self,
        view: StoreView,
        engine: LiveStore,
        memory: Memory,
        log: LogResult,
        counts: Counts | None,
    ) -> None:
        assert log.fold is not None
        self._view = view
        self._engine = engine
        self._findings = view.findings
        self._memory = memory
        self._routes = engine.routes
        self._log = log
        self._fold: LogFold = log.fold
        self._counts = counts

    def check(self) -> None:
        """Compare everything."""
        log, by_id = self._log, self._fold
        at_mark, at_end, only_known = log.at_mark, log.at_end, False
        assert at_mark is not None
        assert at_end is not None
        if by_id.foreign or by_id.levels.foreign:
            scanned = self._scan()
            if scanned is None:
                only_known = True
                at_mark, at_end = at_mark._replace(pending=None), at_end._replace(pending=None)
            else:
                at_mark, at_end = self._matched(scanned)
        else:
            self._add_doubled()
        at_mark = at_mark.with_inherited(*log.inherited)
        self._compare_memory(at_end, only_known=only_known)
        check_states_file(self._view, at_mark.states, only_known=only_known, floor=by_id.floor)
        if at_mark.pending is not None:
            wanted = {"pending": at_mark.pending, "level_pending": at_mark.level_pending}
            check_counts_file(self._view, self._counts, self._routes, wanted)
            self._compare_levels(at_mark, at_end)

    def _scan(self) -> Scan | None:
        """Return the records of the whole log, unless they are too many."""
        parts, total = [], 0
        for part, _, _ in scan_log(self._engine, self._view.log_begin, self._view.log_end):
            parts.append(part.copy())
            total += len(part)
            if total > _MATCHED_RECORDS_MAX:
                return None
        return np.concatenate(parts)

    def _matched(self, scanned: Scan) -> tuple[Expected, Expected]:
        """Fold a log in which a broker wrote, by matching deliveries with their sources."""
        by_id, store_id = self._fold, self._fold.store_id
        found, log_begin = fold(scanned, store_id), self._view.log_begin
        at_end = Expected.of_fold(found, scanned, by_id)
        before = scanned[scanned["log_offset"] < self._log.mark_end]
        at_mark = at_end
        if len(before) < len(scanned):
            at_mark = Expected.of_fold(fold(before, store_id), before, by_id)
        rows = [("a delivery beyond its source", found.duplicate_rows)]
        if not log_begin:  # else retention removed the sources before the log's begin
            rows.append(("a delivery without a source before it", found.orphan_rows))
        for what, numbers in rows:
            for row in numbers.tolist():
                offset = int(scanned["log_offset"][row])
                self._add(what, offset, "a timer that was pending")
        return at_mark, at_end

    def _add_doubled(self) -> None:
        for log_offset, timer_id, is_delivery in self._fold.doubled:
            what = "a delivery beyond its source" if is_delivery else "a second delete record"
            self._add(what, log_offset, f"timer id {timer_id} still pending there")
        for log_offset, timer_id in self._fold.orphans:
            what = "a delivery without a source before it"
            self._add(what, log_offset, f"a source of timer id {timer_id}")

    def _add(self, what: str, log_offset: int, wanted: str) -> None:
        where = place(self._engine.log.segments, log_offset)
        self._findings.add(what, where, wanted, "none")

    def _compare_memory(self, expected: Expected, *, only_known: bool) -> None:
        memory = self._memory
        where = f"memory at log end {memory.log_end}"
        for timer_id, one, other in id_states.differing(
            expected.states, memory.states, only_known=only_known, floor=self._fold.floor
        ):
            self._findings.add(f"state of timer id {timer_id}", where, NAMES[one], NAMES[other])
        counted = sum(len(ids) for ids in id_states.pending(memory.states))
        if counted != memory.pending_timers:
            self._findings.add("number of pending timers", where, counted, memory.pending_timers)
        if expected.pending is None:
            return
        for name, log_says, memory_says in (
            ("pending", expected.pending, memory.pending),
            ("pending on levels", expected.level_pending, memory.level_pending),
        ):
            for index in log_says.keys() | memory_says.keys():
                wanted, got = log_says.get(index, 0), memory_says.get(index, 0)
                if wanted != got:
                    route = self._routes.by_index[index]
                    what = f"{name} of topic {route.topic} queue {route.queue_id}"
                    self._findings.add(what, where, wanted, got)

    def _compare_levels(self, at_mark: Expected, at_end: Expected) -> None:
        """Compare the delivered messages of fixed levels in memory and in the counts file."""
        memory = self._memory
        checks = [(f"memory at log end {memory.log_end}", at_end.levels, memory.levels)]
        if self._counts is not None:
            where = str(self._view.tree.counts)
            checks.append((where, at_mark.levels, self._counts.levels))
        for where, wanted, got in checks:
            for queue_id, one, other in self._fold.levels.differing(wanted, got):
                self._findings.add(f"delivered of level {queue_id + 1}", where, one, other)
