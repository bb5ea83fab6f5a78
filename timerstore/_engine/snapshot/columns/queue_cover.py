"""Decide whether consume queues can be used to find a topic's records. They are derived files, and
may be missing or incomplete.

Invariants: `is_covered` is true only if the topics' queues exist and reach the end of the log that
is read. It is false if anything cannot be read.
"""

from collections.abc import Iterable, Iterator

from timerstore._engine.format.store_paths import SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC
from timerstore._engine.snapshot.columns.record_starts import QueueUnits
from timerstore._engine.snapshot.file_limits import Snapshot
from timerstore._engine.snapshot.log_walk import skip_records
from timerstore._engine.snapshot.queue_files import queue_folders, read_topics
from timerstore._engine.storage.disk import Disk
from timerstore.errors import TimerStoreError

_UNLISTED = {WHEEL_TIMER_TOPIC, SCHEDULE_TOPIC}
"""Topics that topics.json may leave out though they have records."""


def is_covered(store: Snapshot, topics: Iterable[str]) -> bool:
    """Return whether every record of these topics below the limit has its queue unit.

    Queues are written in the order of the log. If one of them has the last record, all of them
    reached it.
    """
    try:
        asked = set(topics)
        return _are_there(store, asked) and _is_reached(store, asked)
    except TimerStoreError:
        return False


def _are_there(store: Snapshot, topics: set[str]) -> bool:
    disk, tree = Disk(), store.tree
    folders = {name for name in disk.list(tree.queues) if disk.is_directory(tree.queues / name)}
    missing = topics - folders
    if not missing:
        return True
    if not disk.exists(tree.topics_json) or missing & _UNLISTED:
        return False
    known = read_topics(disk, tree).topics
    return not missing & known.keys()  # a topic that was never created has no record


def _is_reached(store: Snapshot, topics: set[str]) -> bool:
    begin, end = store.log_begin, store.log_end
    reached = begin
    for units in _queues(store, topics):
        low, high = units.range_within(begin, end)
        reached = max(reached, high) if low < high else reached
        if reached == end:
            return True
    # A blank at the end of a segment has no unit.
    return begin == end or skip_records(store.log(verify=False), reached, 1)[0] == 0


def _queues(store: Snapshot, first: set[str]) -> Iterator[QueueUnits]:
    found = sorted(queue_folders(Disk(), store.tree), key=lambda one: one[0] not in first)
    return (QueueUnits(folder, store.queue_segment_bytes) for _, _, folder in found)
