"""Check the far wheel: its table, its chains, and every unit's CRC."""

import zlib

import numpy as np
import numpy.typing as npt

from timerstore._engine.format import far_table
from timerstore._engine.format.far_table import UNIT_BYTES, FarTable
from timerstore._engine.maintenance.findings import at_offset
from timerstore._engine.maintenance.store_view import FarChains, StoreView
from timerstore._engine.timer.timer_arrays import slots_of
from timerstore.errors import TimerStoreError

_HOW = "removing the table makes it again"


def read_far_table(view: StoreView) -> FarTable | None:
    """Return the table that the watermark names. Add a finding if it is missing or unreadable."""
    if view.mark is None or not view.mark.far_number:
        return None
    number = view.mark.far_number
    path, what = view.tree.far_table(number), f"far table{view.derived(_HOW)}"
    try:
        table = far_table.read(view.disk.read_small(path), number)
    except TimerStoreError as error:
        view.findings.raised(what, path, error)
        return None
    if table is None:
        view.findings.add(what, path, f"table {number}", "another, or none")
    return table


def check_far(view: StoreView) -> None:
    """Check that all chains are those of the table. Of a directory also check the units that belong
    to no chain.
    """
    with view.far_chains() as far:
        if far is None:
            return
        is_sound = True
        if view.engine is None and view.far_table is not None:
            is_sound = _check_units(view, far, view.far_table)
        if is_sound:
            for row in far.rows.tolist():
                _check_chain(view, far, row)


def _check_chain(view: StoreView, far: FarChains, row: list[int]) -> None:
    """Check that a chain has as many units as the table says, from the newest to the oldest."""
    slot, newest, *wanted = row
    findings = view.findings
    where = f"{far.wheel.segments.directory} slot {slot}"
    size, oldest = 0, -1
    try:
        for units in far.wheel.walk(far.view, slot, newest):
            size += len(units)
            oldest = int(units["number"][-1])
            _check_slots(view, units, where, far.width)
    except TimerStoreError as error:
        findings.raised(f"far wheel{view.derived(_HOW)}", where, error)
        return
    if view.engine is not None:
        findings.count("far units", size)
    if [oldest, size] != wanted:
        got = f"{size} units down to {oldest}"
        findings.add(f"far chain{view.derived(_HOW)}", where, row, got)


def _check_slots(view: StoreView, units: npt.NDArray[np.void], where: str, width: int) -> None:
    """Check that no unit is in a far slot after its due time."""
    late = units["slot"] > slots_of(units["due_ms"], view.config.precision_ms) // width
    for unit in units[late].tolist():
        what = f"far unit in a slot after its time{view.derived(_HOW)}"
        view.findings.add(what, where, "its own, or one before", unit)


def _check_units(view: StoreView, far: FarChains, table: FarTable) -> bool:
    """Check the CRC of every unit from the table's begin to its end; return whether all fit."""
    segments, is_sound = far.wheel.segments, True
    per_file = segments.segment_bytes // UNIT_BYTES
    for number in segments.numbers:
        first = number * per_file
        raw = segments.read(number * segments.segment_bytes, per_file * UNIT_BYTES)
        for one in range(max(first, table.begin), min(first + per_file, table.end)):
            at = (one - first) * UNIT_BYTES
            unit = raw[at : at + UNIT_BYTES]
            crc = zlib.crc32(unit[:48], zlib.crc32(one.to_bytes(8, "big")))
            if crc != int.from_bytes(unit[48:], "big"):
                is_sound = False
                where = at_offset(segments.path(number), at)
                what = f"a far unit{view.derived(_HOW)}"
                view.findings.add(what, where, "one whose CRC fits", unit.hex())
    view.findings.count("far units", table.end - table.begin)
    return is_sound
