"""Repair: a damaged store's log into a new directory, each readable record at its place.

What reads is copied as it is, with its place in the log and in its queue: so ids, handles, what was
delivered and cancelled, what was committed all stay true. What does not is filled:

    damaged [640, 1100)       two of topic `orders` queue 1 are missing, offsets 7 and 8
    640  placeholder of orders 1, offset 7        740  placeholder of orders 1, offset 8
    840  padding, 260 bytes, in no queue

The new directory has the log and what no record of it tells (any more): topics, committed offsets,
what recurs, where queues end, message ids. Its first opening builds the rest.

Threads:  one caller. The source is only read; it should not be open, since what is appended
          meanwhile is left out.
Holds:    (1) the source keeps every byte; (2) the target has its name only when it is whole and
          durable; (3) no queue of the target has a gap.
Fails:    ConfigError where there is no store, or the target is taken; CorruptError where a range is
          too small for what stood in it; FullError, FailedError as the disk says.
Source:   docs/decisions/0012-snapshots-and-retention.md.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from timerstore._engine.dedupe import Entries, read_ids, read_newest, write_ids
from timerstore._engine.format import (
    consumer_offset_json,
    counts_json,
    filler_record,
    queue_unit,
    recurring_json,
    topics_json,
    watermark,
)
from timerstore._engine.format.counts_json import NO_IDS
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC, Tree, backup_of
from timerstore._engine.log.staging import read_staged
from timerstore._engine.log.survey import Files, Gap, Records, list_files
from timerstore._engine.maintenance.bootstrap_files import refuse_ends, write_bootstrap
from timerstore._engine.maintenance.check_log_files import LogState, Progress, read_log
from timerstore._engine.maintenance.findings import Findings
from timerstore._engine.maintenance.log_units import LogUnits, Run
from timerstore._engine.maintenance.verify_at_rest import Found, look_at
from timerstore._engine.storage.disk import Disk, File
from timerstore._engine.storage.paths import anchored, led_to
from timerstore._engine.storage.staged_directory import built, refuse_taken
from timerstore.errors import ConfigError, CorruptError, TimerStoreError
from timerstore.reports import Report

_CHUNK_BYTES = 4 << 20
_BLANK_BYTES = 16


class _Missing(NamedTuple):
    """Places of one queue that no readable record has."""

    topic: str
    queue_id: int
    begin: int
    end: int
    log_begin: int
    """They lay in the log behind here ..."""
    log_end: int
    """... and before here."""
    is_front: bool
    """Whether the queue has nothing before them: then it may as well begin behind them."""


class _Queues:
    """Which places of the queues are missing, as the readable units tell."""

    def __init__(self, log_begin: int) -> None:
        self._log_begin = log_begin
        self._next: dict[tuple[str, int], tuple[int, int]] = {}  # offset, log offset
        self.missing: list[_Missing] = []

    def add(self, run: Run) -> None:
        """Take in a run of units."""
        key = run.route.topic, run.route.queue_id
        units = queue_unit.read(run.units.tobytes())
        first, last = units[0], units[-1]
        at = int(first["log_offset"])
        begins_at = 0 if self._log_begin == 0 else run.offset  # retention dropped what was before
        expected, behind = self._next.get(key, (begins_at, 0))
        if run.offset > expected:
            is_front = key not in self._next
            self.missing.append(_Missing(*key, expected, run.offset, behind, at, is_front))
        end = int(last["log_offset"]) + int(last["size"])
        self._next[key] = run.offset + len(units), end


class _Plan:
    """What to put into each damaged range."""

    def __init__(self, log: LogState, queues: _Queues, topics: list[str]) -> None:
        self._log = log
        self._ranges = [g for g in log.damaged if log.begin <= g.begin and g.end <= log.end]
        self._free = {gap.begin: gap.end - gap.begin for gap in self._ranges}
        self.places: dict[int, list[tuple[str, int, int]]] = {g.begin: [] for g in self._ranges}
        self.pad_topic = min((WHEEL_TIMER_TOPIC, *topics), key=len)
        for one in queues.missing:
            self._put(one)

    def _put(self, one: _Missing) -> None:
        ranges = [g for g in self._ranges if one.log_begin <= g.begin and g.end <= one.log_end]
        size = filler_record.placeholder_bytes_min(one.topic)
        room = sum(self._free[g.begin] // size for g in ranges)
        begin = max(one.begin, one.end - room) if one.is_front else one.begin
        for offset in range(begin, one.end):
            while ranges and self._free[ranges[0].begin] < size:
                ranges.pop(0)
            if not ranges:
                raise CorruptError(
                    "no room in the damaged ranges for what stood there",
                    where=self._log.files.path(one.log_begin),
                    wanted=f"{one.end - offset} places of topic {one.topic} queue {one.queue_id}",
                )
            begin = ranges[0].begin
            self._free[begin] -= size
            self.places[begin].append((one.topic, one.queue_id, offset))

    def fill(self, gap: Gap, store_ms: int) -> Iterator[tuple[int, bytes]]:
        """Give (log offset, bytes) that make a damaged range read."""
        at, left = gap.begin, gap.end - gap.begin
        is_last = gap.end % self._log.files.segment_bytes == 0
        places = self.places[gap.begin]
        for number, (topic, queue_id, offset) in enumerate(places):
            size = filler_record.placeholder_bytes_min(topic)
            rest = left - size
            if number == len(places) - 1 and not self._can_pad(rest, is_last=is_last):
                size = left
            yield at, filler_record.placeholder(topic, queue_id, offset, at, size, store_ms)
            at, left = at + size, left - size
        if left and is_last and left >= _BLANK_BYTES:
            yield at, filler_record.blank(at, left)
        elif left:
            yield from self._pad(at, left, store_ms)

    def _can_pad(self, size: int, *, is_last: bool) -> bool:
        least = filler_record.padding_bytes_min(self.pad_topic)
        return size == 0 or size >= (_BLANK_BYTES if is_last else least)

    def _pad(self, at: int, left: int, store_ms: int) -> Iterator[tuple[int, bytes]]:
        least = filler_record.padding_bytes_min(self.pad_topic)
        if left < least:
            raise CorruptError(
                "a damaged range is too small for a record",
                where=self._log.files.place(at, at + left),
                wanted=f"{least} bytes",
            )
        while left:
            size = left if left <= _CHUNK_BYTES + least else _CHUNK_BYTES
            head, tail = filler_record.padding(self.pad_topic, at, size, store_ms)
            yield at, head  # the body's zeros are a hole of the new file
            yield at + size - len(tail), tail
            at, left = at + size, left - size


def repair_directory(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> Report:
    """Salvage a damaged store into a new directory; durable on return. The source stays as it is.

    The Report has every damaged range and what is known of its loss; it is clean where nothing was
    damaged. `progress` is told how many bytes are read, and of how many. Open the target to use it.
    """
    disk, source = Disk(), anchored("repair", path)
    into = anchored("repair", target)
    refuse_taken(disk, into, "repair")  # a link that leads nowhere, too
    root, into = led_to("repair", source), led_to("repair", into)
    if into == root or root in into.parents or into in root.parents:
        raise ConfigError(f"repair: wanted a folder apart from the store {source}, got {into}")
    found = look_at(disk, source)
    files = list_files(disk, found.tree.commit_log)
    findings = Findings()
    files = files._replace(staged=_staged(disk, findings, found, files))
    units, queues = LogUnits(found.tree, files, found.config), _Queues(files.begin)

    def take(piece: Records) -> None:
        for run in units.of(piece):
            queues.add(run)

    log = read_log(
        disk,
        files,
        found.mark,
        found.durable_end,
        found.config.precision_ms,
        on_records=take,
        progress=progress,
    )
    topics = sorted({route.topic for route in units.routes.by_index})
    plan = _Plan(log, queues, topics)
    with built(disk, into, "repair", ".repairing") as tree:
        disk.make_directory(tree.commit_log)
        _Copy(disk, log, plan, tree).run()
        _write_rest(disk, findings, found, log, tree)
        disk.sync_directory(tree.root)
    _tell(findings, log, plan)
    return findings.report()


def _staged(
    disk: Disk, findings: Findings, found: Found, files: Files
) -> tuple[tuple[int, bytes], ...]:
    """Return the staged pieces that a kill left and that may go on where the log's files end."""
    was_open, is_clean = disk.exists(found.tree.abort), found.mark is None or found.mark.is_clean
    if is_clean and not was_open:
        return ()
    staged = []
    for base, data in read_staged(disk, found.tree.staging).pieces:
        if base < files.begin:
            continue
        if base + len(data) > files.end:
            where = f"{found.tree.staging} log offset {base}"
            wanted = f"a file of the log for {len(data)} bytes"
            findings.add("not taken over: what was staged", where, wanted, f"none from {files.end}")
        elif _fits(data, files.read(disk, base, len(data))):
            staged.append((base, data))
    return tuple(staged)


def _fits(staged: bytes, there: bytearray) -> bool:
    """Whether the log's files have these bytes, or zeros in their place. Otherwise the staged bytes
    are of another age than the log: a broker went on without them, or a power cut mixed pages.
    """
    log, piece = np.frombuffer(there, np.uint8), np.frombuffer(staged, np.uint8)
    return not bool(((log != piece) & (log != 0)).any())


class _Copy:
    """Copies what reads, and fills what does not."""

    def __init__(self, disk: Disk, log: LogState, plan: _Plan, target: Tree) -> None:
        self._disk = disk
        self._log = log
        self._plan = plan
        self._target = target

    def run(self) -> None:
        """Write every segment of the new log."""
        size = self._log.files.segment_bytes
        for begin in range(self._log.begin, self._log.end, size or 1):
            path = self._target.commit_log / self._log.files.path(begin).name
            file = self._disk.open(path, create=True)
            file.resize(size)
            self._copy(file, begin, min(begin + size, self._log.end))
            file.sync()
        self._disk.sync_directory(self._target.commit_log)

    def _copy(self, file: File, begin: int, end: int) -> None:
        at = begin
        for gap in self._log.damaged:
            if begin <= gap.begin < end:
                self._copy_bytes(file, at, gap.begin)
                for offset, data in self._plan.fill(gap, self._store_ms(gap.begin)):
                    file.write(data, offset - begin)
                at = gap.end
        self._copy_bytes(file, at, end)

    def _copy_bytes(self, file: File, begin: int, end: int) -> None:
        size = self._log.files.segment_bytes
        while begin < end:
            part = min(_CHUNK_BYTES, end - begin)
            data = self._log.files.read(self._disk, begin, part)
            self._log.files.overlay_staged(begin, data)  # where the file has been cut, too
            file.write(memoryview(data), begin % size)
            begin += part

    def _store_ms(self, log_offset: int) -> int:
        """When the record before was stored, else the one behind: times stay in order."""
        rows = self._log.rows
        before = int(np.searchsorted(rows["log_offset"], log_offset)) - 1
        return int(rows["store_ms"][max(before, 0)]) if len(rows) else 0


def _write_rest(disk: Disk, findings: Findings, found: Found, log: LogState, target: Tree) -> None:
    """What the log does not say: the files of config/, sizes of files, and what it said once."""
    disk.make_directory(target.config)
    readers: dict[Path, Callable[[bytes], object]] = {
        found.tree.topics_json: lambda text: topics_json.read(text, None),
        found.tree.consumer_offset_json: lambda text: consumer_offset_json.read(text, None),
        found.tree.recurring_json: recurring_json.read,
    }
    for path, read in readers.items():
        text = None
        try:
            for name in (path, backup_of(path)):
                text = disk.read_small(name)
                if text is not None:
                    read(text)
                    break
        except TimerStoreError as error:
            findings.raised("not taken over", path, error)
            continue
        if text is not None:
            disk.write_small(target.config / path.name, text)
    ends, ids = _numbers(disk, findings, found)
    saved = NO_IDS
    if ids is not None:
        saved = write_ids(disk, target, 0, ids[ids["log_offset"] < log.begin])
    config, before = found.config, found.mark
    mark = watermark.bootstrap(
        log_begin=log.begin,
        log_end=log.end,
        store_id=before.store_id if before else 0,
        precision_ms=config.precision_ms,
        wheel_slot_count=config.wheel_slot_count,
        timer_id_end=before.timer_id_end if before else 0,
    )
    write_bootstrap(disk, target, mark, ends, saved, config.queue_segment_bytes)


def _numbers(
    disk: Disk, findings: Findings, found: Found
) -> tuple[counts_json.Pending, Entries | None]:
    """Give where queues ended, and message ids, as far as the newest numbers tell that are whole;
    of which watermark does not matter.
    """
    tree = found.tree
    try:
        raw = disk.read_small(tree.counts)
        counts = counts_json.read_counts(raw, counts_json.log_end(raw))
        if counts is None:
            if found.mark is not None and not found.mark.is_bootstrap:
                findings.add("not taken over", tree.counts, "where queues end, message ids", "none")
            return {}, None
        refuse_ends(counts.ends)
        ids = read_ids(disk, tree, counts.ids)
        if ids is None:
            ids = read_newest(disk, tree, counts_json.ids_marks(raw))
            path, got = tree.ids(counts.ids.number), "not that"
            if ids is not None:
                got = f"the {ids.nbytes} of before"
            findings.add("not taken over: message ids", path, f"{counts.ids.bytes} bytes", got)
        return counts.ends, ids
    except TimerStoreError as error:
        findings.raised("not taken over", tree.counts, error)
        return {}, None


def _tell(findings: Findings, log: LogState, plan: _Plan) -> None:
    """Say of each range what it held, as far as the queues' gaps tell, and what that may mean."""
    waiting = delivered = 0
    for gap in log.damaged:
        places = plan.places.get(gap.begin, [])
        timers = sum(topic in {WHEEL_TIMER_TOPIC, SCHEDULE_TOPIC} for topic, _, _ in places)
        waiting, delivered = waiting + timers, delivered + len(places) - timers
        if gap.begin >= log.end:
            said = "the log's end: how many messages is not known, nor what was waiting"
        else:
            said = (
                f"{len(places)} records: {_named(places)}; each of {timers} waiting ones is lost, "
                f"or was handed, cancelled or moved; each of {len(places) - timers} in topics is "
                "lost, and may be delivered again where its waiting record is whole"
            )
        where = log.files.place(gap.begin, gap.end)
        findings.add("damaged bytes", where, f"records ({gap.why})", said)
    findings.count("records kept", len(log.rows))
    findings.count("damaged ranges", len(log.damaged))
    findings.count("damaged bytes", sum(gap.end - gap.begin for gap in log.damaged))
    findings.count("waiting records lost", waiting)
    findings.count("messages lost", delivered)


def _named(places: list[tuple[str, int, int]]) -> str:
    named: dict[tuple[str, int], list[int]] = {}
    for topic, queue_id, offset in places:
        named.setdefault((topic, queue_id), []).append(offset)
    said = [
        f"topic {topic} queue {queue_id} offsets {offsets[0]} to {offsets[-1]}"
        for (topic, queue_id), offsets in named.items()
    ]
    return ", ".join(said) or "none whose place in a queue is known"
