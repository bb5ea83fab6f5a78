"""Copy a message for a lease, or back from a dead letter: its body, properties and id.

Thread safety: any thread; there is no state.
"""

from collections.abc import Sequence
from typing import Protocol

from timerstore._engine.base.column_batch import ColumnBatch, joined_column
from timerstore._engine.base.message_fields import UNIQUE_PROPERTY, is_of_engine
from timerstore._engine.format.lease import LEASE_PROPERTY, TOPIC_PROPERTY, Lease, write_lease
from timerstore.errors import CorruptError, MessageError
from timerstore.messages import SYS_FLAG_COMPRESSED, Int64Array, Message


class CopyRow(Protocol):
    """One copy of a message."""

    @property
    def message_id(self) -> str:
        """The id of the message."""

    @property
    def body(self) -> bytes:
        """The body of the copy."""

    @property
    def text(self) -> bytes:
        """The encoded properties of the copy."""


def columns_of(rows: Sequence[CopyRow], due: Int64Array) -> ColumnBatch:
    """Return the rows as columns, with a due time in ms for each; 0: now."""
    ids = [row.message_id.encode() for row in rows]
    bodies, properties = [row.body for row in rows], [row.text for row in rows]
    made = ColumnBatch(*joined_column(bodies), due, b"")
    return made.with_extra(*joined_column(properties)).with_ids(*joined_column(ids))


def body_of(message: Message) -> bytes:
    """Return the body, inflated if possible: the copy has no flag for a compressed body."""
    if not message.sys_flag & SYS_FLAG_COMPRESSED:
        return message.raw_body
    try:
        return message.body
    except (MessageError, CorruptError):
        return message.raw_body


def properties_of(message: Message, lease: Lease, topic: str) -> bytes:
    """Return the encoded properties of a copy: those of the message and those of the lease.

    Those of the engine are set for each copy, or have no meaning for it; but a unique message stays
    one.
    """
    pairs = [
        f"{name}\x01{value}\x02"
        for name, value in message.properties.items()
        if name == UNIQUE_PROPERTY or (name != TOPIC_PROPERTY and not is_of_engine(name))
    ]
    pairs.append(f"{LEASE_PROPERTY}\x01{write_lease(lease)}\x02{TOPIC_PROPERTY}\x01{topic}\x02")
    return "".join(pairs).encode()
