"""Hashes, checksums, handles and ids of the files, and hosts as records store them."""

import base64
import re
import struct
import zlib
from ipaddress import ip_address

_INT = struct.Struct(">i")
_TS_ID = struct.Struct(">IQ")


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: over UTF-16 code units, as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def index_hash(topic: str, key: str) -> int:
    """Return the hash under which the index stores a key.

    INT32_MIN has no absolute value and becomes 0.
    """
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value >> 31 else value


def stored_crc(data: bytes) -> int:
    """Return CRC-32 as the store keeps it, without its top bit."""
    return zlib.crc32(data) & 0x7FFFFFFF


def offset_message_id(host: str, log_offset: int) -> str:
    """Return `msgId` of a send response: host, port and log offset in upper-case hex."""
    return (encode_host(host) + struct.pack(">q", log_offset)).hex().upper()


def encode_recall_handle(topic: str, broker: str, timestamp_ms: int, unique_key: str) -> str:
    """Return the handle that a broker issues; `timestamp_ms` is TIMER_OUT_MS + 1."""
    text = f"v1 {topic} {broker} {timestamp_ms} {unique_key}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode_recall_handle(handle: str) -> tuple[str, str, int, str]:
    """Return (topic, broker, timestamp, unique key) of a broker's handle; ignore more fields."""
    parts = base64.urlsafe_b64decode(handle).decode().split(" ")
    if len(parts) < 5 or parts[0] != "v1":
        raise ValueError(f"not a recall handle: {parts}")
    return parts[1], parts[2], int(parts[3]), parts[4]


def encode_ts_id(store_id: int, timer_id: int) -> str:
    """Return the value of the TS_ID property: 16 characters."""
    return base64.urlsafe_b64encode(_TS_ID.pack(store_id, timer_id)).decode()


def decode_ts_id(text: str) -> tuple[int, int] | None:
    """Return (store id, timer id) of a TS_ID property, or None if it is invalid."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{16}", text):
        return None
    store_id, timer_id = _TS_ID.unpack(base64.urlsafe_b64decode(text))
    return store_id, timer_id


def encode_host(host: str) -> bytes:
    """Encode `ip:port` or `[ipv6]:port` as a record does: address, then the port in 4 bytes."""
    address, _, port = host.rpartition(":")
    return ip_address(address.strip("[]")).packed + struct.pack(">i", int(port))


def decode_host(raw: bytes) -> str:
    """Decode the bytes of encode_host."""
    address = ip_address(raw[:-4])
    (port,) = _INT.unpack(raw[-4:])
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def decode_ts_level(text: str) -> tuple[int, int, int, int] | None:
    """Return (store id, queue, queue offset, due ms) of a TS_LEVEL property, None if invalid."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{24}", text):
        return None
    raw = base64.urlsafe_b64decode(text)
    store_id, queue_id = struct.unpack(">IH", raw[:6])
    return store_id, queue_id, int.from_bytes(raw[6:12], "big"), int.from_bytes(raw[12:], "big")


def encode_ts_level(store_id: int, queue_id: int, queue_offset: int, due_ms: int) -> str:
    """Return the value of the TS_LEVEL property: 24 characters."""
    raw = struct.pack(">IH", store_id, queue_id)
    raw += queue_offset.to_bytes(6, "big") + due_ms.to_bytes(6, "big")
    return base64.urlsafe_b64encode(raw).decode()
