"""`StoreView`: a store as the checks of `verify` read it.

    live_view.py       a store that is open, from the components of its engine
    at_rest_view.py    a directory that no process needs to have open, from its files

Each check exists once and works on either view. A part that a view does not have is None, and its
check does nothing. A directory has no memory to compare with its files, and no index of its own.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.argument_types import Int64Array
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import timer_unit
from timerstore._engine.format.counts_json import Levels
from timerstore._engine.format.far_table import FarTable
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.log.scanned_records import Scan
from timerstore._engine.log.timer_states import TimerStates
from timerstore._engine.maintenance.expected_states import Packed
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.queues.record_lookup import UnitRows
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.segments import Segments
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.pending import WheelPending
from timerstore._engine.timer.timer_log import TimerLog, pieces
from timerstore._engine.timer.wheel import Wheel
from timerstore.errors import TimerStoreError
from timerstore.types.clock import Clock
from timerstore.types.config import StoreConfig
from timerstore.types.reports import Problem, Report

# --- findings ---
# `Findings`: the problems and counts of one check.
#
# Thread safety: one thread for each check.
# Invariants: memory is bounded. Problems past a limit are counted and not kept.


_PROBLEMS_MAX = 10_000


class Findings:
    """Collects problems and counts of one check."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._left_off = 0
        self._counts: Counter[str] = Counter()

    def add(self, what: str, where: object, wanted: object, got: object) -> None:
        """Add a problem."""
        if len(self._problems) < _PROBLEMS_MAX:
            self._problems.append(Problem(what, str(where), str(wanted), str(got)))
        else:
            self._left_off += 1

    def raised(self, what: str, where: object, error: Exception) -> None:
        """Add something that could not be read."""
        self.add(what, where, "readable", error)

    def count(self, what: str, number: int) -> None:
        """Add to the number of things that were read."""
        self._counts[what] += number

    def report(self) -> Report:
        """Return all problems and counts."""
        problems = list(self._problems)
        if self._left_off:
            problems.append(
                Problem("more problems", "the whole store", "none", f"{self._left_off} more")
            )
        return Report(tuple(problems), dict(self._counts))


def place(segments: Segments, offset: int) -> str:
    """Return the file of a segmented space that has an offset, and the offset in it."""
    number, at = divmod(offset, segments.segment_bytes)
    return at_offset(segments.path(number), at)


def at_offset(path: Path, offset: int) -> str:
    """Return a file and an offset in it as text."""
    return f"{path} offset {offset}"


_ZEROS = bytes(1 << 20)


def check_zeros(
    findings: Findings,
    what: str,
    read: Callable[[int, int], tuple[int, bytes]],
    where: Callable[[int], str],
    offset: int = 0,
) -> None:
    """Check that only zeros follow the end of a file's contents.

    `read(offset, size)` returns the first bytes from there on that are no hole, with their offset.
    `where(offset)` names their place.
    """
    while True:
        try:
            offset, data = read(offset, len(_ZEROS))
        except TimerStoreError as error:
            findings.raised(what, where(offset), error)
            return
        if not data:
            return
        if data != _ZEROS[: len(data)]:
            rest = data.lstrip(b"\0")
            at = where(offset + len(data) - len(rest))
            findings.add(f"{what}: bytes past the end", at, "zeros", rest[:16].hex())
            return
        offset += len(data)


# --- store view ---


class UnitRun(NamedTuple):
    """The units of consecutive messages of one queue, as their records in the log require them."""

    route: Route
    offset: int
    """The queue offset of the first."""
    units: UnitRows
    """Rows of 20 bytes."""


class LogPart(NamedTuple):
    """Records of the log without a gap."""

    begin: int
    end: int
    rows: Scan
    runs: Iterator[UnitRun]


class TimerEnd(NamedTuple):
    """The end of the timer log, and of the records of the timer topic that have a unit in it."""

    end: int
    linked_offset: int


class WheelCopy(NamedTuple):
    """The wheel's slots."""

    slots: npt.NDArray[np.uint8]
    dirty: npt.NDArray[np.uint8] | None
    """For each page, whether the file may differ; None: the slots are the file's."""


class SideFiles(NamedTuple):
    """The contents of the side files, between two checkpoints."""

    watermark: bytes | None
    state: bytes | None
    counts: bytes | None


class Memory(NamedTuple):
    """The memory of an open store at one end of its log."""

    log_end: int
    states: Packed
    pending_timers: int
    pending: dict[int, int]
    levels: Levels
    level_pending: dict[int, int]


class FarChains(NamedTuple):
    """The chains of the far wheel, and a view of their units."""

    wheel: FarWheel
    rows: npt.NDArray[np.void]
    width: int
    view: Any


class LiveStore(Protocol):
    """An open store, as far as checks read it. The engine is one."""

    config: StoreConfig
    clock: Clock
    disk: Disk
    directory: Directory
    timer_route: Route
    store_id: int
    checkpoint: Checkpoint
    pending: WheelPending
    log: CommitLog
    routes: Routes
    dispatch: Dispatch
    states: TimerStates
    wheel: Wheel
    timer_log: TimerLog
    levels: LevelCursors
    far: FarWheel


class StoreView(NotCopyable, ABC):
    """A store, as far as checks read it."""

    findings: Findings
    config: StoreConfig
    """The configuration, with the sizes of the files."""
    disk: Disk
    tree: Tree
    mark: Watermark | None
    """The watermark of the last completed checkpoint."""
    engine: LiveStore | None = None
    """The engine of an open store; None: only its files are read."""
    is_built = True
    """Whether the derived files exist. The first opening of a restored store makes them."""
    is_quiet = False
    """Whether the files are those of a store that was closed: all agree with the watermark."""
    knows_delays = False
    """Whether the fixed levels' delays of `config` are certainly those of the queue units."""
    deleted_below: Mapping[str, int]
    """By topic: the log offset below which its records are deleted."""
    log_begin: int
    log_end: int
    timer_log: Segments | None = None
    """The timer log's files."""
    timer_end = TimerEnd(0, 0)
    """The end of the timer log that belongs to `wheel`."""
    side: SideFiles | None = None
    """The side files of the watermark."""
    far_table: FarTable | None = None
    """The far wheel's table that the watermark names."""
    memory: Memory | None = None
    """The memory of an open store; None for a directory."""
    wheel: WheelCopy | None = None
    """The wheel's slots."""
    wheel_file: bytes | None = None
    record_offsets: Int64Array | None = None
    """The log offsets of all records, after `log_parts`; None: not kept."""

    def derived(self, how: str = "opening makes it again") -> str:  # noqa: ARG002
        """Return how to repair a derived file, to be added to a finding; empty for an open store,
        which does not repair its files.
        """
        return ""

    @abstractmethod
    def take(self) -> bool:
        """Copy files and memory that must not change during the checks. Return False if files are
        so damaged that they must not be mapped.
        """

    @abstractmethod
    def log_parts(self, begin: int, end: int) -> Iterator[LogPart | Problem]:
        """Read the records of [begin, end), past damage."""

    @abstractmethod
    def queue_units(self, route: Route, offset: int, count: int) -> bytes | None:
        """Return at most `count` units of a queue. None: a file is missing, which is reported."""

    def first_offset(self, route: Route) -> int | None:  # noqa: ARG002
        """Return the queue offset of a queue's first record in the log; None: not known, as damage
        may have removed records.
        """
        return None

    @abstractmethod
    def far_chains(self) -> AbstractContextManager[FarChains | None]:
        """Return the far wheel's chains. They do not change in the context."""


# --- unit order ---
# `UnitOrder`: find the timer unit of each record of the timer topic.
#
# Units that link a message for the first time have the order of the topic's queue. The last of them
# belongs to the record before `linked_offset`. Units of messages that were linked again
# (docs/decisions/0003-timing-wheel.md) lie between them and are marked. The n-th unit without that
# mark belongs to the n-th record.
# The units are counted once, piece by piece.


class _Piece(NamedTuple):
    pos: int  # of its first unit
    size: int  # how many units
    first: int  # how many units without the mark lie before it


class UnitOrder:
    """The first units of all messages in a timer log below `end`."""

    def __init__(self, segments: Segments, end: int, linked_offset: int) -> None:
        self._segments = segments
        self._pieces: list[_Piece] = []
        count = 0
        for pos, size in pieces(segments, end):
            self._pieces.append(_Piece(pos, size, count))
            count += int(np.count_nonzero(_is_first(self._read(pos, size))))
        self._counts = np.array([piece.first for piece in self._pieces], np.int64)
        self.begin = linked_offset - count
        """The queue offset of the first record whose unit still exists."""

    def _read(self, pos: int, size: int) -> Any:
        return timer_unit.read(self._segments.read(pos, size * timer_unit.UNIT_BYTES))

    def units(self, begin: int, end: int) -> Iterator[tuple[Any, Any]]:
        """Return positions and units of the records with queue offsets [begin, end)."""
        number, last = begin - self.begin, end - self.begin
        while number < last:
            at = int(np.searchsorted(self._counts, number, side="right")) - 1
            piece = self._pieces[at]
            units = self._read(piece.pos, piece.size)
            rows = np.flatnonzero(_is_first(units))[number - piece.first : last - piece.first]
            yield piece.pos + rows * timer_unit.UNIT_BYTES, units[rows]
            number += len(rows)


def _is_first(units: Any) -> Any:
    return (units["magic"] & timer_unit.MAGIC_AGAIN) == 0
