"""The results of leasing: leased messages, dead letters and the outcomes of receipts.

All are immutable.
"""

from dataclasses import dataclass
from enum import StrEnum

from timerstore.messages import Message
from timerstore.reports import CancelResult


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LeasedMessage(Message):
    """A leased message: `ack` its receipt before `lease_until_ms`, or it is delivered again.

    At every attempt, the topic, queue, offset, due and delivery time, born time, body, tags, keys
    and properties are those of the original message. `log_offset` and `store_ms` are those of the
    copy that was read.
    """

    receipt: str
    """A text that identifies the lease; usable in JSON, after a restart and from any thread."""
    attempt: int
    """1 for the first delivery to the group, then 2, and so on."""
    lease_until_ms: int
    """The end of the lease, in ms since 1970 of the store's clock; then it is delivered again."""
    is_last_attempt: bool
    """Whether the message goes to the dead-letter topic unless it is acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DeadLetter(Message):
    """A dead letter of a group: a message that was buried, or whose attempts were used up.

    Topic, queue, offset, due and delivery time, born time, body, tags, keys and properties are
    those of the original message. `log_offset` is that of the dead letter, and `store_ms` is the
    time at which the message became one.
    """

    group: str
    """The group whose dead letter it is."""
    receipt: str
    """A text that identifies the dead letter for `requeue`; usable in JSON and after a restart."""
    attempt: int
    """How often the message was delivered to the group; 0: unknown, as a broker wrote it."""
    error: str | None = None
    """The reason that the last `nack` or `bury` with `error=` gave, at most its first 1,024 bytes
    of UTF-8. None: there was none."""


class AckResult(StrEnum):
    """The result of `ack`, `nack` or `bury`."""

    ACKED = "ACKED"
    """The group is done with the message; it is not delivered again."""
    NACKED = "NACKED"
    """The message is delivered again when its back-off is over."""
    BURIED = "BURIED"
    """The message is a dead letter of the group; only `requeue` delivers it again."""
    EXPIRED = "EXPIRED"
    """The lease was over. The message is in the retry topic or the dead-letter topic, or has been
    leased again. Nothing was changed."""
    SETTLED = "SETTLED"
    """The receipt was used before: acked, nacked, buried, or extended, which returned another
    receipt. Nothing was changed."""
    UNKNOWN = "UNKNOWN"
    """The store has no such lease: it belongs to another store, or ended long ago."""


RESULTS = {
    CancelResult.CANCELLED: AckResult.ACKED,
    CancelResult.ALREADY_DELIVERED: AckResult.EXPIRED,
    CancelResult.ALREADY_CANCELLED: AckResult.SETTLED,
    CancelResult.UNKNOWN: AckResult.UNKNOWN,
}
"""The outcome of a lease by the outcome of its timer."""
