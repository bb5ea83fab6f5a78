"""Unbuilt: what a store that is put together has beside its log, before it is opened first.

    queues      empty, each with the end to go on from, should the log have no record of it any more
    the wheel   of zeros, which says its size
    counts      where queues end, and how much of a file of message ids counts
    watermark   that the log is whole and durable; it wants states that are nowhere (watermark.py)

The first opening builds all else from the log.
"""

from timerstore._engine.format import counts_json, watermark
from timerstore._engine.format.counts_json import Counts, IdsMark, Pending
from timerstore._engine.format.store_paths import QUEUE_COUNT_MAX, Tree, can_have_queue
from timerstore._engine.format.watermark import Watermark
from timerstore._engine.format.wheel_slot import SLOT_BYTES
from timerstore._engine.queues.consume_queue import ConsumeQueue
from timerstore._engine.storage.disk import Disk
from timerstore.errors import CorruptError

QUEUE_END_MAX = 1 << 58
"""Its units would be 5 EiB: times 20 that still is a number of a file."""


def refuse_ends(ends: Pending) -> None:
    """CorruptError where there can be no such queue."""
    for topic, queues in ends.items():
        for queue_id, end in queues.items():
            if not can_have_queue(topic, queue_id) or not 0 <= end < QUEUE_END_MAX:
                raise CorruptError(
                    "the end of a queue",
                    wanted=f"a topic, a queue below {QUEUE_COUNT_MAX}, an end below 2^58",
                    got=f"{topic!r}, {queue_id}, {end}",
                )


def write_bootstrap(
    disk: Disk, tree: Tree, mark: Watermark, ends: Pending, ids: IdsMark, queue_segment_bytes: int
) -> None:
    """Write it, the watermark last; durable on return. `ids`: of the file that is there already.

    CorruptError where there can be no queue with such an end.
    """
    refuse_ends(ends)
    for topic, queues in ends.items():
        for queue_id, end in queues.items():
            _make_queue(disk, tree, topic, queue_id, end, queue_segment_bytes)
    wheel = disk.open(tree.timer_wheel, create=True)
    wheel.resize(mark.wheel_slot_count * SLOT_BYTES)
    wheel.sync()
    disk.make_directory(tree.side)
    counts = Counts(mark.log_end, {}, ends, {}, {}, ids)
    disk.write_small(tree.counts, counts_json.write([counts]))
    disk.write_small(tree.watermark, watermark.write(mark))


def _make_queue(
    disk: Disk, tree: Tree, topic: str, queue_id: int, end: int, segment_bytes: int
) -> None:
    directory = tree.queue(topic, queue_id)
    disk.make_directory(directory)
    queue = ConsumeQueue(disk, directory, segment_bytes)
    queue.load()
    queue.restart(end)
    queue.sync()
    queue.close()
