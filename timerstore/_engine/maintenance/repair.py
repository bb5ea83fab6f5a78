"""Repair: copy the log of a damaged store into a new directory, each readable record at its place.

A record keeps its place in the log and in its queue. So ids, handles, delivered and cancelled
states and commits stay valid. Damaged ranges are filled:

    damaged [640, 1100)       two of topic `orders` queue 1 are missing, offsets 7 and 8
    640  placeholder of orders 1, offset 7        740  placeholder of orders 1, offset 8
    840  padding, 260 bytes, in no queue

The new directory also has data that the log does not contain: topics, committed offsets, recurring
definitions, ends of queues, message ids. Its first opening builds the rest.

Thread safety: one caller. The source is only read. It should not be open, as records that are
appended during the repair are left out.
Invariants:
    1. The source keeps every byte.
    2. The target has its name only when it is whole and durable.
    3. No queue of the target has a gap.
Raises: ConfigError if there is no store, or the target exists. CorruptError if a range is too small
for the lost messages. FullError and FailedError from the disk.
See also: docs/decisions/0012-snapshots-and-retention.md.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

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
from timerstore._engine.log.survey import Files, Gap, list_files
from timerstore._engine.maintenance.at_rest_view import AtRestLog, Progress, StoreFiles, find_store
from timerstore._engine.maintenance.check_log import LogUnits
from timerstore._engine.maintenance.restore_backup import check_ends, write_bootstrap
from timerstore._engine.maintenance.store_view import Findings, UnitRun
from timerstore._engine.queues.message_ids import Entries, read_ids, read_newest, write_ids
from timerstore._engine.storage.anchor import absolute_path, resolved_path
from timerstore._engine.storage.directory import check_target, staged_directory
from timerstore._engine.storage.disk import Disk, File
from timerstore.errors import ConfigError, CorruptError, TimerStoreError
from timerstore.types.reports import Report

_CHUNK_BYTES = 4 << 20
_BLANK_BYTES = 16


class _Missing(NamedTuple):
    """Queue offsets of one queue that no readable record has."""

    topic: str
    queue_id: int
    begin: int
    end: int
    log_begin: int
    """Their records lay in the log from here on."""
    log_end: int
    """Their records lay in the log before this offset."""
    is_front: bool
    """Whether the queue has nothing before them. Then it may begin after them."""


def _missing_in(runs: Iterable[UnitRun], log_begin: int) -> list[_Missing]:
    """Find missing queue offsets from the units of all readable records."""
    ends: dict[tuple[str, int], tuple[int, int]] = {}  # of each queue so far: offset, log offset
    missing = []
    for run in runs:
        key = run.route.topic, run.route.queue_id
        units = queue_unit.read(run.units.tobytes())
        first, last = units[0], units[-1]
        begins_at = 0 if log_begin == 0 else run.offset  # retention removed earlier messages
        expected, after = ends.get(key, (begins_at, 0))
        if run.offset > expected:
            before, is_front = int(first["log_offset"]), key not in ends
            missing.append(_Missing(*key, expected, run.offset, after, before, is_front))
        end = int(last["log_offset"]) + int(last["size"])
        ends[key] = run.offset + len(units), end
    return missing


class _Plan:
    """The records that fill each damaged range."""

    def __init__(self, log: AtRestLog, missing: list[_Missing], topics: list[str]) -> None:
        self._log = log
        self._ranges = [g for g in log.damaged if log.begin <= g.begin and g.end <= log.end]
        self._free = {gap.begin: gap.end - gap.begin for gap in self._ranges}
        self.places: dict[int, list[tuple[str, int, int]]] = {g.begin: [] for g in self._ranges}
        self.pad_topic = min((WHEEL_TIMER_TOPIC, *topics), key=len)
        for one in missing:
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
                    "the damaged ranges are too small for the lost messages",
                    where=self._log.files.path(one.log_begin),
                    wanted=f"{one.end - offset} messages of topic {one.topic} queue {one.queue_id}",
                )
            begin = ranges[0].begin
            self._free[begin] -= size
            self.places[begin].append((one.topic, one.queue_id, offset))

    def fill(self, gap: Gap) -> Iterator[tuple[int, bytes]]:
        """Return (log offset, bytes) that fill a damaged range with valid records."""
        store_ms = self._store_ms(gap.begin)
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

    def _store_ms(self, log_offset: int) -> int:
        """Return the store time of the record before, else of the one after, to keep the order."""
        before = int(np.searchsorted(self._log.offsets, log_offset)) - 1
        times = self._log.store_ms
        return int(times[max(before, 0)]) if len(times) else 0

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
    """Copy a damaged store into a new directory, which is durable on return. The source is not
    changed. Open the target to use it.

    The Report has every damaged range and the messages known to be lost. It is clean if nothing was
    damaged. `progress` is called with the number of bytes that were read, and of all bytes.

    Raises:
        ConfigError: there is no store, or the target exists. CorruptError: a damaged range is too
            small for the lost messages.
        FailedError: the disk failed. If only the last sync did, the error says that the folder is
            complete; opening it makes its name durable.
    """
    disk, source = Disk(), absolute_path("repair", path)
    into = absolute_path("repair", target)
    check_target(disk, into, "repair")  # also a link to nothing
    root, into = resolved_path("repair", source), resolved_path("repair", into)
    if into == root or root in into.parents or into in root.parents:
        raise ConfigError(f"repair: wanted a folder outside the store {source}, got {into}")
    found = find_store(disk, source)
    files = list_files(disk, found.tree.commit_log)
    findings = Findings()
    files = files._replace(staged=_staged(disk, findings, found, files))
    units = LogUnits(found.tree, files, found.config)
    log = AtRestLog(disk, files, found.mark, found.durable_end)
    pieces = log.records(found.config.precision_ms, progress)
    missing = _missing_in((run for piece in pieces for run in units.of(piece)), files.begin)
    topics = sorted({route.topic for route in units.routes.by_index})
    plan = _Plan(log, missing, topics)
    with staged_directory(disk, into, "repair", ".repairing") as tree:
        disk.make_directory(tree.commit_log)
        _copy_log(disk, log, plan, tree)
        _write_rest(disk, findings, found, log, tree)
        disk.sync_directory(tree.root)
    _tell(findings, log, plan)
    return findings.report()


def _staged(
    disk: Disk, findings: Findings, found: StoreFiles, files: Files
) -> tuple[tuple[int, bytes], ...]:
    """Return the staged pieces that a killed process left and that continue the log's files."""
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
            findings.add("not taken over: staged records", where, wanted, f"none from {files.end}")
        elif _fits(data, files.read(disk, base, len(data))):
            staged.append((base, data))
    return tuple(staged)


def _fits(staged: bytes, there: bytearray) -> bool:
    """Return whether the log's files have these bytes, or zeros in their place. Otherwise the
    staged bytes are older or newer than the log: a broker went on without them, or a power cut
    mixed pages.
    """
    log, piece = np.frombuffer(there, np.uint8), np.frombuffer(staged, np.uint8)
    return not bool(((log != piece) & (log != 0)).any())


def _copy_log(disk: Disk, log: AtRestLog, plan: _Plan, target: Tree) -> None:
    """Write every segment of the new log: copy readable ranges and fill damaged ones."""
    size = log.files.segment_bytes
    for begin in range(log.begin, log.end, size or 1):
        file = disk.open(target.commit_log / log.files.path(begin).name, create=True)
        file.resize(size)
        at, end = begin, min(begin + size, log.end)
        for gap in log.damaged:
            if begin <= gap.begin < end:
                _copy_bytes(disk, log, file, at, gap.begin)
                for offset, data in plan.fill(gap):
                    file.write(data, offset - begin)
                at = gap.end
        _copy_bytes(disk, log, file, at, end)
        file.sync()
    disk.sync_directory(target.commit_log)


def _copy_bytes(disk: Disk, log: AtRestLog, file: File, begin: int, end: int) -> None:
    for at in range(begin, end, _CHUNK_BYTES):
        data = log.files.read(disk, at, min(_CHUNK_BYTES, end - at))
        log.files.overlay_staged(at, data)  # also where the file was cut
        file.write(memoryview(data), at % log.files.segment_bytes)


def _write_rest(
    disk: Disk, findings: Findings, found: StoreFiles, log: AtRestLog, target: Tree
) -> None:
    """Write the files of config/, sizes, ends of queues and ids, which the log does not have."""
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
    disk: Disk, findings: Findings, found: StoreFiles
) -> tuple[counts_json.Pending, Entries | None]:
    """Return ends of queues and message ids from the newest counts that are whole, of whatever
    watermark.
    """
    tree = found.tree
    try:
        raw = disk.read_small(tree.counts)
        counts = counts_json.read_counts(raw, counts_json.log_end(raw))
        if counts is None:
            if found.mark is not None and not found.mark.is_bootstrap:
                findings.add("not taken over", tree.counts, "where queues end, message ids", "none")
            return {}, None
        check_ends(counts.ends)
        ids = read_ids(disk, tree, counts.ids)
        if ids is None:
            ids = read_newest(disk, tree, counts_json.ids_marks(raw))
            path, got = tree.ids(counts.ids.number), "others"
            if ids is not None:
                got = f"the {ids.nbytes} bytes of the counts before"
            findings.add("not taken over: message ids", path, f"{counts.ids.bytes} bytes", got)
        return counts.ends, ids
    except TimerStoreError as error:
        findings.raised("not taken over", tree.counts, error)
        return {}, None


def _tell(findings: Findings, log: AtRestLog, plan: _Plan) -> None:
    """Report for each range its lost messages, as the gaps in queues show them."""
    waiting = delivered = 0
    for gap in log.damaged:
        places = plan.places.get(gap.begin, [])
        timers = sum(topic in {WHEEL_TIMER_TOPIC, SCHEDULE_TOPIC} for topic, _, _ in places)
        waiting, delivered = waiting + timers, delivered + len(places) - timers
        if gap.begin >= log.end:
            said = "the log's end: the number of lost messages, also of pending ones, is not known"
        else:
            said = (
                f"{len(places)} records: {_named(places)}; each of {timers} pending ones is lost, "
                f"or was delivered, cancelled or moved; each of {len(places) - timers} in topics "
                "is lost, and may be delivered again if its pending record is whole"
            )
        where = log.files.place(gap.begin, gap.end)
        findings.add("damaged bytes", where, f"records ({gap.why})", said)
    findings.count("records kept", len(log.offsets))
    findings.count("damaged ranges", len(log.damaged))
    findings.count("damaged bytes", sum(gap.end - gap.begin for gap in log.damaged))
    findings.count("pending records lost", waiting)
    findings.count("messages lost", delivered)


def _named(places: list[tuple[str, int, int]]) -> str:
    named: dict[tuple[str, int], list[int]] = {}
    for topic, queue_id, offset in places:
        named.setdefault((topic, queue_id), []).append(offset)
    said = [
        f"topic {topic} queue {queue_id} offsets {offsets[0]} to {offsets[-1]}"
        for (topic, queue_id), offsets in named.items()
    ]
    return ", ".join(said) or "none whose queue offset is known"
