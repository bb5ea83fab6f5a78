"""Geometry: sizes that a directory's files show, against those that were configured.

Holds:    what the files show wins where the configuration says nothing else (its default); a
          configured value that contradicts them is a ConfigError that names both.
"""

import dataclasses
from pathlib import Path
from typing import Any

from timerstore.config import StoreConfig
from timerstore.errors import ConfigError
from timerstore.layout.tree import Tree
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
