"""The receipt of a dead letter, and the mark of a message that was requeued from one.

Invariants:
    1. `read_letter` returns the value that was written; for other text it raises MessageError.
On-disk format: a receipt is URL-safe base64 of:

        d1 <CRC-32 of the rest, 8 hex>
        <store id, 8 hex> <queue> <offset> <group>

    Queue and offset are the place in the topic %DLQ%<group>. A requeued message is in the topic
    %RETRY%<group>|<topic>, with the property TS_LEASE (lease.py) of attempt 0, not "from retry",
    whose source is this place.
"""

import base64
import binascii
import re
import zlib
from collections.abc import Container, Iterator
from typing import NamedTuple

from timerstore._engine.format.lease import LEASE_PROPERTY
from timerstore.errors import MessageError, quoted, typed

_RECEIPT_CHARACTERS_MAX = 512
_NUMBER_MAX = 2**63 - 1
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
    if len(text) <= _RECEIPT_CHARACTERS_MAX:
        try:
            raw = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
            found = _FORM.fullmatch(raw)
        except (binascii.Error, UnicodeError):
            found = None
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
