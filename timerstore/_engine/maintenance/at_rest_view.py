"""`AtRestView`: a directory that no process needs to have open, as the checks read it.

Nothing is changed and no lock is taken. If a process has the store open, its changes during the
checks may look like damage: run the check again.

Raises: ConfigError if there is no store. Damage is a finding.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from timerstore._engine.base.argument_types import Int64Array
from timerstore._engine.format import topics_json, watermark, wheel_slot
from timerstore._engine.format.far_table import UNIT_BYTES, FarTable
from timerstore._engine.format.queue_unit import UNIT_BYTES as QUEUE_UNIT_BYTES
from timerstore._engine.format.store_paths import Tree, segment_name
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.log.staging import read_staged
from timerstore._engine.log.survey import Files, Gap, SurveyedRecords, list_files, survey
from timerstore._engine.maintenance.check_log import LogUnits
from timerstore._engine.maintenance.check_timer import read_far_table
from timerstore._engine.maintenance.live_view import read_side
from timerstore._engine.maintenance.store_view import (
    FarChains,
    Findings,
    LogPart,
    StoreView,
    TimerEnd,
    WheelCopy,
)
from timerstore._engine.queues.routes import Route
from timerstore._engine.storage.anchor import absolute_path
from timerstore._engine.storage.disk import Disk, ReadOnlyDisk
from timerstore._engine.storage.file import os_error
from timerstore._engine.storage.geometry import adopt_geometry
from timerstore._engine.storage.segments import Segments
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore.errors import ConfigError, TimerStoreError
from timerstore.types.config import StoreConfig
from timerstore.types.reports import Problem

# --- log reader ---
# `AtRestLog`: read a commit log at rest past any damage, and separate damage from a torn tail.
#
# Below the end that is known to be durable every byte must read. Bytes past it that do not read are
# a tail that was not durable. A broker's store has no watermark: there, bytes that whole records
# follow are damage.


Progress = Callable[[int, int], None]
"""Called with the number of bytes that were read, and of all bytes."""


class AtRestLog:
    """Reads one log. The results are complete when `records` has ended."""

    def __init__(
        self, disk: Disk, files: Files, mark: Watermark | None, durable_end: int | None
    ) -> None:
        self._disk = disk
        self._mark = mark
        self._durable = durable_end or 0
        self.files = files
        self.begin = self.end = files.begin
        self.damaged: list[Gap] = []
        self.tail: list[Gap] = []
        self.offsets: Int64Array = np.empty(0, np.int64)
        """The log offset of every record."""
        self.store_ms: Int64Array = np.empty(0, np.int64)
        """The store time of every record."""

    def records(
        self, precision_ms: int, progress: Progress | None = None
    ) -> Iterator[SurveyedRecords]:
        """Return the records that belong to the log. `end` is then after the last of them."""
        files, mark, durable = self.files, self._mark, self._durable
        offsets, store_ms = [self.offsets], [self.store_ms]
        gaps: list[Gap] = []
        if mark is not None and mark.log_begin < files.begin:
            gaps.append(Gap(mark.log_begin, files.begin, "the file is missing", is_zero=False))
        for piece in survey(self._disk, files, precision_ms):
            if isinstance(piece, Gap):
                gaps.append(piece)
            elif mark is None or piece.begin < durable or not _has_ended(gaps, durable):
                offsets.append(piece.rows["log_offset"].copy())
                store_ms.append(piece.rows["store_ms"].copy())
                self.end = piece.end
                yield piece
            if progress is not None:
                progress(min(piece.end, files.end) - files.begin, files.end - files.begin)
        self.offsets, self.store_ms = np.concatenate(offsets), np.concatenate(store_ms)
        self._judge(gaps)

    def _judge(self, gaps: list[Gap]) -> None:
        end, durable = self.end, self._durable
        if durable > self.files.end:
            begin = max(self.files.end, end)
            gaps.append(Gap(begin, durable, "the file is missing", is_zero=False))
        damaged = [gap for gap in gaps if gap.begin < max(end, durable)]
        self.tail = [gap for gap in gaps if gap.begin >= max(end, durable)]
        self.damaged = [_clipped(gap, end, durable) for gap in damaged]


def _has_ended(gaps: list[Gap], durable: int) -> bool:
    """Return whether the log has ended past its durable end. Records after that do not belong to
    it.
    """
    return any(gap.end > durable for gap in gaps)


def _clipped(gap: Gap, end: int, durable: int) -> Gap:
    """Return the part of a gap that must read. If no record follows, the part past `durable` is the
    tail.
    """
    return gap._replace(end=durable) if gap.begin >= end and gap.end > durable else gap


# --- at rest view ---


_DEFAULT = StoreConfig(index_enabled=False)


class StoreFiles(NamedTuple):
    """The basic facts of a directory, which are needed to read its files."""

    tree: Tree
    config: StoreConfig
    mark: Watermark | None
    durable_end: int | None
    """The log offset up to which every record must read; None without a watermark."""


def find_store(
    disk: Disk, path: str | os.PathLike[str], findings: Findings | None = None
) -> StoreFiles:
    """Find a store and the sizes of its files.

    Raises:
        ConfigError: there is no store.
    """
    findings = Findings() if findings is None else findings
    tree = Tree(absolute_path("verify", path))
    if not disk.is_directory(tree.root) or _is_link(tree.commit_log):
        raise ConfigError(f"verify: wanted a store's folder, got {tree.root}")
    if not (disk.is_directory(tree.commit_log) or disk.exists(tree.watermark)):
        raise ConfigError(f"verify: {tree.root} holds no store: no commitlog/, no watermark")
    mark = None
    try:
        raw = disk.read_small(tree.watermark)
        mark = None if raw is None else watermark.read(raw, tree.watermark)
        if raw is not None and mark is None:
            findings.add("watermark", tree.watermark, "a slot whose CRC fits", "none")
    except TimerStoreError as error:
        findings.raised("watermark", tree.watermark, error)
    try:
        config = adopt_geometry(disk, tree, _DEFAULT, mark)
    except TimerStoreError as error:
        findings.raised("sizes", tree.root, error)
        config = _DEFAULT
    return StoreFiles(tree, config, mark, _durable_end(disk, tree, mark, findings))


def _is_link(path: Path) -> bool:
    try:
        return path.is_symlink()
    except OSError as error:  # no access to the folder
        raise os_error(error, "stat", path) from error


def _durable_end(disk: Disk, tree: Tree, mark: Watermark | None, findings: Findings) -> int | None:
    if mark is None:
        return None
    staged_end = 0
    try:
        if disk.exists(tree.abort):
            staged_end = read_staged(disk, tree.staging).durable_end
    except TimerStoreError as error:
        findings.raised("staging", tree.staging, error)
    return max(mark.log_end, staged_end)


def _deleted_below(disk: Disk, tree: Tree) -> dict[str, int]:
    """Return by topic the log offset below which its records are deleted.

    Of a topic that is being deleted the next opening deletes all records.
    """
    try:
        deleted = topics_json.read(disk.read_small(tree.topics_json), None).deleted
    except TimerStoreError:  # check_states.py reports it
        return {}
    return {topic: at if at >= 0 else 2**62 for topic, at in deleted.items()}


class _FileRange(Segments):
    """The files of a space that have [begin, end), whether they exist or not."""

    def __init__(
        self, disk: Disk, directory: Path, segment_bytes: int, begin: int, end: int
    ) -> None:
        super().__init__(disk, directory, segment_bytes, segment_bytes)
        self.numbers = list(range(begin // segment_bytes, -(-end // segment_bytes)))


class _FarFiles(FarWheel):
    """The files of the far wheel that have the units of a table."""

    def __init__(self, disk: Disk, tree: Tree, segment_bytes: int, table: FarTable) -> None:
        per_file = segment_bytes // UNIT_BYTES
        begin = table.begin // per_file * segment_bytes
        end = -(-table.end // per_file) * segment_bytes
        files = _FileRange(disk, tree.far_log, segment_bytes, begin, end)
        super().__init__(disk, tree, segment_bytes, segment_bytes, files)
        self.begin, self.end = table.begin, table.end


class AtRestView(StoreView):
    """One directory."""

    def __init__(
        self,
        findings: Findings,
        path: str | os.PathLike[str],
        config: StoreConfig | None,
        progress: Progress | None,
    ) -> None:
        self.disk: Disk = ReadOnlyDisk()
        found = find_store(self.disk, path, findings)
        self.findings = findings
        self.tree, self.config, self.mark = found.tree, found.config, found.mark
        self.knows_delays = config is not None
        self._progress = progress
        self._files = list_files(self.disk, self.tree.commit_log)
        self._log = AtRestLog(self.disk, self._files, self.mark, found.durable_end)
        self._units = LogUnits(self.tree, self._files, config or self.config)
        self._missing: set[Path] = set()
        self.is_built = self.disk.is_directory(self.tree.queues)  # else it has no topic yet
        self.is_built &= self.mark is None or not self.mark.is_bootstrap
        self.deleted_below = _deleted_below(self.disk, self.tree)
        self.log_begin, self.log_end = self._files.begin, self._files.end
        self.is_open = self.disk.exists(self.tree.abort)
        if self.mark is not None:
            size, mark = self.config.timer_log_segment_bytes, self.mark
            begin, end = mark.timer_log_begin, mark.timer_log_end
            self.timer_log = _FileRange(self.disk, self.tree.timer_log, size, begin, end)
            self.timer_end = TimerEnd(end, mark.timer_queue_offset)

    def derived(self, how: str = "opening makes it again") -> str:
        """Return how a damaged derived file is repaired."""
        return f" (derived: {how})"

    def take(self) -> bool:
        """Read the side files and the wheel."""
        for stray in self._files.strays:
            self.findings.add(
                "a file that does not belong here", stray, "a segment", "another file"
            )
        size = self._files.segment_bytes
        for number, got in self._files.sizes.items():
            if got > size:
                self.findings.add("a file's size", self._files.path(number * size), size, got)
        if self.is_built:
            self._take_side()
            self._take_wheel()
        return True

    def _take_side(self) -> None:
        disk, tree, mark = self.disk, self.tree, self.mark
        if mark is None:
            return
        try:
            self.side = read_side(disk, tree)
        except TimerStoreError as error:
            self.findings.raised(f"side files{self.derived()}", tree.side, error)
        self.far_table = read_far_table(self)

    # --- the log ---

    def log_parts(self, begin: int, end: int) -> Iterator[LogPart | Problem]:  # noqa: ARG002
        """Read the whole log; damage comes last, when its end is known."""
        log, findings = self._log, self.findings
        limit = self.mark.log_end if self.mark is not None else self._files.end
        for piece in log.records(self.config.precision_ms, self._progress):
            runs = self._units.of(piece, limit)
            is_in_queues = self.is_built and piece.begin < limit
            yield LogPart(piece.begin, piece.end, piece.rows, runs if is_in_queues else iter(()))
        self.log_end = log.end
        if self.mark is not None and not self.is_open:
            self.is_quiet = log.end == self.mark.log_end
        self.record_offsets = log.offsets
        for gap in log.damaged:
            wanted = f"records, log offsets {gap.begin} to {gap.end}"
            yield Problem("damaged bytes", log.files.place(gap.begin, gap.end), wanted, gap.why)
        findings.count("records", len(log.offsets))
        findings.count("log bytes", log.end - log.begin)
        findings.count("damaged bytes", sum(gap.end - gap.begin for gap in log.damaged))
        findings.count("torn tail bytes", sum(g.end - g.begin for g in log.tail if not g.is_zero))

    def queue_units(self, route: Route, offset: int, count: int) -> bytes | None:
        """Return the units that the files of a queue have. None: a file is missing or short, which
        is reported once.
        """
        folder = self.tree.queue(route.topic, route.queue_id)
        file_bytes = self.config.queue_segment_bytes
        parts = []
        at, end = offset * QUEUE_UNIT_BYTES, (offset + count) * QUEUE_UNIT_BYTES
        while at < end:
            begin = at - at % file_bytes
            size = min(end, begin + file_bytes) - at
            path = folder / segment_name(begin)
            there = self.disk.file_bytes(path)
            if there is None or there < at - begin + size:
                self._lost(path, there)
                return None
            parts.append(self.disk.open(path, read_only=True).read(at - begin, size))
            at += size
        return b"".join(parts)

    def _lost(self, path: Path, size: int | None) -> None:
        wanted, got = "a file", "none"
        if size is not None:
            wanted, got = "a file that is whole", f"{size} bytes"
        if path not in self._missing:
            self._missing.add(path)
            self.findings.add(f"a queue's file{self.derived()}", path, wanted, got)

    # --- wheels ---

    def _take_wheel(self) -> None:
        """Read the wheel's file, unless its size is wrong."""
        path, mark, config = self.tree.timer_wheel, self.mark, self.config
        wanted = config.wheel_slot_count * wheel_slot.SLOT_BYTES
        got = self.disk.file_bytes(path)
        if got not in (wanted, wanted + wheel_slot.SLOT_BYTES):
            how = "opening makes it again" + ("" if mark is not None else " once it is removed")
            self.findings.add(f"the wheel's size{self.derived(how)}", path, wanted, got)
        elif mark is not None:
            self.wheel_file = self.disk.open(path, read_only=True).read(0, got)
            self.wheel = WheelCopy(np.frombuffer(self.wheel_file[:wanted], np.uint8), None)

    @contextmanager
    def far_chains(self) -> Iterator[FarChains | None]:
        """Map the far wheel's files, if all of them are whole."""
        table, size = self.far_table, self.config.timer_log_segment_bytes
        if table is None:
            yield None
            return
        far = _FarFiles(self.disk, self.tree, size, table)
        for path, got in far.segments.wrong_files():
            found = "none" if got is None else f"{got} bytes"
            what = f"a file of the far wheel{self.derived('removing the table makes it again')}"
            self.findings.add(what, path, f"{size} bytes", found)
            yield None
            return
        try:
            with far.view() as view:
                yield FarChains(far, table.rows, table.width, view)
        finally:
            far.segments.close()
