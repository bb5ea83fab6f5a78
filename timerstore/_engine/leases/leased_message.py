"""What leasing answers: messages with a receipt, and what became of receipts.

Holds:    a value never changes after it was made.
"""

from dataclasses import dataclass
from enum import StrEnum

from timerstore.messages import Message
from timerstore.reports import CancelResult


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LeasedMessage(Message):
    """A message that is leased: `ack` it by its receipt before `lease_until_ms`, or it comes again.

    Topic, queue, offset, due and delivery time, born time, body, tags, keys and properties are the
    message's own, whichever attempt it is; `log_offset` and `store_ms` are those of the copy that
    was read.
    """

    receipt: str
    """Text that survives JSON and restarts, and works from any thread."""
    attempt: int
    """1: the first time that the group is handed it."""
    lease_until_ms: int
    """When it comes again, ms since 1970, by the store's clock."""
    is_last_attempt: bool
    """Whether it goes to the dead-letter topic next."""


class AckResult(StrEnum):
    """What `ack` or `nack` found, and did."""

    ACKED = "ACKED"
    """The group is done with the message: it does not come again."""
    NACKED = "NACKED"
    """It comes again when its back-off is over."""
    EXPIRED = "EXPIRED"
    """Too late: the lease was over, and the message is in the retry topic or the dead-letter topic,
    or was leased again by now. Nothing was changed."""
    SETTLED = "SETTLED"
    """This receipt was used before: acked, given back, or extended, which gave another receipt.
    Nothing was changed."""
    UNKNOWN = "UNKNOWN"
    """This store knows no such lease: it is another store's, or long gone."""


RESULTS = {
    CancelResult.CANCELLED: AckResult.ACKED,
    CancelResult.ALREADY_DELIVERED: AckResult.EXPIRED,
    CancelResult.ALREADY_CANCELLED: AckResult.SETTLED,
    CancelResult.UNKNOWN: AckResult.UNKNOWN,
}
"""By what became of the timer that a lease is."""
