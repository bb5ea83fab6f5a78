"""A call that settles leases or extends one, as a value."""

from typing import Any, Literal, NamedTuple

from timerstore._engine.format.lease import Receipt, read_receipt
from timerstore._engine.leases.backoff import delay_ms
from timerstore._engine.leases.leased_message import AckResult, LeasedMessage
from timerstore.errors import MessageError, plain, typed

ReceiptOrMessage = str | LeasedMessage
"""A receipt, or the leased message with that receipt."""


Settled = AckResult | str | list[AckResult] | int
"""The result of a call: of extend a receipt, of renew the end in ms, of ack_many one result for
each receipt, of give_back the number of messages."""


class LeaseCall(NamedTuple):
    """One call. The engine checks its arguments."""

    kind: Literal["ack", "ack_many", "nack", "extend", "renew", "give_back"]
    target: Any
    """A receipt or a leased message; of ack_many and give_back several."""
    delay: object = None
    """Of nack."""
    lease: object = 30.0
    """Of extend and renew."""
    error: object = None
    """Of nack."""


def receipt_of(target: object) -> Receipt:
    """Return the receipt. MessageError for another text or value."""
    return read_receipt(target.receipt if isinstance(target, LeasedMessage) else target)


def lease_s(lease: object) -> float:
    """Return the length of a lease in seconds; raise MessageError for another value."""
    return delay_ms("lease", lease) / 1000


def check_error(error: object) -> str | None:
    """Return the reason of a failed attempt; None for no text. MessageError for another value."""
    error = plain(error)
    if error is not None and not isinstance(error, str):
        raise MessageError(f"error: wanted text or None, got {typed(error)}")
    return error or None
