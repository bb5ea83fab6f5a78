"""Handles: text that names a pending message, to cancel or reschedule it.

Invariants:
    1. `decode` returns what `encode` was given. Anything else that `decode` accepts is a broker's.
Raises: MessageError that names the error in a handle.
On-disk format: URL-safe base64, with padding, of `v1 <topic> <broker> <timestamp> <id>`. Handles of
    this engine end with ` <timer id>`. The timestamp is OUT of the slot + 1 ms (file-format.md).
"""

import binascii
import ipaddress
import re
from typing import NamedTuple

from timerstore._engine.base.message_fields import is_utf8
from timerstore.errors import MessageError, quoted, typed
from timerstore.types.receipts import PutReceipt, ReceiptOrigin, make_handle, out_ms

# --- handle ---


HANDLE_CHARACTERS_MAX = 4096
"""Far more than topic (255), broker (127) and id (any text that fits a property) need."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_TIMER_ID = re.compile(r"-1|0|[1-9][0-9]{0,18}")
_OURS = re.compile(r"v1 ([!-~]+) ([!-~]+) (0|[1-9][0-9]{0,17}) ([!-~]+) (-1|0|[1-9][0-9]{0,17})")
_LOOK = ", as in djEg..."  # the encoded `v1 ` with which each handle begins
_INT64_MAX = 2**63 - 1


class Handle(NamedTuple):
    """The fields of a handle. A broker's has no `timer_id`; -1: the message had no delay."""

    topic: str
    broker_name: str
    timestamp_ms: int
    message_id: str
    timer_id: int | None

    @property
    def out_ms(self) -> int:
        """Time of the message's slot, or of the slot it rolls to, ms since 1970."""
        return self.timestamp_ms - 1


def check_receipt(receipt: PutReceipt) -> None:
    """Raise MessageError on a receipt that no put can have returned."""
    if len(receipt) != len(PutReceipt._fields):
        raise MessageError(f"receipt: wanted {len(PutReceipt._fields)} fields, got {len(receipt)}")
    problems: list[str] = []
    origin: object = receipt.origin
    if isinstance(origin, ReceiptOrigin) and len(origin) == len(ReceiptOrigin._fields):
        for name in ("topic", "id_prefix", "broker_name"):
            text = getattr(origin, name)
            if not isinstance(text, str) or not text or not is_utf8(text):
                problems.append(f"receipt: wanted text as its origin's {name}, got {typed(text)}")
        _add_number("its origin's precision_ms", origin.precision_ms, 1, problems)
    else:
        problems.append(f"receipt: wanted the origin of a put's receipt, got {typed(origin)}")
    if receipt.queue_offset is not None:
        _add_number("queue_offset", receipt.queue_offset, 0, problems)
    lowest = {"counter": 0, "timer_id": -1, "log_offset": -1, "due_ms": -_INT64_MAX}
    for name, low in lowest.items():
        _add_number(name, getattr(receipt, name), low, problems)
    if problems:
        raise MessageError(problems)


def _add_number(name: str, value: object, low: int, problems: list[str]) -> None:
    if type(value) is not int or not low <= value <= _INT64_MAX:
        problems.append(
            f"receipt: wanted a whole number of {low} or more as {name}, got {typed(value)}"
        )


def of_receipt(receipt: PutReceipt) -> Handle:
    """Return the handle of a receipt, without encoding and parsing its text."""
    origin = receipt.origin
    stamp_ms = out_ms(receipt.due_ms, origin.precision_ms) + 1
    return Handle(origin.topic, origin.broker_name, stamp_ms, receipt.message_id, receipt.timer_id)


def handle_of(receipt_or_handle: PutReceipt | str) -> Handle:
    """Return the handle of a receipt or of a text. MessageError if no timer can have it."""
    if isinstance(receipt_or_handle, PutReceipt):
        check_receipt(receipt_or_handle)
        if receipt_or_handle.waits_for_level:
            raise MessageError(
                "receipt: wanted one of a timer, got one of a message with a fixed level, which "
                "has no handle and stays as it is"
            )
        return of_receipt(receipt_or_handle)
    return decode(receipt_or_handle)


def encode(handle: Handle) -> str:
    """Return a handle's text."""
    return make_handle(*handle)


def decode(text: str) -> Handle:
    """Parse a handle of this engine or of a broker.

    Fields after the sixth are ignored, as a broker does.

    Raises:
        MessageError: the text is not a handle, or its sixth field is not a number.
    """
    if not isinstance(text, str):
        raise MessageError(
            f"handle: wanted a receipt of a put, or the text of its handle, got {typed(text)}"
        )
    if not 0 < len(text) <= HANDLE_CHARACTERS_MAX:
        raise MessageError(
            f"handle: wanted 1 to {HANDLE_CHARACTERS_MAX} characters{_LOOK}, got {len(text)} in "
            f"{quoted(text)}"
        )
    try:
        raw = binascii.a2b_base64(text.replace("-", "+").replace("_", "/"), strict_mode=True)
        whole = raw.decode("utf-8")
        plain = _OURS.fullmatch(whole)  # the usual case takes a third of the time
        if plain is not None:
            topic, broker_name, stamp, message_id, timer_id = plain.groups()
            return Handle(topic, broker_name, int(stamp), message_id, int(timer_id))
        fields = whole.split(" ")
    except ValueError as error:  # not base64, ASCII or UTF-8
        raise MessageError(
            f"handle: wanted URL-safe base64 text, complete as put returned it{_LOOK} ({error}), "
            f"got {quoted(text)}"
        ) from error
    return _from_fields(fields, text)


def _from_fields(fields: list[str], text: str) -> Handle:
    if len(fields) < 5 or fields[0] != "v1":
        raise MessageError(
            f"handle: wanted `v1` and four fields or more{_LOOK}, got {len(fields)} fields, "
            f"the first {fields[0]!r}, in {text!r}"
        )
    _, topic, broker_name, stamp, message_id = fields[:5]
    problems = []
    if not topic or not broker_name or not message_id:
        problems.append(f"handle: a field is empty in {text!r}")
    if not _NUMBER.fullmatch(stamp) or int(stamp) > _INT64_MAX:
        problems.append(f"handle: wanted a time in ms, got {stamp!r}")
    timer_id = fields[5] if len(fields) > 5 else None
    if timer_id is not None and (not _TIMER_ID.fullmatch(timer_id) or int(timer_id) > _INT64_MAX):
        problems.append(f"handle: wanted a timer id, got {timer_id!r}")
    if problems:
        raise MessageError(problems)
    number = None if timer_id is None else int(timer_id)
    return Handle(topic, broker_name, int(stamp), message_id, number)


# --- unique key ---
# Message ids: the property UNIQ_KEY of messages that this engine writes.
#
# Invariants:
#     1. Two ids differ if the address, process or opening differs. Within one opening, 2^48 puts
#        get different ids.
# On-disk format: 32 upper-case hex digits: address (4 bytes), low half of the process id (2),
#     random bits of this opening (4), counter (6). A broker's ids have the same length and are
#     compared as text.


PREFIX_CHARACTERS = 20
_KEY = re.compile(r"[0-9A-F]{32}")


def make_prefix(ip: str, pid: int, random_bits: int) -> str:
    """Return the first 20 hex digits, which all ids of one opening share.

    An IPv6 address contributes its last four bytes. `random_bits`: 32 bits, drawn at each opening.
    """
    address = ipaddress.ip_address(ip).packed[-4:]
    return f"{address.hex().upper()}{pid & 0xFFFF:04X}{random_bits & 0xFFFFFFFF:08X}"


def split_unique_key(key: str) -> tuple[str, int] | None:
    """Return prefix and counter of an id of this engine; None if it has another form."""
    if not _KEY.fullmatch(key):
        return None
    return key[:PREFIX_CHARACTERS], int(key[PREFIX_CHARACTERS:], 16)
