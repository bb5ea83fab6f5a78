"""Check the states of timers and levels in memory, in the side files and in the log.

In an open store the fold of the log at its end must equal memory, and the fold at the watermark
must equal the side files. Of a directory only the side files are checked.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from timerstore._engine.format import (
    counts_json,
    delay_offset_json,
    recurring_json,
    state_sector,
    timer_metrics_json,
    topics_json,
    watermark,
)
from timerstore._engine.format.consumer_offset_json import ConsumerOffsets
from timerstore._engine.format.counts_json import Counts
from timerstore._engine.format.state_sector import CHUNK_IDS, PAYLOAD_BYTES, SECTOR_BYTES
from timerstore._engine.format.store_paths import backup_of
from timerstore._engine.log.fold import fold
from timerstore._engine.log.scanned_records import Scan
from timerstore._engine.maintenance import expected_states
from timerstore._engine.maintenance.check_log import LogResult
from timerstore._engine.maintenance.expected_states import NAMES, Expected, LogFold, Packed
from timerstore._engine.maintenance.live_view import scan_log
from timerstore._engine.maintenance.store_view import LiveStore, Memory, StoreView, at_offset, place
from timerstore._engine.queues.message_ids import read_ids
from timerstore._engine.read.consumer_offsets import offsets_past_end, read_file
from timerstore.errors import TimerStoreError

# --- check side ---
# Check our own side files: watermark, states, counts and message ids of the last checkpoint.


_STATES_AT = 32  # in a sector


def check_watermark(view: StoreView) -> None:
    """Check that the file of an open store has its last completed watermark, and that this speaks
    of nothing that does not exist. The watermark of a directory was read already.
    """
    mark, side, engine, findings = view.mark, view.side, view.engine, view.findings
    if mark is None or side is None or engine is None:
        return
    config, path = view.config, view.tree.watermark
    try:
        found = watermark.read(side.watermark or b"")
    except TimerStoreError as error:
        findings.raised("watermark", path, error)
        return
    if found != mark:
        at = mark.sequence % 2 * watermark.SLOT_BYTES
        findings.add("watermark", at_offset(path, at), mark, found)
    wheel, timer_log = engine.wheel, engine.timer_log
    limits = (
        ("log end", mark.log_end, engine.log.durable),
        ("timer log end", mark.timer_log_end, timer_log.end),
        ("timer queue offset", mark.timer_queue_offset, timer_log.linked_offset),
        ("timer queue offset", mark.timer_queue_offset, engine.timer_route.queue.count),
        # A clock that is set back moves the wheel's position before the next checkpoint does.
        ("read slot", mark.replay_slot, max(wheel.read_slot, wheel.completed_replay_slot)),
        ("timer id end", mark.timer_id_end, int(engine.log.native.timer_route.next_offset)),
    )
    for what, got, limit in limits:
        if got > limit:
            findings.add(f"watermark: {what}", path, f"at most {limit}", got)
    same = (
        ("log begin", mark.log_begin, engine.log.segments.begin),
        ("timer log begin", mark.timer_log_begin, timer_log.segments.begin),
        ("store id", mark.store_id, engine.store_id),
        ("precision", mark.precision_ms, config.precision_ms),
        ("wheel slot count", mark.wheel_slot_count, config.wheel_slot_count),
    )
    for what, got, wanted in same:
        if got != wanted:
            findings.add(f"watermark: {what}", path, wanted, got)


def check_states_file(
    view: StoreView, counts: Counts | None, wanted: Packed | None, *, only_known: bool, floor: int
) -> None:
    """Check that each chunk has a valid sector, that their digest is the watermark's, and that the
    states are those that the log requires there (`wanted`; None: not known).
    """
    mark, side, findings, path = view.mark, view.side, view.findings, view.tree.state
    if mark is None or side is None:
        return
    raw = side.state
    if raw is None:
        findings.add(f"states{view.derived()}", path, "a file", "none")
        return
    crcs = np.zeros(mark.state_chunk_count, np.uint64)
    states = np.zeros(mark.state_chunk_count * PAYLOAD_BYTES, np.uint8)
    which = np.zeros(mark.state_chunk_count, np.int64)
    is_whole = True
    past = {c for pair in (() if counts is None else counts.past) for c in range(*pair)}
    for chunk in range(mark.state_chunk_count):
        if chunk in past:
            continue
        at = 2 * chunk * SECTOR_BYTES
        picked = state_sector.pick(raw[at : at + 2 * SECTOR_BYTES], chunk, mark.log_end)
        if picked is None:
            is_whole = False
            findings.add(
                f"states: chunk {chunk} has no valid sector{view.derived()}",
                at_offset(path, at),
                f"one whose CRC fits, of a log end up to {mark.log_end}",
                "none",
            )
            continue
        crcs[chunk], which[chunk] = picked.crc, picked.which
        begin = chunk * PAYLOAD_BYTES
        states[begin : begin + PAYLOAD_BYTES] = np.frombuffer(picked.payload, np.uint8)
    digest = state_sector.digest(crcs)
    if is_whole and digest != mark.state_digest:
        findings.add(f"states: digest{view.derived()}", path, mark.state_digest, digest)
    findings.count("state chunks", len(crcs))
    if wanted is None or not is_whole:
        return
    for timer_id, one, other in expected_states.differing(
        wanted, states, only_known=only_known, floor=floor
    ):
        chunk, k = divmod(timer_id, CHUNK_IDS)
        at = 2 * chunk * SECTOR_BYTES + _STATES_AT + k // 4
        if chunk < len(which):
            at += int(which[chunk]) * SECTOR_BYTES
        findings.add(
            f"states: timer id {timer_id} as of log end {mark.log_end}",
            at_offset(path, at),
            NAMES[one],
            NAMES[other],
        )


def check_counts_file(
    view: StoreView, entry: Counts | None, wanted: Mapping[str, Mapping[int, int]] | None
) -> None:
    """Check that the file has the counts of the watermark, and that they are those that the log
    requires: by name, then by index of route. `wanted` is None if that is not known.
    """
    mark = view.mark
    if mark is None or view.side is None:
        return
    what = f"counts as of log end {mark.log_end}"
    if entry is None:
        view.findings.add(f"{what}{view.derived()}", view.tree.counts, "an entry", "no entry")
        return
    if wanted is None or view.engine is None:
        return
    for name, by_index in wanted.items():
        found = getattr(entry, name)
        expected: counts_json.Pending = {}
        for index, count in by_index.items():
            if count:
                route = view.engine.routes.by_index[index]
                expected.setdefault(route.topic, {})[route.queue_id] = count
        if found != expected:
            view.findings.add(f"{what}: {name}", view.tree.counts, expected, found)


def check_message_ids(view: StoreView, entry: Counts | None) -> None:
    """Check that a closed store has the message ids that its counts speak of."""
    if entry is None or view.disk.exists(view.tree.abort):
        return
    if read_ids(view.disk, view.tree, entry.ids) is None:
        path, wanted = view.tree.ids(entry.ids.number), f"{entry.ids.bytes} bytes as written"
        view.findings.add("message ids", path, wanted, "others, or fewer")


# --- check states ---


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
        check_states_file(view, counts, None, only_known=False, floor=0)
        check_counts_file(view, counts, None)
        check_message_ids(view, counts)
    elif log.is_damaged:  # then the states that the log requires are not known
        check_states_file(view, counts, None, only_known=False, floor=0)
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
        self._memory = memory
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
        check_states_file(
            self._view, self._counts, at_mark.states, only_known=only_known, floor=by_id.floor
        )
        if at_mark.pending is not None:
            wanted = {"pending": at_mark.pending, "level_pending": at_mark.level_pending}
            check_counts_file(self._view, self._counts, wanted)
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
        self._view.findings.add(what, where, wanted, "none")

    def _compare_memory(self, expected: Expected, *, only_known: bool) -> None:
        memory = self._memory
        where = f"memory at log end {memory.log_end}"
        for timer_id, one, other in expected_states.differing(
            expected.states, memory.states, only_known=only_known, floor=self._fold.floor
        ):
            self._view.findings.add(
                f"state of timer id {timer_id}", where, NAMES[one], NAMES[other]
            )
        counted = sum(len(ids) for ids in expected_states.pending(memory.states))
        if counted != memory.pending_timers:
            self._view.findings.add(
                "number of pending timers", where, counted, memory.pending_timers
            )
        if expected.pending is None:
            return
        for name, log_says, memory_says in (
            ("pending", expected.pending, memory.pending),
            ("pending on levels", expected.level_pending, memory.level_pending),
        ):
            for index in log_says.keys() | memory_says.keys():
                wanted, got = log_says.get(index, 0), memory_says.get(index, 0)
                if wanted != got:
                    route = self._engine.routes.by_index[index]
                    what = f"{name} of topic {route.topic} queue {route.queue_id}"
                    self._view.findings.add(what, where, wanted, got)

    def _compare_levels(self, at_mark: Expected, at_end: Expected) -> None:
        """Compare the delivered messages of fixed levels in memory and in the counts file."""
        memory = self._memory
        checks = [(f"memory at log end {memory.log_end}", at_end.levels, memory.levels)]
        if self._counts is not None:
            where = str(self._view.tree.counts)
            checks.append((where, at_mark.levels, self._counts.levels))
        for where, wanted, got in checks:
            for queue_id, one, other in self._fold.levels.differing(wanted, got):
                self._view.findings.add(f"delivered of level {queue_id + 1}", where, one, other)


# --- check config ---
# Check the files of config/: each can be read, and no committed offset lies past its queue.


def check_config(view: StoreView) -> None:
    """Read every file of a directory's config/ but the committed offsets. An open store read them
    when it was opened, and writes them again.
    """
    if view.engine is not None:
        return
    tree = view.tree
    readers: dict[Path, Callable[[bytes | None, bytes | None], object]] = {
        tree.topics_json: topics_json.read,
        tree.delay_offset_json: delay_offset_json.read,
        tree.timer_metrics: timer_metrics_json.read,
        tree.recurring_json: lambda text, _backup: recurring_json.read(text),
    }
    for path, read in readers.items():
        try:
            read(view.disk.read_small(path), view.disk.read_small(backup_of(path)))
        except TimerStoreError as error:
            view.findings.raised("a file of config/", path, error)


def read_offsets(view: StoreView) -> ConsumerOffsets:
    """Read the committed offsets. This comes before the queues are read, which only grow."""
    try:
        return read_file(view.disk, view.tree)
    except TimerStoreError as error:
        view.findings.raised("committed offsets", view.tree.consumer_offset_json, error)
        return ConsumerOffsets()


def check_offsets(view: StoreView, file: ConsumerOffsets) -> None:
    """Check that no group of an open store has committed an offset past the end of a queue. It
    would skip the next messages.
    """
    if view.engine is None:
        return
    view.findings.count("committed offsets", sum(len(one) for one in file.table.values()))
    for one in offsets_past_end(file, view.engine.routes):
        view.findings.add(
            f"committed offset of group {one.group}, topic {one.topic} queue {one.queue_id}",
            view.tree.consumer_offset_json,
            f"at most {one.end}",
            one.offset,
        )
