"""Priorities of messages: each is a queue of a topic with priorities, as in RocketMQ 5.

A topic becomes one with priorities by its first message that has one. Then queue 0 holds the
messages without a priority, and queue n those of priority n. The message also has the property
that a RocketMQ client gives it.

Raises: MessageError for an invalid priority.
"""

import re

from timerstore._engine.base.argument_types import whole
from timerstore.errors import MessageError, quoted

PRIORITY_PROPERTY = "_SYS_MSG_PRIORITY_"
PRIORITY_MAX = 9
PRIORITY_QUEUE_COUNT = PRIORITY_MAX + 1

_HAS_PRIORITY = re.compile(rb"(?:^|\x02)%s\x01" % PRIORITY_PROPERTY.encode())


class PriorityQueueId(int):
    """The queue of a priority. Its topic becomes one with priorities."""

    __slots__ = ()

    @property
    def text(self) -> bytes:
        """The encoded property of a message with this priority; empty for 0."""
        return b"%s\x01%d\x02" % (PRIORITY_PROPERTY.encode(), self) if self else b""


def queue_of_priority(priority: object, queue_id: object) -> PriorityQueueId | None:
    """Return the queue of a priority, or None for priority 0, which needs no queue of its own."""
    number = whole(priority)
    if number is None or not 0 <= number <= PRIORITY_MAX:
        raise MessageError(f"priority: wanted 0 to {PRIORITY_MAX}, got {quoted(priority)}")
    if queue_id is not None:
        raise MessageError(
            "priority, queue_id: wanted one of them, because a priority is a queue of its topic; "
            f"got priority {number} and queue_id {quoted(queue_id)}"
        )
    return PriorityQueueId(number) if number else None


def rank_of_queue(queue_id: int) -> int:
    """Return the priority of a queue; of one past the priorities, a number below all of them."""
    return queue_id if queue_id <= PRIORITY_MAX else -queue_id


def stored_queue_id(queue_id: int, properties: bytes) -> int:
    """Return a stored queue id as that of a priority if the encoded properties have one."""
    return PriorityQueueId(queue_id) if _HAS_PRIORITY.search(properties) else queue_id
