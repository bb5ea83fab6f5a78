"""Whether consume queues may be asked where a topic's records are: they are disposable.

Holds:    a yes means that the topics' queues are there, and reach as far as the log that is read.
Fails:    never: what cannot be read is a no.
"""

from collections.abc import Iterable, Iterator

from timerstore._engine.format import topics_json
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC, backup_of
from timerstore._engine.storage.disk import Disk
from timerstore._engine.tables.file_limits import Snapshot
from timerstore._engine.tables.log_walk import QueueUnits, queues_of, skip_records
from timerstore.errors import TimerStoreError

_UNLISTED = {WHEEL_TIMER_TOPIC, SCHEDULE_TOPIC}
"""Topics that topics.json may leave out though they have records."""


def is_covered(store: Snapshot, topics: Iterable[str]) -> bool:
    """Whether every record of these topics below the limit has its unit, as far as can be told.

    Queues are made in the log's order: where any of them has the last record, all were that far.
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
    text = disk.read_small(tree.topics_json)
    if text is None or missing & _UNLISTED:
        return False
    known = topics_json.read(text, disk.read_small(backup_of(tree.topics_json))).topics
    return not missing & known.keys()  # of a topic that was never made no record is there


def _is_reached(store: Snapshot, topics: set[str]) -> bool:
    begin, end = store.log_begin, store.log_end
    reached = begin
    for units in _queues(store, topics):
        low, high = units.range_within(begin, end)
        reached = max(reached, high) if low < high else reached
        if reached == end:
            return True
    # What fills up a segment has no unit.
    return begin == end or skip_records(store.log(verify=False), reached, 1)[0] == 0


def _queues(store: Snapshot, first: set[str]) -> Iterator[QueueUnits]:
    found = sorted(queues_of(store.tree), key=lambda one: one[0] not in first)
    return (QueueUnits(folder, store.queue_segment_bytes) for _, _, folder in found)
