"""Convert the argument of `Consumer.commit` to queue offsets.

Raises: MessageError on messages and offsets that the consumer has not handed out.
"""

from collections.abc import Mapping

from timerstore._engine.base.argument_types import whole
from timerstore._engine.read.groups import Group, Member
from timerstore._engine.read.validation import whole_or
from timerstore.errors import MessageError, kind_of, quoted
from timerstore.messages import Message


def requested_offsets(group: Group, member: Member, through: object) -> dict[int, int]:
    """Return the offset to commit for each queue; the caller has the group's lock.

    Queues that were revoked, and offsets before one that is durable, are left out.
    """
    assigned = member.assigned
    if through is None:
        return {q: one.position for q, one in assigned.items() if one.position >= 0}
    if isinstance(through, Message):
        queue_id, offset = _offset_after(group.topic, through)
        if queue_id not in assigned and queue_id < group.queue_count:
            return {}
        through = {queue_id: offset}
    if not isinstance(through, Mapping):
        raise MessageError(
            f"commit: wanted a Message or a mapping of queues, got {kind_of(through)}"
        )
    problems, requested = [], {}
    for queue_id, offset in through.items():
        number, place = whole_or(queue_id, -1), whole_or(offset, -1)
        one = assigned.get(number)
        if one is not None and 0 <= place <= max(one.position, 0):
            if one.position >= 0 and place >= one.commit_floor:  # -1: the group may be anywhere
                requested[number] = place
        elif 0 <= place <= member.revoked.get(number, -1):
            continue  # the queue was revoked, and may have been assigned again
        elif one is None:
            problems.append(f"commit: it has the queues {sorted(assigned)}, got {quoted(queue_id)}")
        else:
            problems.append(
                f"commit: queue {queue_id} was read to {max(one.position, 0)}, got {quoted(offset)}"
            )
    if problems:
        raise MessageError(problems)
    return requested


def _offset_after(topic: str, message: Message) -> tuple[int, int]:
    """Return queue and next offset of a message, whose fields a caller may have made up."""
    its_topic: object = message.topic
    if not isinstance(its_topic, str) or its_topic != topic:
        raise MessageError(f"commit: this consumer reads {topic!r}, got one of {quoted(its_topic)}")
    queue_id, offset = whole(message.queue_id), whole(message.queue_offset)
    if queue_id is None or offset is None:
        raise MessageError(
            "commit: wanted whole numbers as queue_id and queue_offset of the message, got "
            f"{quoted(message.queue_id)} and {quoted(message.queue_offset)}"
        )
    return queue_id, offset + 1
