"""The far wheel's files, looked at without opening the store: table, units, chains."""

import zlib

from timerstore._engine.format import far_table
from timerstore._engine.format.far_table import UNIT_BYTES, FarTable
from timerstore._engine.format.store_paths import Tree, segment_name
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.maintenance.findings import Findings, at_offset
from timerstore._engine.storage.disk import Disk
from timerstore.errors import TimerStoreError

_DERIVED = "derived: removing the table has it made anew"


def check_far_files(
    findings: Findings, disk: Disk, tree: Tree, mark: Watermark, segment_bytes: int
) -> None:
    """The table that the watermark names, and every unit that it speaks of."""
    if not mark.far_number:
        return
    path = tree.far_table(mark.far_number)
    try:
        table = far_table.read(disk.read_small(path), mark.far_number)
        if table is None:
            findings.add(f"far table ({_DERIVED})", path, f"table {mark.far_number}", "another")
            return
        _check_units(findings, disk, tree, table, segment_bytes)
    except TimerStoreError as error:
        findings.raised(f"far wheel ({_DERIVED})", tree.far_log, error)


def _check_units(
    findings: Findings, disk: Disk, tree: Tree, table: FarTable, file_bytes: int
) -> None:
    per_file = file_bytes // UNIT_BYTES
    sizes = dict.fromkeys(table.rows["newest"].tolist(), 0)
    chain_of: dict[int, int] = {}  # by number of a unit's previous one: its chain's newest
    for first in reversed(range(table.begin // per_file * per_file, table.end, per_file)):
        path = tree.far_log / segment_name(first // per_file * file_bytes)
        if disk.file_bytes(path) is None:
            findings.add(f"a file of the far wheel ({_DERIVED})", path, "a file", "none")
            return
        raw = disk.open(path, read_only=True).read(0, per_file * UNIT_BYTES)
        low, high = max(first, table.begin), min(first + per_file, table.end)
        for number in reversed(range(low, high)):
            at = (number - first) * UNIT_BYTES
            unit = raw[at : at + UNIT_BYTES]
            if not _is_sound(unit, number):
                where = at_offset(path, at)
                findings.add(f"a far unit ({_DERIVED})", where, "one whose CRC fits", unit.hex())
                continue
            newest = number if number in sizes else chain_of.pop(number, None)
            if newest is not None:
                sizes[newest] += 1
                chain_of[int.from_bytes(unit[:8], "big", signed=True)] = newest
    findings.count("far units", table.end - table.begin)
    wanted = dict(zip(table.rows["newest"].tolist(), table.rows["count"].tolist(), strict=True))
    if sizes != wanted:
        findings.add(f"far chains ({_DERIVED})", tree.far_log, f"{wanted}"[:200], f"{sizes}"[:200])


def _is_sound(unit: bytes, number: int) -> bool:
    crc = zlib.crc32(unit[:48], zlib.crc32(number.to_bytes(8, "big")))
    return crc == int.from_bytes(unit[48:], "big") and len(unit) == UNIT_BYTES
