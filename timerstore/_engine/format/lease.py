"""Leases as text: the property of a leased message, the names of its topics, its receipt.

Invariants:
    1. `read_lease` and `read_receipt` return the value that was written. For other text the first
       returns None, and the second raises MessageError.
On-disk format: the property TS_LEASE is on the timer of a lease, and on the message that this timer
    delivers. Its fields are decimal, separated by one space:

        <store id, 8 hex> <attempt> <is from retry, 0|1> <source queue> <source offset>
        <queue> <offset> <due_ms> <delivered_ms> <born_ms> <flag>

    The source is the place from which this attempt read the message: its topic, or the group's
    retry topic. Attempt 0 is on a message in the retry topic whose first attempt is to come. If it
    is "from retry", that attempt was given back before a consumer saw the message. Otherwise
    `requeue` put it there, and its source is the place of its dead letter. Queue and offset are its
    place in its own topic (RETRY_TOPIC). TS_ERROR has the reason of a failed attempt, UTF-8. The
    lease topics are %RETRY%<group>|<topic> and %DLQ%<group>, so a group's name has no `|`. A
    receipt is URL-safe base64 of:

        l1 <CRC-32 of the rest, 8 hex>
        <store id, 8 hex> <opening, 8 hex> <is last, 0|1> <group> <topic> <queue>
        <attempt> <until_ms> <timer id> <log offset> <backoff_ms> <message id>
See also: docs/decisions/0009-leases-replace-and-recurring.md.
"""

import base64
import binascii
import re
import zlib
from collections.abc import Container, Iterator
from contextlib import suppress
from typing import NamedTuple

from timerstore._engine.base.message_fields import (
    MESSAGE_GROUP_PROPERTY,
    QUEUE_COUNT_MAX,
    TOPIC_BYTES_MAX,
)
from timerstore.errors import MessageError, quoted, typed

# --- lease ---


LEASE_PROPERTY = "TS_LEASE"
TOPIC_PROPERTY = "RETRY_TOPIC"
"""RocketMQ's property for the topic of a message before it went to a retry topic."""
ERROR_PROPERTY = "TS_ERROR"
"""The reason that the last `nack` or `bury` with one gave; on a lease, a retry or a dead letter."""
ERROR_BYTES_MAX = 1024
BACKOFF_PROPERTY = "TIMER_BACKOFF"
"""On the timer of a message that `nack` returned, with the value 1. No later copy has it."""
RENEWED_PROPERTY = "TS_RENEWED"
"""On a lease that was renewed: opening and timer id of the receipt that still settles it."""
COMMITTED_PROPERTY = "TIMER_COMMITTED"
"""On a message that was a half message, in its topic, with the value 1."""
RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
HALF_PREFIX = "%HALF%"

_RECEIPT_CHARACTERS_MAX = 1024

_LEFT_BY_COMMIT = frozenset({b"TS_LEASE", b"RETRY_TOPIC", b"TS_ERROR", b"TS_RENEWED", b"TS_ONCE"})
_RECEIPT_BEGIN = "bDEg"  # the encoded `l1 ` with which each receipt begins
_LOOK = f", as in {_RECEIPT_BEGIN}..."
_NUMBER_MAX = 2**63 - 1
_TO_URL_SAFE = bytes.maketrans(b"+/", b"-_")  # binascii itself: base64 costs as much again
_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")  # without tab and ends of lines


def lease_queue_of(queue_id: int) -> int:
    """Return the queue of retry and dead-letter topics for the messages with a message group of a
    queue. Queue 0 is for those without one. Stored messages rely on it.
    """
    return min(queue_id + 1, QUEUE_COUNT_MAX - 1)


def retry_topic(topic: str, group: str) -> str:
    """Return the topic in which a group gets messages of a topic again.

    Raises:
        MessageError: the names are too long, or the group's name has a `|`.
    """
    made = f"{RETRY_PREFIX}{group}|{topic}"
    problems = []
    if "|" in group:
        problems.append(f"group: wanted no | in the name of a group with leases, got {group!r}")
    if len(made) > TOPIC_BYTES_MAX:
        room = TOPIC_BYTES_MAX - len(RETRY_PREFIX) - 1
        problems.append(
            f"group and topic: wanted at most {room} characters together, got "
            f"{len(group) + len(topic)} (the retry topic is {made!r})"
        )
    if problems:
        raise MessageError(problems)
    return made


def dead_letter_topic(group: str) -> str:
    """Return the topic to which a group's messages go after their last attempt."""
    return f"{DEAD_LETTER_PREFIX}{group}"


def group_of(lease_topic: str) -> str | None:
    """Return the group of a retry or dead-letter topic; None for another topic."""
    if lease_topic.startswith(RETRY_PREFIX):
        group, bar, _ = lease_topic.removeprefix(RETRY_PREFIX).partition("|")
        return group if bar else None
    if lease_topic.startswith(DEAD_LETTER_PREFIX):
        return lease_topic.removeprefix(DEAD_LETTER_PREFIX)
    return None


def half_topic(topic: str) -> str:
    """Return the topic of the half messages of a topic. One that is there is due for its check."""
    return f"{HALF_PREFIX}{topic}"


def topic_of_half(half: str) -> str:
    """Return the topic to which a commit delivers.

    Raises:
        MessageError: the name is that of another topic.
    """
    if not half.startswith(HALF_PREFIX):
        raise MessageError(
            f"half: wanted the receipt or handle of a half message (topic {HALF_PREFIX}...), got "
            f"one of topic {half!r}"
        )
    return half.removeprefix(HALF_PREFIX)


def committed_properties(properties: bytes) -> bytes:
    """Return the encoded properties of a message that is committed, given those of its half."""
    pairs = (one + b"\x02" for one in properties.split(b"\x02") if one)
    kept = [one for one in pairs if one.partition(b"\x01")[0] not in _LEFT_BY_COMMIT]
    return b"".join(kept) + f"{COMMITTED_PROPERTY}\x011\x02".encode()


def source_of(topic: str) -> str | None:
    """Return the topic whose retries or half messages a topic has; None for another topic."""
    source = topic.partition("|")[2] if topic.startswith(RETRY_PREFIX) else topic
    source = source.removeprefix(HALF_PREFIX)
    return None if source == topic else source


class Lease(NamedTuple):
    """The fields of TS_LEASE."""

    store_id: int
    attempt: int  # 1: the first; 0: of a requeued message
    is_from_retry: bool
    source_queue: int
    source_offset: int
    queue_id: int
    queue_offset: int
    due_ms: int
    delivered_ms: int
    born_ms: int
    flag: int


def write_lease(lease: Lease) -> str:
    """Return the property's value."""
    return f"{lease[0]:08x} {lease[1]} {int(lease[2])} " + " ".join(map(str, lease[3:]))


def read_lease(text: str) -> Lease | None:
    """Parse the property's value; return None if it is not one."""
    fields = text.split(" ")
    if len(fields) != len(Lease._fields) or len(fields[0]) != 8:
        return None
    try:
        store_id, numbers = int(fields[0], 16), [int(one) for one in fields[1:]]
    except ValueError:
        return None
    if any(not -_NUMBER_MAX <= one <= _NUMBER_MAX for one in numbers) or numbers[0] < 0:
        return None
    attempt, is_from_retry, *rest = numbers
    return Lease(store_id, attempt, bool(is_from_retry), *rest)


def uncounted_properties(properties: bytes) -> tuple[bytes, int, bool]:
    """Return the properties of a leased message whose attempt does not count, and its queue.

    Return also whether it has a message group.

    properties: the encoded properties of a lease.

    Raises:
        MessageError: they are those of another record.
    """
    name = f"{LEASE_PROPERTY}\x01".encode()
    pairs = properties.split(b"\x02")
    at = next((k for k, pair in enumerate(pairs) if pair.startswith(name)), 0)
    lease = read_lease(pairs[at].removeprefix(name).decode())
    if lease is None:
        raise MessageError("receipt: wanted one of a lease, got one of another record")
    attempt = lease.attempt - 1
    uncounted = lease._replace(attempt=attempt, is_from_retry=lease.is_from_retry or not attempt)
    pairs[at] = name + write_lease(uncounted).encode()
    group = f"{MESSAGE_GROUP_PROPERTY}\x01".encode()
    is_grouped = any(pair.startswith(group) and pair != group for pair in pairs)
    return b"\x02".join(pairs), lease.queue_id, is_grouped


def with_error(error: str, properties: bytes) -> bytes:
    """Return the encoded properties with a reason, of which the first ERROR_BYTES_MAX are kept.

    Control characters, which properties cannot have, become spaces.
    """
    text = _CONTROL.sub(" ", error).encode("utf-8", "replace")[:ERROR_BYTES_MAX]
    text = text.decode("utf-8", "ignore").encode()  # without a part of a character
    return _without(ERROR_PROPERTY, properties) + f"{ERROR_PROPERTY}\x01".encode() + text + b"\x02"


def _without(name: str, properties: bytes) -> bytes:
    begin = f"{name}\x01".encode()
    if begin not in properties and properties.endswith(b"\x02"):  # the usual case
        return properties
    pairs = [one for one in properties.split(b"\x02") if one and not one.startswith(begin)]
    return b"".join(one + b"\x02" for one in pairs)


def renewal_mark(receipt: "Receipt") -> bytes:
    """Return the encoded property of a lease that was renewed and keeps this receipt."""
    return f"{RENEWED_PROPERTY}\x01{receipt.opening:08x} {receipt.timer_id}\x02".encode()


def renewed(receipt: "Receipt", properties: bytes) -> bytes:
    """Return the encoded properties of a renewed lease that keeps this receipt."""
    return not_renewed(properties) + renewal_mark(receipt)


def not_renewed(properties: bytes) -> bytes:
    """Return the encoded properties of a lease whose earlier receipt does not settle it."""
    return _without(RENEWED_PROPERTY, properties)


class Receipt(NamedTuple):
    """The fields of a receipt."""

    store_id: int
    opening: int  # of the store: a later opening may assign the same timer ids again
    is_last: bool  # whether this is the last attempt before the dead-letter topic
    group: str
    topic: str
    queue_id: int  # of the retry topic, or the dead-letter topic
    attempt: int
    until_ms: int
    timer_id: int
    log_offset: int
    backoff_ms: int
    message_id: str

    @property
    def lease_topic(self) -> str:
        """The topic to which the message goes when the lease ends."""
        if self.is_last:
            return dead_letter_topic(self.group)
        return f"{RETRY_PREFIX}{self.group}|{self.topic}"


def write_receipt(receipt: Receipt) -> str:
    """Return a receipt's text."""
    one = receipt
    text = (
        f"{one.store_id:08x} {one.opening:08x} {int(one.is_last)} {one.group} {one.topic} "
        f"{one.queue_id} {one.attempt} {one.until_ms} {one.timer_id} {one.log_offset} "
        f"{one.backoff_ms} {one.message_id}"
    )
    raw = text.encode()
    encoded = binascii.b2a_base64(b"l1 %08x " % zlib.crc32(raw) + raw, newline=False)
    return encoded.translate(_TO_URL_SAFE).decode("ascii")


def is_receipt(text: object) -> bool:
    """Return whether a text is a receipt, and not a handle."""
    return isinstance(text, str) and text.startswith(_RECEIPT_BEGIN)


def read_receipt(text: object) -> Receipt:
    """Parse a receipt. MessageError if the text is not one."""
    if not isinstance(text, str):
        raise MessageError(f"receipt: wanted text{_LOOK}, got {typed(text)}")
    if not 0 < len(text) <= _RECEIPT_CHARACTERS_MAX:
        raise MessageError(
            f"receipt: wanted 1 to {_RECEIPT_CHARACTERS_MAX} characters{_LOOK}, got {len(text)} in "
            f"{quoted(text)}"
        )
    try:
        standard = text.encode("ascii").translate(_FROM_URL_SAFE)
        raw = binascii.a2b_base64(standard, strict_mode=True)
        kind, _, rest = raw.partition(b" ")
        check, _, rest = rest.partition(b" ")
        fields = rest.decode().split(" ", 11)
    except (binascii.Error, UnicodeError) as error:
        raise MessageError(
            f"receipt: wanted URL-safe base64 of text{_LOOK} ({error}), got {text[:80]!r}"
        ) from error
    if kind != b"l1" or len(fields) != 12 or check != b"%08x" % zlib.crc32(rest):
        raise MessageError(
            f"receipt: wanted `l1`, a checksum and twelve fields that match it{_LOOK}, got "
            f"{raw[:40]!r} ({len(raw)} bytes)"
        )
    try:
        store_id, opening = int(fields[0], 16), int(fields[1], 16)
        is_last, numbers = int(fields[2]), [int(one) for one in fields[5:11]]
    except ValueError as error:
        raise MessageError(f"receipt: wanted numbers ({error}), got {text[:80]!r}") from error
    if is_last not in (0, 1) or not 0 <= min(numbers) <= max(numbers) <= _NUMBER_MAX:
        raise MessageError(f"receipt: a number is out of its range in {text[:80]!r}")
    queue_id, attempt, until_ms, timer_id, log_offset, backoff_ms = numbers
    return Receipt(
        store_id, opening, bool(is_last), fields[3], fields[4], queue_id, attempt, until_ms,
        timer_id, log_offset, backoff_ms, fields[11],
    )  # fmt: skip


# --- dead letter ---
# The receipt of a dead letter, and the mark of a message that was requeued from one.
#
# Invariants:
#     1. `read_letter` returns the value that was written; for other text it raises MessageError.
# On-disk format: a receipt is URL-safe base64 of:
#
#         d1 <CRC-32 of the rest, 8 hex>
#         <store id, 8 hex> <queue> <offset> <group>
#
#     Queue and offset are the place in the topic %DLQ%<group>. A requeued message is in the topic
#     %RETRY%<group>|<topic>, with the property TS_LEASE (above) of attempt 0, not "from retry",
#     whose source is this place.


_DEAD_LETTER_CHARACTERS_MAX = 512
_PAIR_END = 2  # the byte after each property

Place = tuple[int, int]
"""A queue of a dead-letter topic, and an offset in it."""


class LetterReceipt(NamedTuple):
    """The fields of a dead letter's receipt."""

    store_id: int
    queue_id: int
    queue_offset: int
    group: str


def write_letter(letter: LetterReceipt) -> str:
    """Return a receipt's text."""
    raw = f"{letter.store_id:08x} {letter.queue_id} {letter.queue_offset} {letter.group}".encode()
    return base64.urlsafe_b64encode(b"d1 %08x " % zlib.crc32(raw) + raw).decode("ascii")


def read_letter(text: object) -> LetterReceipt:
    """Parse a receipt; raise MessageError if the text is not one."""
    if not isinstance(text, str):
        raise MessageError(f"dead letter: wanted a DeadLetter or its receipt, got {typed(text)}")
    found = None
    if len(text) <= _DEAD_LETTER_CHARACTERS_MAX:
        with suppress(binascii.Error, UnicodeError):
            raw = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
            found = _FORM.fullmatch(raw)
    if found is None or int(found[1], 16) != zlib.crc32(found[2]):
        raise MessageError(
            "dead letter: wanted the receipt of one, as dead_letters returns it, got "
            f"{quoted(text[:80])}"
        )
    queue_id, queue_offset = int(found[4]), int(found[5])
    if max(queue_id, queue_offset) > _NUMBER_MAX:
        raise MessageError(f"dead letter: a number is out of its range in {quoted(text[:80])}")
    return LetterReceipt(int(found[3], 16), queue_id, queue_offset, found[6].decode("ascii"))


_FORM = re.compile(
    rb"d1 ([0-9a-f]{8}) (([0-9a-f]{8}) ([0-9]{1,19}) ([0-9]{1,19}) ([A-Za-z0-9%_|-]{1,255}))"
)


def requeued_places(
    properties: bytes | bytearray | memoryview, begins: Container[int], store_id: int
) -> Iterator[Place]:
    """Yield the dead letters from which messages were requeued, by the properties of messages.

    properties: the encoded properties of any number of messages, one after another.
    begins: the offset in `properties` at which those of each message begin.
    """
    mark = rb"%s\x01%08x 0 0 ([0-9]{1,19}) ([0-9]{1,19}) " % (LEASE_PROPERTY.encode(), store_id)
    for found in re.finditer(mark, properties):
        begin = found.start()  # of a name, not inside one of the producer's
        if begin in begins or properties[begin - 1] == _PAIR_END:
            yield int(found[1]), int(found[2])
