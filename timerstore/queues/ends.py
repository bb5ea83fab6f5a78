"""Ends: queue folders of a store that is put together, so that each queue goes on counting where it
ended, should the log have no record of it any more.
"""

from timerstore.errors import CorruptError
from timerstore.files.disk import Disk
from timerstore.layout.counts_json import Pending
from timerstore.layout.tree import QUEUE_COUNT_MAX, Tree, can_have_queue
from timerstore.queues.consume_queue import ConsumeQueue

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


def make_queues(disk: Disk, tree: Tree, ends: Pending, segment_bytes: int) -> None:
    """Make the queues of these topics, without a unit and with these ends; durable on return.

    CorruptError where there can be no such queue.
    """
    refuse_ends(ends)
    for topic, queues in ends.items():
        for queue_id, end in queues.items():
            directory = tree.queue(topic, queue_id)
            disk.make_directory(directory)
            queue = ConsumeQueue(disk, directory, segment_bytes)
            queue.load()
            queue.restart(end)
            queue.sync()
            queue.close()
