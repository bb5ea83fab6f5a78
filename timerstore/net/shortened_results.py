"""Shorten results that do not fit into one frame, so that no message is lost or put twice.

Thread safety: runs on the server's loop.
Invariants:
    1. A message that is cut off a result is in a later one: a consumer goes back to it, a list
       keeps it, and a leased message is given back: the next `receive` of any client gets it.
    2. A batch whose receipts would not fit is not stored.
Raises: MessageError if not even the first message fits, or if the result cannot be cut.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.leases import LeasedMessage
from timerstore.aio import AsyncConsumer
from timerstore.errors import MessageError
from timerstore.net.wire_messages import encode
from timerstore.types.messages import Message, PullResult

_FRAME_BYTES = 64
"""Of an answer, without the elements of its list."""
_PULL_BYTES = 256
"""Of the other fields of a PullResult."""
_BATCH_BYTES = 1024
"""Of the receipts of a batch, without what they have for each message."""
_RECEIPT_BYTES = 32
"""Of one message of a batch: two offsets, the due time, the timer id."""
_GIVEN_BYTES = 15
"""The same, if it may have an id of its own: the queue, two flags, the length of the id."""
_GENERATED_ID_BYTES = 32


class ResultShortener(NotCopyable):
    """Shortens the results of one connection."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max

    def check_batch(self, bodies: object, message_ids: object, priority: object) -> None:
        """Raise MessageError if the receipts of a batch may not fit: they cannot be cut, and an
        error after the put would have the caller put all messages again.
        """
        count, row_bytes, ids_bytes = _count_of(bodies), _RECEIPT_BYTES, 0
        if message_ids is not None or priority is not None:
            row_bytes += _GIVEN_BYTES
            ids_bytes = _bytes_of(message_ids)
        if priority is not None:
            row_bytes += _GENERATED_ID_BYTES
        if _BATCH_BYTES + count * row_bytes + ids_bytes > self._frame_bytes_max:
            raise MessageError(
                f"put_many: the receipts of {count} messages do not fit into a frame, which has at "
                f"most {self._frame_bytes_max} bytes (ServerLimits.frame_bytes_max); no message is "
                "stored; put them in several calls"
            )

    def pulled(self, found: PullResult) -> PullResult:
        """Return the first messages of a pull; the next one begins after them."""
        count = self._fitting("pull", found.messages, _PULL_BYTES)
        next_offset = found.messages[count].queue_offset
        return replace(found, messages=found.messages[:count], next_offset=next_offset)

    async def polled(self, consumer: AsyncConsumer, found: list[Message]) -> list[Message]:
        """Return the first messages of a poll, and let the consumer go back to the others."""
        try:
            count = self._fitting("poll", found)
        except MessageError:
            await _go_back(consumer, found)
            raise
        await _go_back(consumer, found[count:])
        return found[:count]

    def listed(self, found: list[Any], keep: Callable[[list[Any]], None]) -> list[Any]:
        """Return the first rows of a page, and let the list keep the others."""
        try:
            count = self._fitting("next", found)
        except MessageError:
            keep(found)
            raise
        keep(found[count:])
        return found[:count]

    def received(self, found: list[LeasedMessage]) -> tuple[list[LeasedMessage], list[str]]:
        """Return the first leased messages, and the receipts of the others, to give them back."""
        count = self._fitting("receive", found)
        return found[:count], [one.receipt for one in found[count:]]

    def _fitting(self, name: str, rows: Sequence[Any], more_bytes: int = 0) -> int:
        """Return how many rows fit into a frame."""
        left = self._frame_bytes_max - _FRAME_BYTES - more_bytes
        for count, one in enumerate(rows):
            left -= len(encode(one))
            if left < 0:
                if count == 0:
                    raise MessageError(
                        f"{name}: one message of the result does not fit into a frame, which has "
                        f"at most {self._frame_bytes_max} bytes (ServerLimits.frame_bytes_max)"
                    )
                return count
        return max(len(rows) - 1, 1)  # only the fields around the rows are too long


def _count_of(bodies: object) -> int:
    """Return the number of bodies: a list, or a buffer and offsets. 0: the store rejects them."""
    if isinstance(bodies, tuple):
        return len(bodies[1]) - 1
    return len(bodies) if isinstance(bodies, list) else 0


def _bytes_of(message_ids: object) -> int:
    """Return the bytes of the texts of ids: a list, or a buffer and offsets."""
    if isinstance(message_ids, tuple):
        return len(message_ids[0])
    if not isinstance(message_ids, list):
        return 0
    return len(
        "".join(one for one in message_ids if isinstance(one, str)).encode("utf-8", "replace")
    )


async def _go_back(consumer: AsyncConsumer, messages: list[Message]) -> None:
    first: dict[int, int] = {}
    for one in messages:
        first.setdefault(one.queue_id, one.queue_offset)
    for queue_id, offset in first.items():
        with suppress(MessageError):  # the queue moved to another consumer, which begins there
            await consumer.seek(offset, queue_id=queue_id)
