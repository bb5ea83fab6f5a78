"""Check the files of config/: each can be read, and no committed offset lies past its queue."""

from collections.abc import Callable
from pathlib import Path

from timerstore._engine.format import (
    delay_offset_json,
    recurring_json,
    timer_metrics_json,
    topics_json,
)
from timerstore._engine.format.consumer_offset_json import ConsumerOffsets
from timerstore._engine.format.store_paths import backup_of
from timerstore._engine.maintenance.store_view import StoreView
from timerstore._engine.read.consumer_offsets import offsets_past_end, read_file
from timerstore.errors import TimerStoreError


def check_config(view: StoreView) -> None:
    """Read every file of a directory's config/ but the committed offsets. An open store read them
    when it was opened, and writes them again.
    """
    if view.engine is not None:
        return
    tree = view.tree
    readers: dict[Path, Callable[[bytes | None, bytes | None], object]] = {
        tree.topics_json: topics_json.read,
        tree.delay_offset_json: delay_offset_json.read,
        tree.timer_metrics: timer_metrics_json.read,
        tree.recurring_json: lambda text, _backup: recurring_json.read(text),
    }
    for path, read in readers.items():
        try:
            read(view.disk.read_small(path), view.disk.read_small(backup_of(path)))
        except TimerStoreError as error:
            view.findings.raised("a file of config/", path, error)


def read_offsets(view: StoreView) -> ConsumerOffsets:
    """Read the committed offsets. This comes before the queues are read, which only grow."""
    try:
        return read_file(view.disk, view.tree)
    except TimerStoreError as error:
        view.findings.raised("committed offsets", view.tree.consumer_offset_json, error)
        return ConsumerOffsets()


def check_offsets(view: StoreView, file: ConsumerOffsets) -> None:
    """Check that no group of an open store has committed an offset past the end of a queue. It
    would skip the next messages.
    """
    if view.engine is None:
        return
    view.findings.count("committed offsets", sum(len(one) for one in file.table.values()))
    for one in offsets_past_end(file, view.engine.routes):
        view.findings.add(
            f"committed offset of group {one.group}, topic {one.topic} queue {one.queue_id}",
            view.tree.consumer_offset_json,
            f"at most {one.end}",
            one.offset,
        )
