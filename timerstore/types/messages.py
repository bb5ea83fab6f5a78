"""Stored messages, one by one or as columns, and the result of a pull. This module opens no file.

Invariants:
    1. A value never changes after it was created, except that inflated bodies are cached.
    2. Message ids, handles and inflated bodies are computed when they are first requested.
Raises: MessageError for a body that this release cannot inflate, CorruptError for a damaged one.
See also: docs/file-format.md (flags, handles).
"""

from __future__ import annotations

import importlib
import ipaddress
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, overload

import numpy as np
import numpy.typing as npt

from timerstore._fastpath import split
from timerstore.errors import ConfigError, CorruptError, MessageError
from timerstore.types.receipts import checked_index

if TYPE_CHECKING:
    import pyarrow

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
ByteRows = npt.NDArray[np.uint8]

BODY_BYTES_MAX = 4 * 1024 * 1024
SYS_FLAG_COMPRESSED = 0x01
SYS_FLAG_BORN_HOST_V6 = 0x10
SYS_FLAG_STORE_HOST_V6 = 0x20
_COMPRESSION_NAMES = {1: "LZ4", 2: "ZSTD"}  # bits 8-10 of the system flag; 0 and 3 are zlib
EXPIRES_PROPERTY = "TS_EXPIRES"
_SHOWN_MAX = 400  # characters of one field in a message's repr


def parse_properties(text: bytes) -> dict[str, str]:
    """Parse properties from their on-disk form: name 0x01 value 0x02; the last 0x02 may be missing.

    Pairs without a name or without a value are skipped. The last of several pairs with one name
    counts. Bytes that are not UTF-8 become U+FFFD; only another writer can have stored them.
    """
    pairs = {}
    for pair in text.decode("utf-8", "replace").split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            pairs[name] = value
    return pairs


@lru_cache(maxsize=256)  # nearly all messages of a store have one host
def host_text(raw: bytes, is_v6: bool) -> str:
    """Return a stored host (4 or 16 address bytes, then the port in 4) as `ip:port`."""
    size = 16 if is_v6 else 4
    if len(raw) < size + 4:
        raise CorruptError("stored host is short", wanted=f"{size + 4} bytes", got=len(raw))
    port = int.from_bytes(raw[size : size + 4], "big")
    if is_v6:
        return f"[{ipaddress.IPv6Address(raw[:16])}]:{port}"
    return f"{raw[0]}.{raw[1]}.{raw[2]}.{raw[3]}:{port}"


def inflate_body(raw: bytes, sys_flag: int, body_bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Return the body as its producer sent it, at most `body_bytes_max` bytes.

    Raises:
        MessageError: the body is compressed with LZ4 or ZSTD, or exceeds the limit.
        CorruptError: the compressed body is damaged.
    """
    if not sys_flag & SYS_FLAG_COMPRESSED:
        return raw
    kind = sys_flag >> 8 & 7
    if kind not in (0, 3):
        name = _COMPRESSION_NAMES.get(kind, f"type {kind}")
        raise MessageError(f"body: compressed with {name}; only zlib is read, see raw_body")
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(raw, body_bytes_max + 1)
    except zlib.error as error:
        raise CorruptError(f"body: not a zlib stream ({error})", got=f"{len(raw)} bytes") from error
    if len(body) > body_bytes_max:
        raise MessageError(
            f"body: inflates to more than {body_bytes_max} bytes (message_bytes_max)"
        )
    if not inflater.eof:
        raise CorruptError("body: its zlib stream ends too soon", got=f"{len(raw)} bytes")
    return body


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Message:
    """One stored message.

    Times are milliseconds since 1970. If the message was not delayed, `due_ms` and `delivered_ms`
    equal `store_ms`. A pending message, which `query` also returns, has `queue_offset` and
    `delivered_ms` -1. If it can be cancelled, it has a `handle`.
    """

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    raw_body: bytes
    properties: dict[str, str]
    born_ms: int
    store_ms: int
    due_ms: int
    delivered_ms: int
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    born_host: str = ""
    store_host: str = ""
    body_crc: int = 0
    store_bytes: int = 0
    handle: str = ""
    body_bytes_max: int = field(default=BODY_BYTES_MAX, repr=False, compare=False)
    _inflated: bytes | None = field(default=None, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        """Show each field, and the length of the body instead of the body."""
        shown = []
        for one in fields(self):
            if one.name == "raw_body":
                shown.append(f"raw_body=<{len(self.raw_body)} bytes>")
            elif one.repr:
                shown.append(f"{one.name}={_shortened(repr(getattr(self, one.name)))}")
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def body(self) -> bytes:
        """The body as it was sent. A body that a broker's client compressed is inflated once.

        Raises:
            MessageError: this release cannot inflate the body, or it is too large.
            CorruptError: the compressed body is damaged.
        """
        if not self.sys_flag & SYS_FLAG_COMPRESSED:
            return self.raw_body
        if self._inflated is None:
            body = inflate_body(self.raw_body, self.sys_flag, self.body_bytes_max)
            object.__setattr__(self, "_inflated", body)
            return body
        return self._inflated

    @property
    def waits(self) -> bool:
        """Whether the message is pending: it has not been delivered to its topic yet."""
        return self.queue_offset < 0

    @property
    def message_id(self) -> str:
        """The id of the message, which all its copies share (UNIQ_KEY), or "" if it has none."""
        return self.properties.get("UNIQ_KEY", "")

    @property
    def tags(self) -> str | None:
        """The tag by which consumers filter, or None."""
        return self.properties.get("TAGS")

    @property
    def priority(self) -> int:
        """The priority, 0 to 9; 0 if the message was put without one."""
        value = self.properties.get("_SYS_MSG_PRIORITY_", "")
        return int(value) if value.isascii() and value.isdigit() and len(value) < 4 else 0

    @property
    def message_group(self) -> str | None:
        """The message group, whose messages `receive(ordered=True)` keeps in order, or None."""
        return self.properties.get("__SHARDINGKEY") or None

    @property
    def expires_ms(self) -> int | None:
        """When groups and `query` drop the message, ms since 1970; None: never."""
        value = self.properties.get(EXPIRES_PROPERTY, "")
        return int(value) if value.isascii() and value.isdigit() and len(value) < 20 else None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys by which `query` finds the message."""
        return tuple(self.properties.get("KEYS", "").split())


def unexpired(messages: Iterable[Message], now_ms: int) -> list[Message]:
    """Return the messages that have not expired."""
    return [
        one for one in messages if (expires_ms := one.expires_ms) is None or expires_ms > now_ms
    ]


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}..."


class PullStatus(StrEnum):
    """The status of a pull. Whatever it is, the next pull begins at `next_offset`."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(frozen=True, slots=True, repr=False)
class PullResult:
    """The result of `pull`: messages, and the offset at which the next pull begins.

    `min_offset` and `max_offset` are the range of the queue: that of its first message, and one
    past its last.
    """

    status: PullStatus
    messages: tuple[Message, ...]
    next_offset: int
    min_offset: int
    max_offset: int

    def __repr__(self) -> str:
        return (
            f"PullResult(status={self.status.value}, <{len(self.messages)} messages>, "
            f"{_bounds_shown(self)})"
        )


def _bounds_shown(one: PullResult | MessageBatch) -> str:
    names = ("next_offset", "min_offset", "max_offset")
    return ", ".join(f"{name}={getattr(one, name)}" for name in names)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MessageBatch:
    """Messages of one queue as columns. Indexing and iteration return Message objects.

    Bodies are as stored; `sys_flag` shows which are compressed. Body k is
    bodies[body_offsets[k]:body_offsets[k + 1]]; the texts in `properties` are stored in the same
    way. Hosts are as on disk, one row each: the address in 4 or 16 bytes, the port in 4, then
    unused bytes.
    """

    topic: str
    queue_id: int
    queue_offset: Int64Array
    log_offset: Int64Array
    born_ms: Int64Array
    store_ms: Int64Array
    due_ms: Int64Array
    delivered_ms: Int64Array
    bodies: bytes | bytearray | memoryview
    body_offsets: Int64Array
    properties: bytes | bytearray | memoryview
    properties_offsets: Int64Array
    flag: Int32Array
    sys_flag: Int32Array
    reconsume_times: Int32Array
    body_crc: Int32Array
    store_bytes: Int32Array
    born_hosts: ByteRows | None = None
    store_hosts: ByteRows | None = None
    status: PullStatus = PullStatus.FOUND
    next_offset: int
    min_offset: int
    max_offset: int
    body_bytes_max: int = BODY_BYTES_MAX

    def __repr__(self) -> str:
        return (
            f"MessageBatch(topic={self.topic!r}, queue_id={self.queue_id}, "
            f"status={self.status.value}, <{len(self)} messages, {len(self.bodies)} bytes>, "
            f"{_bounds_shown(self)})"
        )

    def __len__(self) -> int:
        return len(self.queue_offset)

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> list[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | list[Message]:
        if isinstance(at, slice):
            return [self._message(k) for k in range(*at.indices(len(self)))]
        return self._message(checked_index(at, len(self)))

    def __iter__(self) -> Iterator[Message]:
        return map(self._message, range(len(self)))

    def _message(self, k: int) -> Message:
        sys_flag = self.sys_flag.item(k)
        return Message(
            topic=self.topic,
            queue_id=self.queue_id,
            queue_offset=self.queue_offset.item(k),
            log_offset=self.log_offset.item(k),
            raw_body=bytes(self.bodies[self.body_offsets.item(k) : self.body_offsets.item(k + 1)]),
            properties=parse_properties(self.properties_text(k)),
            born_ms=self.born_ms.item(k),
            store_ms=self.store_ms.item(k),
            due_ms=self.due_ms.item(k),
            delivered_ms=self.delivered_ms.item(k),
            flag=self.flag.item(k),
            sys_flag=sys_flag,
            reconsume_times=self.reconsume_times.item(k),
            born_host=_host_of(self.born_hosts, k, sys_flag & SYS_FLAG_BORN_HOST_V6),
            store_host=_host_of(self.store_hosts, k, sys_flag & SYS_FLAG_STORE_HOST_V6),
            body_crc=self.body_crc.item(k),
            store_bytes=self.store_bytes.item(k),
            body_bytes_max=self.body_bytes_max,
        )

    def body_list(self) -> list[bytes]:
        """Return the body of each message as it was sent. This is many times as fast as creating
        the messages.

        Raises the error of `Message.body` for the first body that cannot be inflated. Iteration
        returns the messages before it.
        """
        bodies: list[bytes] = split(self.bodies, np.ascontiguousarray(self.body_offsets, np.int64))
        for k in np.flatnonzero(self.sys_flag & SYS_FLAG_COMPRESSED).tolist():
            bodies[k] = inflate_body(bodies[k], int(self.sys_flag[k]), self.body_bytes_max)
        return bodies

    def properties_text(self, k: int) -> bytes:
        """Return the properties of message k in their on-disk form."""
        begin, end = self.properties_offsets.item(k), self.properties_offsets.item(k + 1)
        return bytes(self.properties[begin:end])

    def to_arrow(self) -> pyarrow.Table:
        """Return the columns as a pyarrow Table. Numbers and bodies are not copied.

        Raises:
            ConfigError: pyarrow is not installed.
        """
        try:
            arrow = importlib.import_module("pyarrow")
        except ImportError as error:
            raise ConfigError(
                "to_arrow needs pyarrow, which is not installed: pip install '.[arrow]' in a "
                "checkout"
            ) from error
        n = len(self)
        spans = (
            ("body", self.body_offsets, self.bodies),
            ("properties", self.properties_offsets, self.properties),
        )
        columns = {
            "topic": arrow.array([self.topic]).take(arrow.array(np.zeros(n, np.int64))),
            "queue_id": arrow.array(np.full(n, self.queue_id, np.int32)),
        }
        for name in (
            "queue_offset",
            "log_offset",
            "born_ms",
            "store_ms",
            "due_ms",
            "delivered_ms",
            "flag",
            "sys_flag",
            "reconsume_times",
            "body_crc",
            "store_bytes",
        ):
            columns[name] = arrow.array(getattr(self, name))
        for name, offsets, data in spans:
            parts = [
                None,
                arrow.py_buffer(np.ascontiguousarray(offsets, np.int64)),
                arrow.py_buffer(data),
            ]
            columns[name] = arrow.Array.from_buffers(arrow.large_binary(), n, parts)
        return arrow.table(columns)


def _host_of(hosts: ByteRows | None, k: int, is_v6: int) -> str:
    return "" if hosts is None else host_text(hosts[k].tobytes(), bool(is_v6))
