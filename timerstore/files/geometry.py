"""Geometry: sizes that a directory's files show, against those that were configured.

Holds:    what the files show wins where the configuration says nothing else (its default); a
          configured value that contradicts them is a ConfigError that names both.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

from timerstore.config import StoreConfig
from timerstore.errors import ConfigError
from timerstore.layout import index_position
from timerstore.layout.tree import Tree, is_index_name
from timerstore.layout.watermark import Watermark

_SLOT_BYTES = 32
_DEFAULT = StoreConfig()


def _file_bytes(directory: Path) -> int | None:
    """Size of the first file that is a segment and not empty."""
    if not directory.is_dir():
        return None
    for path in sorted(directory.iterdir()):
        if path.is_file() and len(path.name) == 20 and path.name.isdecimal():
            size = path.stat().st_size
            if size:
                return size
    return None


def _queue_bytes(tree: Tree) -> int | None:
    if not tree.queues.is_dir():
        return None
    for topic in sorted(tree.queues.iterdir()):
        for queue in sorted(topic.iterdir()) if topic.is_dir() else ():
            size = _file_bytes(queue)
            if size is not None:
                return size
    return None


class _Index(NamedTuple):
    slot_count: int
    entry_count: int


_INDEX_HEADER_BYTES = 40
_INDEX_ENTRY_BYTES = 20


def _index_file(tree: Tree) -> Path | None:
    """The first index file that is not empty."""
    if not tree.index.is_dir():
        return None
    for path in sorted(tree.index.iterdir()):
        if path.is_file() and is_index_name(path.name) and path.stat().st_size:
            return path
    return None


def _index_counts(tree: Tree, wanted: StoreConfig) -> tuple[_Index, Path] | None:
    """What our own note of the index says; else of a file's length as much as can be told: four
    entries a slot, as a broker has them unless it is told otherwise.
    """
    raw = tree.index_position.read_bytes() if tree.index_position.exists() else None
    noted = index_position.read(raw)
    if noted is not None:
        return _Index(noted.slot_count, noted.entry_count), tree.index_position
    path = _index_file(tree)
    if path is None:
        return None
    size = path.stat().st_size - _INDEX_HEADER_BYTES
    configured = _Index(wanted.index_slot_count, wanted.index_entry_count)
    if size == 4 * configured.slot_count + _INDEX_ENTRY_BYTES * configured.entry_count:
        return configured, path
    slots, rest = divmod(size, 4 + 4 * _INDEX_ENTRY_BYTES)
    if rest == 0 and 1 <= slots <= 25_000_000:
        return _Index(slots, 4 * slots), path
    raise ConfigError(
        f"index_slot_count, index_entry_count: {path} has {size + _INDEX_HEADER_BYTES} bytes, "
        f"which are not those of {configured.slot_count} slots and {configured.entry_count} "
        "entries; configure what it was made with, or remove the folder"
    )


def _wheel_slots(tree: Tree) -> int | None:
    if not tree.timer_wheel.exists():
        return None
    return tree.timer_wheel.stat().st_size // 2 // _SLOT_BYTES * 2 or None


def adopt_geometry(tree: Tree, config: StoreConfig | None, mark: Watermark | None) -> StoreConfig:
    """Give the configuration with the sizes of the files that are there."""
    wanted = config if config is not None else _DEFAULT
    shown: dict[str, tuple[int | None, Path]] = {
        "commit_log_segment_bytes": (_file_bytes(tree.commit_log), tree.commit_log),
        "queue_segment_bytes": (_queue_bytes(tree), tree.queues),
        "timer_log_segment_bytes": (_file_bytes(tree.timer_log), tree.timer_log),
        "wheel_slot_count": (_wheel_slots(tree), tree.timer_wheel),
        "precision_ms": (None if mark is None else mark.precision_ms, tree.watermark),
    }
    index = _index_counts(tree, wanted) if wanted.index_enabled else None
    if index is not None:
        counts, where = index
        shown["index_slot_count"] = counts.slot_count, where
        shown["index_entry_count"] = counts.entry_count, where
    problems = []
    changes: dict[str, Any] = {}  # by name: no type says which fields are whole numbers
    for name, (found, where) in shown.items():
        configured = getattr(wanted, name)
        if found is None or found == configured:
            continue
        if configured != getattr(_DEFAULT, name):
            problems.append(f"{name}: configured {configured}, but {where} shows {found}")
        changes[name] = found
    if problems:
        raise ConfigError(problems)
    return dataclasses.replace(wanted, **changes) if changes else wanted
