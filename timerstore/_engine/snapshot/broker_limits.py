"""How far the files of a RocketMQ broker may be read: up to the first bytes that are not a record.

A broker has no watermark. Its logs are walked segment by segment, as its own recovery does.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from timerstore._engine.format import wheel_slot
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.format.timer_unit import UNIT_BYTES
from timerstore._engine.format.timer_unit import read as read_units
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.snapshot.file_limits import Snapshot, limits
from timerstore._engine.snapshot.log_walk import goes_on, records_end, segments_of, units_end
from timerstore._engine.snapshot.log_windows import Windows
from timerstore._engine.storage.disk import Disk
from timerstore.config import StoreConfig

_PIECE_BYTES = 1 << 20
_PRECISION_MS_MAX = 3_600_000


def broker_limits(tree: Tree, config: StoreConfig, precision_ms: int | None) -> Snapshot:
    """Walk both logs of a broker's store. `precision_ms` overrides the files' own."""
    log = _walked(tree.commit_log, config.commit_log_segment_bytes, records_end)
    timer_log = _walked(tree.timer_log, config.timer_log_segment_bytes, units_end)
    found = limits(tree.root, config, log, timer_log)
    precision = precision_ms or _shown_precision(found) or config.precision_ms
    return replace(found, precision_ms=precision)


def broker_was_here(store: Snapshot, mark: Watermark) -> bool:
    """Return whether a broker appended to a store of ours since it was closed cleanly.

    Then the log goes on past the watermark's end with a record. It may also go on with a blank, if
    the broker's first record was too large for the rest of the segment.
    """
    tree, segment_bytes = store.tree, store.log_segment_bytes
    wheel_bytes = Disk().file_bytes(tree.timer_wheel)
    if not mark.is_clean or wheel_bytes != store.wheel_slot_count * wheel_slot.SLOT_BYTES:
        return False  # an open store's wheel file is longer, so that no broker accepts it
    begins = segments_of(tree.commit_log, segment_bytes)
    if not begins or mark.log_end >= begins[-1] + segment_bytes:
        return False
    windows = Windows(tree.commit_log, segment_bytes, begins[-1] + segment_bytes)
    return goes_on(windows, mark.log_end)


def _walked(
    directory: Path, segment_bytes: int, end_of: Callable[[Windows, int], int]
) -> tuple[int, int]:
    """Return where a log begins, and its end in the last segment that starts with a record."""
    begins = segments_of(directory, segment_bytes)
    if not begins:
        return 0, 0
    windows = Windows(directory, segment_bytes, begins[-1] + segment_bytes)
    for begin in reversed(begins):
        end = end_of(windows, begin)
        if end > begin:
            return begins[0], end
    return begins[0], begins[0]


def _shown_precision(store: Snapshot) -> int | None:
    """Return the slot width that a used slot and the slot time of its newest unit show."""
    disk, path = Disk(), store.tree.timer_wheel
    if not disk.exists(path) or store.timer_log_end == store.timer_log_begin:
        return None
    file = disk.open(path, read_only=True)
    windows = store.timer_log()
    for begin in range(
        0, file.size() // wheel_slot.SLOT_BYTES * wheel_slot.SLOT_BYTES, _PIECE_BYTES
    ):
        size = min(_PIECE_BYTES, file.size() - begin) // wheel_slot.SLOT_BYTES
        slots = wheel_slot.read(file.read(begin, size * wheel_slot.SLOT_BYTES))
        for slot in slots[np.flatnonzero(slots["time"] > 0)]:
            last = int(slot["last_pos"])
            if not store.timer_log_begin <= last <= store.timer_log_end - UNIT_BYTES:
                continue
            [unit] = read_units(bytes(windows.read(last, UNIT_BYTES)))
            width, rest = divmod(int(unit["write_ms"]) + int(unit["delay_ms"]), int(slot["time"]))
            if unit["unit_size"] == UNIT_BYTES and rest == 0 and 0 < width <= _PRECISION_MS_MAX:
                return width
    return None
