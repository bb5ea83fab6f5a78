"""The codes of the protocol: one for each error of the store, and for each outcome.

A business error is a `Status` in the answer. Only a server that ends uses a status of gRPC.
"""

from collections.abc import Iterable
from typing import Any

from timerstore._engine.leases import AckResult
from timerstore.errors import (
    BusyError,
    ConflictError,
    FullError,
    LeaseLostError,
    MessageError,
    TimerStoreError,
)
from timerstore.rocketmq.definitions import Code, messages
from timerstore.types.reports import CancelResult

_OF_ARGUMENTS = {
    "topic": Code.ILLEGAL_TOPIC,
    "group": Code.ILLEGAL_CONSUMER_GROUP,
    "tags": Code.ILLEGAL_MESSAGE_TAG,
    "keys": Code.ILLEGAL_MESSAGE_KEY,
    "message_group": Code.ILLEGAL_MESSAGE_GROUP,
    "properties": Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
    "message_id": Code.ILLEGAL_MESSAGE_ID,
    "sql": Code.ILLEGAL_FILTER_EXPRESSION,
    "lease": Code.ILLEGAL_INVISIBLE_TIME,
    "deliver_ms": Code.ILLEGAL_DELIVERY_TIME,
    "priority": Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    "receipt": Code.INVALID_RECEIPT_HANDLE,
    "wait": Code.ILLEGAL_POLLING_TIME,
    "body": Code.MESSAGE_BODY_TOO_LARGE,
    "message": Code.PAYLOAD_TOO_LARGE,
}
_TOO_LARGE = "properties: wanted at most"
_DONE = frozenset({AckResult.ACKED, AckResult.NACKED, AckResult.BURIED})


class RejectedError(Exception):
    """A request that the server rejects itself, with the code and the text of its answer."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def status(code: int = Code.OK, text: str = "") -> Any:
    """Return a Status; the text of OK is its name, as clients log it."""
    return messages.Status(code=code, message=text or Code(code).name)


def status_of(error: TimerStoreError | RejectedError, *, is_filter: bool = False) -> Any | None:
    """Return the status of an error; None if the error is not one of the request.

    is_filter: the request reads messages, so that its tags are a filter.
    """
    if isinstance(error, RejectedError):
        return status(error.code, error.text)
    if isinstance(error, MessageError):
        return status(_code_of(error, is_filter=is_filter), str(error))
    if isinstance(error, ConflictError):
        return status(Code.ILLEGAL_MESSAGE_ID, str(error))
    if isinstance(error, BusyError | FullError):
        return status(Code.TOO_MANY_REQUESTS, str(error))
    if isinstance(error, LeaseLostError):
        return lost_lease(error.result)
    return None


def _code_of(error: MessageError, *, is_filter: bool) -> int:
    name = next(iter(error.arguments), "")
    if name == "tags" and is_filter:
        return int(Code.ILLEGAL_FILTER_EXPRESSION)
    if name == "properties" and str(error).startswith(_TOO_LARGE):
        return int(Code.MESSAGE_PROPERTIES_TOO_LARGE)
    return int(_OF_ARGUMENTS.get(name, Code.BAD_REQUEST))


def lost_lease(result: str) -> Any:
    """Return the status of a receipt that is not held any more."""
    return status(Code.INVALID_RECEIPT_HANDLE, result)


def settled(result: AckResult) -> Any:
    """Return the status of an `ack`, `nack` or `bury`."""
    return status() if result in _DONE else lost_lease(result)


def recalled(result: CancelResult) -> Any:
    """Return the status of a recall."""
    return status() if result is CancelResult.CANCELLED else status(Code.NOT_FOUND, result)


def joint(entries: Iterable[Any]) -> Any:
    """Return the status of an answer with several entries: theirs, or MULTIPLE_RESULTS."""
    found = [one.status for one in entries]
    if all(one.code == found[0].code for one in found):
        return found[0]
    return status(Code.MULTIPLE_RESULTS)
