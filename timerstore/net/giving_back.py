"""The result of a call whose caller is gone: what a client gives back to the server.

Both clients use it for calls that were interrupted, cancelled or not answered in time.
"""

from typing import Any, NamedTuple

from timerstore.net.call_table import (
    CONSUMER_CALLS,
    GIVE_BACK,
    LIST_CALLS,
    CallSpec,
    receipts_in,
)
from timerstore.net.wire_messages import Answer, Failure, decode_value

_TARGETS = frozenset({"consumer", *LIST_CALLS})


class GivingBack(NamedTuple):
    """A call that gives back a part of a result; the arguments of a channel's `request`."""

    spec: CallSpec
    args: list[Any]
    options: dict[str, Any]
    target: int = 0


def has_to_be_given_back(spec: CallSpec) -> bool:
    """Return whether the result of a call leases messages or makes a target."""
    return spec.name == "receive" or spec.name in _TARGETS


def calls_that_give_back(spec: CallSpec, reply: Answer | Failure) -> list[GivingBack]:
    """Return the calls that give back leased messages, or close the target that a call made."""
    if not isinstance(reply, Answer):
        return []
    if spec.name == "receive":
        receipts = receipts_in(decode_value(spec.decoder, reply.value))
        return [GivingBack(GIVE_BACK, [receipts], {})] if receipts else []
    if spec.name in _TARGETS:
        number = decode_value(spec.decoder, reply.value)
        return [GivingBack(CONSUMER_CALLS["close"], [], {}, number)]
    return []
