"""Compare the sizes that a directory's files show with the configured ones.

Invariants:
    1. A setting with its default value takes the size that the files show. Another configured value
       that contradicts the files raises ConfigError, which names both.
    2. A damaged wheel file is rebuilt, so its length is not trusted if the watermark has the number
       of slots. An exception is a file with the length that a broker makes.
Raises: ConfigError, with every contradiction. CorruptError if the length of a commit log file is
    out of range.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from timerstore._engine.format import index_position
from timerstore._engine.format.store_paths import Tree, is_index_name
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.format.wheel_slot import BROKER_SLOT_COUNT, SLOT_BYTES
from timerstore._engine.storage.disk import Disk
from timerstore.errors import ConfigError, CorruptError
from timerstore.types.config import RANGES, StoreConfig

_DEFAULT = StoreConfig()

SIZES = (
    "commit_log_segment_bytes",
    "queue_segment_bytes",
    "timer_log_segment_bytes",
    "wheel_slot_count",
    "precision_ms",
    "index_slot_count",
    "index_entry_count",
)
"""The settings that files show."""


def is_left_to_files(config: StoreConfig, name: str) -> bool:
    """Return whether a setting takes the size that the files show."""
    return name in SIZES and getattr(config, name) == getattr(_DEFAULT, name)


def _segment_bytes(disk: Disk, directories: Iterable[Path]) -> int | None:
    """Return the first size that two segments share; the first size if no two share one.

    Empty files do not count. One truncated segment does not tell the size of the others.
    """
    sizes: list[int] = []
    for directory in directories:
        for name in disk.list(directory):
            if len(name) == 20 and name.isdecimal():
                size = disk.file_bytes(directory / name)
                if size in sizes:
                    return size
                if size:
                    sizes.append(size)
    return sizes[0] if sizes else None


def queue_bytes(disk: Disk, tree: Tree) -> int | None:
    """Return the size of the queues' files, bytes; None without files."""
    topics = _folders(disk, tree.queues)
    return _segment_bytes(disk, (queue for topic in topics for queue in _folders(disk, topic)))


def _folders(disk: Disk, directory: Path) -> list[Path]:
    paths = [directory / name for name in disk.list(directory)]
    return [path for path in paths if disk.is_directory(path)]


_INDEX_HEADER_BYTES = 40
_INDEX_ENTRY_BYTES = 20


def _index_counts(
    disk: Disk, tree: Tree, wanted: StoreConfig
) -> tuple[int | None, int | None, Path]:
    """Return the numbers of slots and entries of the index, and the file that shows them.

    They are in the index position file. Without it they follow from the length of the first file
    that is not empty: the configured numbers if these fit, else four entries a slot, the default of
    a broker. Without such a file they are None.
    """
    position = index_position.read(disk.read_small(tree.index_position))
    if position is not None:
        return position.slot_count, position.entry_count, tree.index_position
    paths = [tree.index / name for name in disk.list(tree.index) if is_index_name(name)]
    path = next((one for one in paths if disk.file_bytes(one)), None)
    if path is None:
        return None, None, tree.index
    file_bytes = disk.file_bytes(path) or 0
    size = file_bytes - _INDEX_HEADER_BYTES
    configured = wanted.index_slot_count, wanted.index_entry_count
    if size == 4 * configured[0] + _INDEX_ENTRY_BYTES * configured[1]:
        return *configured, path
    slots, rest = divmod(size, 4 + 4 * _INDEX_ENTRY_BYTES)
    if rest == 0 and 1 <= slots <= 25_000_000:
        return slots, 4 * slots, path
    raise ConfigError(
        f"index_slot_count, index_entry_count: {path} has {file_bytes} bytes, which does not fit "
        f"{configured[0]} slots and {configured[1]} entries; configure the numbers it was made "
        "with, or remove the folder"
    )


def _wheel_slot_count(disk: Disk, tree: Tree, mark: Watermark | None) -> tuple[int | None, Path]:
    slots, rest = divmod(disk.file_bytes(tree.timer_wheel) or 0, SLOT_BYTES)
    if mark is None or (slots, rest) == (BROKER_SLOT_COUNT, 0):
        return slots // 2 * 2 or None, tree.timer_wheel
    return mark.wheel_slot_count, tree.watermark


def _check_log(disk: Disk, tree: Tree) -> None:
    """Raise CorruptError if the log's files have a length that no setting allows."""
    low, high = RANGES["commit_log_segment_bytes"]
    found = _segment_bytes(disk, [tree.commit_log])
    if found is None or low <= found <= high:
        return
    files = [tree.commit_log / name for name in disk.list(tree.commit_log)]
    raise CorruptError(
        "a commit log file has a length that no setting allows",
        where=next(path for path in files if disk.file_bytes(path) == found),
        wanted=f"{low} to {high} bytes",
        got=found,
    )


def adopt_geometry(
    disk: Disk, tree: Tree, config: StoreConfig | None, mark: Watermark | None
) -> StoreConfig:
    """Return the configuration with the sizes that existing files show.

    mark: the watermark, which has the number of wheel slots and the precision; None without one.

    Raises:
        ConfigError: configured sizes contradict the files. All contradictions are named.
        CorruptError: the commit log's files have a length that no setting allows.
    """
    wanted = config if config is not None else _DEFAULT
    _check_log(disk, tree)
    shown: dict[str, tuple[int | None, Path]] = {
        "commit_log_segment_bytes": (_segment_bytes(disk, [tree.commit_log]), tree.commit_log),
        "queue_segment_bytes": (queue_bytes(disk, tree), tree.queues),
        "timer_log_segment_bytes": (_segment_bytes(disk, [tree.timer_log]), tree.timer_log),
        "wheel_slot_count": _wheel_slot_count(disk, tree, mark),
        "precision_ms": (None if mark is None else mark.precision_ms, tree.watermark),
    }
    if wanted.index_enabled:
        slot_count, entry_count, where = _index_counts(disk, tree, wanted)
        shown["index_slot_count"] = slot_count, where
        shown["index_entry_count"] = entry_count, where
    problems = []
    changes: dict[str, Any] = {}
    for name, (found, where) in shown.items():
        configured = getattr(wanted, name)
        if found is None or found == configured:
            continue
        if not is_left_to_files(wanted, name):
            problems.append(f"{name}: configured {configured}, but {where} shows {found}")
        changes[name] = found
    if problems:
        raise ConfigError(problems)
    return dataclasses.replace(wanted, **changes) if changes else wanted
