"""The properties of a record: text to dict and back, and their CRC."""

from collections.abc import Mapping

from tests.support.disk_reader.ids import stored_crc

CRC_NAME = b"__CRC32#"
CRC_BYTES = 20


def encode_properties(properties: Mapping[str, str], *, final: bool = True) -> bytes:
    """Encode properties, without the last terminator if not `final`, as writers up to 5.1.4 do."""
    text = b"".join(f"{name}\x01{value}\x02".encode() for name, value in properties.items())
    return text if final else text[:-1]


def decode_properties(text: bytes) -> dict[str, str]:
    """Decode properties.

    Pairs with an empty value are dropped. Of equal names the last one counts.
    """
    found: dict[str, str] = {}
    for pair in text.split(b"\x02"):
        name, mark, value = pair.partition(b"\x01")
        if mark and value and len(pair) >= 3:
            found[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return found


def encode_property_crc(record_without_crc: bytes) -> bytes:
    """Return the 20 bytes that end the properties, for a record without them."""
    digits = f"{stored_crc(record_without_crc):010d}"[::-1]
    return CRC_NAME + b"\x01" + digits.encode() + b"\x02"
