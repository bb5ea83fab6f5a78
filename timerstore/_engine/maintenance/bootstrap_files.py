"""The files that a restored or repaired store has in addition to its log, until it is opened.

    queues      empty, each with the end to go on from if the log has no record of it
    the wheel   zeros; its length gives the number of slots
    counts      the ends of queues, and the valid length of the file of message ids
    watermark   the log is whole and durable; its states do not exist (watermark.py)

The first opening builds all other files from the log.
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
"""The units of such a queue take 5 EiB. Their offset in bytes is still a valid file offset."""


def check_ends(ends: Pending) -> None:
    """Raise CorruptError if a queue with such an end cannot exist."""
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
    """Write the files, the watermark last. They are durable on return.

    `ids`: the file of message ids, which exists already.

    Raises:
        CorruptError: a queue with such an end cannot exist.
    """
    check_ends(ends)
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
