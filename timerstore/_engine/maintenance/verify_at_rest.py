"""Verify and survey a directory that nobody need have open: reads only, takes no lock.

    commit log                  every segment, past damage: ranges that are no records
    consume queues              each record's unit                 derived from the log
    timer log, wheel            units and slots point to what is there        derived
    far wheel                   CRCs, chains as the table has them            derived
    watermark, states, counts   CRCs, and that they belong together           derived
    config/*.json               that they parse

Threads:  none. Beside a live writer what changes meanwhile may be told as damage: look again.
Holds:    not one byte of the directory is changed.
Fails:    ConfigError where there is no store; damage is in the Report, never an exception.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from timerstore._engine.dedupe import read_ids
from timerstore._engine.format import (
    consumer_offset_json,
    counts_json,
    delay_offset_json,
    recurring_json,
    timer_metrics_json,
    timer_unit,
    topics_json,
    watermark,
    wheel_checks,
    wheel_slot,
)
from timerstore._engine.format.store_paths import Tree, backup_of, segment_name
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.log.staging import read_staged
from timerstore._engine.log.survey import Records, list_files
from timerstore._engine.maintenance.check_far_at_rest import check_far_files
from timerstore._engine.maintenance.check_log_files import LogState, Progress, read_log
from timerstore._engine.maintenance.check_queue_files import QueueCheck
from timerstore._engine.maintenance.check_side import SideFiles, check_states_file, read_states
from timerstore._engine.maintenance.findings import Findings, at_offset
from timerstore._engine.maintenance.log_units import LogUnits
from timerstore._engine.storage.disk import Disk, os_error
from timerstore._engine.storage.geometry import adopt_geometry
from timerstore._engine.storage.paths import anchored
from timerstore.config import StoreConfig
from timerstore.errors import ConfigError, TimerStoreError
from timerstore.reports import Report

_DERIVED = "derived: opening makes it anew"
_DEFAULT = StoreConfig(index_enabled=False)


class Found(NamedTuple):
    """What there is to know before anything is read."""

    tree: Tree
    config: StoreConfig
    mark: Watermark | None
    durable_end: int | None
    """Log offset through which every record must read; None without a watermark."""


def _is_link(path: Path) -> bool:
    try:
        return path.is_symlink()
    except OSError as error:  # no access to the folder
        raise os_error(error, "stat", path) from error


def look_at(disk: Disk, path: str | os.PathLike[str], findings: Findings | None = None) -> Found:
    """Find a store and its sizes; ConfigError where there is none."""
    tree = Tree(anchored("verify", path))
    if not disk.is_directory(tree.root) or _is_link(tree.commit_log):
        raise ConfigError(f"verify: wanted a store's folder, got {tree.root}")
    if not (disk.is_directory(tree.commit_log) or disk.exists(tree.watermark)):
        raise ConfigError(f"verify: {tree.root} holds no store: no commitlog/, no watermark")
    mark = None
    try:
        raw = disk.read_small(tree.watermark)
        mark = None if raw is None else watermark.read(raw)
        if raw is not None and mark is None and findings is not None:
            findings.add("watermark", tree.watermark, "a slot whose CRC fits", "none")
    except TimerStoreError as error:
        if findings is not None:
            findings.raised("watermark", tree.watermark, error)
    try:
        config = adopt_geometry(disk, tree, _DEFAULT, mark)
    except TimerStoreError as error:
        if findings is not None:
            findings.raised("sizes", tree.root, error)
        config = _DEFAULT
    return Found(tree, config, mark, _durable_end(disk, tree, mark, findings))


def _durable_end(
    disk: Disk, tree: Tree, mark: Watermark | None, findings: Findings | None
) -> int | None:
    if mark is None:
        return None
    noted = 0
    try:
        if disk.exists(tree.abort):
            noted = read_staged(disk, tree.staging).durable_end
    except TimerStoreError as error:
        if findings is not None:
            findings.raised("staging", tree.staging, error)
    return max(mark.log_end, noted)


def verify_directory(
    path: str | os.PathLike[str],
    config: StoreConfig | None = None,
    *,
    progress: Progress | None = None,
) -> Report:
    """Read a whole store that need not be open; tell every damaged range of bytes.

    `config`: with the delays of its levels, which no file says. `progress` is told how many bytes
    of the commit log are read, and of how many. Changes nothing. Raises ConfigError where there is
    no store.
    """
    if config is not None and not isinstance(config, StoreConfig):
        raise ConfigError(f"config: wanted a StoreConfig, got {type(config).__name__}")
    disk = Disk()
    findings = Findings()
    found = look_at(disk, path, findings)
    files = list_files(disk, found.tree.commit_log)
    for stray in files.strays:
        findings.add("a file that does not belong here", stray, "a segment", "another file")
    for number, size in files.sizes.items():
        if size > files.segment_bytes:
            begin = number * files.segment_bytes
            findings.add("a file's size", files.path(begin), files.segment_bytes, size)
    queue_bytes = found.config.queue_segment_bytes
    queues = QueueCheck(findings, disk, found.tree, queue_bytes, config)
    units = LogUnits(found.tree, files, config or found.config)

    is_built = disk.is_directory(found.tree.queues)  # else it has no topic yet
    is_built &= found.mark is None or not found.mark.is_bootstrap
    durable = found.mark.log_end if found.mark is not None else files.end

    def check_queues(piece: Records) -> None:
        if is_built and piece.begin < durable:
            for run in units.of(piece, durable):
                queues.add(run)

    log = read_log(
        disk,
        files,
        found.mark,
        found.durable_end,
        found.config.precision_ms,
        on_records=check_queues,
        progress=progress,
    )
    tell_log(findings, log)
    if is_built:  # else it was restored or repaired, and never opened since
        _check_side(findings, disk, found)
        _check_timer_log(findings, disk, found, log)
        if found.mark is not None:
            size = found.config.timer_log_segment_bytes
            check_far_files(findings, disk, found.tree, found.mark, size)
    _check_config(findings, disk, found.tree)
    return findings.report()


def tell_log(findings: Findings, log: LogState) -> None:
    """Name every range of the log that does not read."""
    for gap in log.damaged:
        wanted = f"records, log offsets {gap.begin} to {gap.end}"
        findings.add("damaged bytes", log.files.place(gap.begin, gap.end), wanted, gap.why)
    findings.count("records", len(log.rows))
    findings.count("log bytes", log.end - log.begin)
    findings.count("damaged bytes", sum(gap.end - gap.begin for gap in log.damaged))
    findings.count("torn tail bytes", sum(g.end - g.begin for g in log.tail if not g.is_zero))


def _check_side(findings: Findings, disk: Disk, found: Found) -> None:
    tree, mark = found.tree, found.mark
    if mark is None:
        return
    try:
        side = SideFiles(
            mark,
            None,
            read_states(disk, tree),
            disk.read_small(tree.counts),
        )
    except TimerStoreError as error:
        findings.raised(f"side files ({_DERIVED})", tree.side, error)
        return
    check_states_file(findings, tree, side, None, only_known=False, floor=0)
    counts = counts_json.read_counts(side.counts, mark.log_end, mark.sequence)
    if counts is None:
        findings.add(f"counts ({_DERIVED})", tree.counts, f"as of {mark.log_end}", "others")
    elif not disk.exists(tree.abort) and read_ids(disk, tree, counts.ids) is None:
        path, wanted = tree.ids(counts.ids.number), f"{counts.ids.bytes} bytes as written"
        findings.add("message ids", path, wanted, "others, or fewer")


def _check_timer_log(findings: Findings, disk: Disk, found: Found, log: LogState) -> None:
    """Units below the watermark's end point to records and back; slots to units."""
    tree, mark = found.tree, found.mark
    if mark is None:
        return
    size, end = found.config.timer_log_segment_bytes, mark.timer_log_end
    known = log.rows["log_offset"]
    for begin in range(mark.timer_log_begin, end, size):  # which is a file's begin
        path = tree.timer_log / segment_name(begin)
        if disk.file_bytes(path) is None:
            findings.add(f"a file of the timer log ({_DERIVED})", path, "a file", "none")
            continue
        length = min(end - begin, timer_unit.units_per_segment(size) * timer_unit.UNIT_BYTES)
        length -= length % timer_unit.UNIT_BYTES
        buffer = bytearray(length)
        if disk.open(path, read_only=True).read_into(memoryview(buffer), 0) < length:
            findings.add(f"a file of the timer log ({_DERIVED})", path, f"{size} bytes", "less")
            continue
        data = bytes(buffer)
        units = timer_unit.read(data)
        findings.count("timer units", len(units))
        positions = begin + np.arange(len(units)) * timer_unit.UNIT_BYTES
        offsets = units["log_offset"].astype(np.int64)
        is_right = np.isin(offsets, known) | (offsets < log.begin)  # retention removed it
        is_right &= timer_unit.is_sound(data, begin)
        is_right &= units["prev_pos"] < positions
        if log.damaged:  # what they point to may be lost
            is_right |= units["size"] > 0
        for row in np.flatnonzero(~is_right).tolist():
            where = at_offset(path, row * timer_unit.UNIT_BYTES)
            findings.add(f"a timer unit ({_DERIVED})", where, "one of a record", units[row])
    _check_wheel(findings, disk, found, log)


def _check_wheel(findings: Findings, disk: Disk, found: Found, log: LogState) -> None:
    path, mark = found.tree.timer_wheel, found.mark
    wanted = found.config.wheel_slot_count * wheel_slot.SLOT_BYTES
    got = disk.file_bytes(path)
    if got not in (wanted, wanted + wheel_slot.SLOT_BYTES):
        how = _DERIVED if mark is not None else f"{_DERIVED} once removed"
        findings.add(f"the wheel's size ({how})", path, wanted, got)
    elif mark is not None:
        raw = disk.open(path, read_only=True).read(0, wanted)
        is_open = disk.exists(found.tree.abort)
        if (got > wanted) if is_open else (log.end == mark.log_end):  # no broker was here
            _check_sectors(findings, disk, found, mark, raw)
        slots = wheel_slot.read(raw)
        wrong = (slots["last_pos"] >= mark.timer_log_end) | (slots["first_pos"] > slots["last_pos"])
        if is_open:
            wrong &= False  # a live one is ahead of its watermark
        for row in np.flatnonzero(wrong & (slots["count"] > 0)).tolist():
            findings.add(
                f"a slot ({_DERIVED} where the watermark is removed)",
                at_offset(path, row * wheel_slot.SLOT_BYTES),
                f"positions below {mark.timer_log_end}",
                slots[row],
            )


def _check_sectors(
    findings: Findings, disk: Disk, found: Found, mark: Watermark, raw: bytes
) -> None:
    """Each sector of the wheel holds what the checks beside it say."""
    if mark.wheel_writes < 0:
        return
    held = wheel_checks.of(raw)
    path, size = found.tree.wheel_checks, wheel_checks.file_bytes(len(held))
    entries = None
    if disk.file_bytes(path) == size:
        entries = wheel_checks.read(disk.open(path, read_only=True).read(0, size), len(held))
    if entries is None:
        findings.add(f"the wheel's checks ({_DERIVED})", path, f"{len(held)} of them", "none")
        return
    for sector in np.flatnonzero(~wheel_checks.fits(entries, held, mark.wheel_writes)).tolist():
        findings.add(
            f"the wheel ({_DERIVED})",
            at_offset(found.tree.timer_wheel, sector * wheel_checks.SECTOR_BYTES),
            f"check {entries['now'][sector]:08x}",
            f"{held[sector]:08x}",
        )


def _check_config(findings: Findings, disk: Disk, tree: Tree) -> None:
    readers: dict[Path, Callable[[bytes | None, bytes | None], object]] = {
        tree.topics_json: topics_json.read,
        tree.consumer_offset_json: consumer_offset_json.read,
        tree.delay_offset_json: delay_offset_json.read,
        tree.timer_metrics: timer_metrics_json.read,
        tree.recurring_json: lambda text, _backup: recurring_json.read(text),
    }
    for path, read in readers.items():
        try:
            read(disk.read_small(path), disk.read_small(backup_of(path)))
        except TimerStoreError as error:
            findings.raised("a file of config/", path, error)
