"""Check of the far wheel: its table on disk, its chains, and every unit's CRC.

Holds:    the table is copied with the wheel's lock held, and units of its chains stay while they
          are walked, so that services go on.
"""

from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.format import far_table
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.maintenance.findings import Findings
from timerstore._engine.maintenance.live_store import LiveStore
from timerstore._engine.storage.disk import Disk
from timerstore._engine.timer.timer_arrays import slots_of
from timerstore.errors import TimerStoreError


class _Wanted(NamedTuple):
    slot: int
    newest: int
    oldest: int
    size: int


def check_far_file(findings: Findings, disk: Disk, tree: Tree, mark: Watermark | None) -> None:
    """The table that the watermark names is there; between two checkpoints."""
    if mark is not None and mark.far_number:
        path = tree.far_table(mark.far_number)
        if far_table.read(disk.read_small(path), mark.far_number) is None:
            findings.add("far table", path, f"table {mark.far_number}", "another, or none")


def check_far_wheel(findings: Findings, store: LiveStore, precision_ms: int) -> None:
    """Each chain has as many units as the table says, from the newest to the oldest, all sound."""
    far = store.far
    with ExitStack() as held:
        with store.wheel.lock:
            rows, width = far.table().rows, far.width
            view = held.enter_context(far.view())
        for row in rows.tolist():
            _check_chain(findings, store, view, _Wanted(*row), width, precision_ms)


def _check_chain(
    findings: Findings,
    store: LiveStore,
    view: object,
    wanted: _Wanted,
    width: int,
    precision_ms: int,
) -> None:
    where = f"{store.far.segments.directory} slot {wanted.slot}"
    size, oldest = 0, -1
    try:
        for units in store.far.walk(view, wanted.slot, wanted.newest):
            size += len(units)
            oldest = int(units["number"][-1])
            _check_slots(findings, units, where, width, precision_ms)
    except TimerStoreError as error:
        findings.raised("far wheel", where, error)
        return
    findings.count("far units", size)
    if (oldest, size) != (wanted.oldest, wanted.size):
        findings.add("far chain", where, wanted, f"{size} units down to {oldest}")


def _check_slots(
    findings: Findings, units: npt.NDArray[np.void], where: str, width: int, precision_ms: int
) -> None:
    """No unit waits in a far slot behind its time."""
    late = units["slot"] > slots_of(units["due_ms"], precision_ms) // width
    for unit in units[late].tolist():
        findings.add("far unit in a slot after its time", where, "its own, or one before", unit)
