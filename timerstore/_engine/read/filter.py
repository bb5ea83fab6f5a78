"""Filter messages by tag or SQL: first by the queue unit, then by the message's properties.

The tags code of a queue unit is the hash of the message's tag. The tag itself, and the properties
that an SQL expression reads, are in the record.

Thread safety: any thread; a filter is immutable.
Invariants:
    1. If `keep` accepts a message, `candidates` has its unit: checking the unit first loses no
       message.
    2. Units of the delay levels' topic carry a due time instead of a hash; every one may match.
Raises: MessageError on an expression that cannot be parsed, with the position.
See also: docs/decisions/0006-index-and-queries.md for SQL.
"""

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore._engine.base import message_fields
from timerstore._engine.base.native import address, ffi, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.sql import SqlCondition, parse_sql
from timerstore.errors import MessageError, quoted, typed
from timerstore.types.messages import Int32Array, Int64Array, parse_properties

Mask = npt.NDArray[np.uint8]

_BLANKS = "".join(map(chr, range(0x21)))  # RocketMQ trims the space and all characters below it
_UNIT_BYTES = 20


class Filter(ABC):
    """The filter of one pull: `candidates` checks units, `keep` checks messages."""

    units_max: int
    """The number of units that one pull may check; a pull of more messages checks as many."""
    believes_units = False
    """Whether a unit alone may exclude its message."""

    def candidates(self, units: bytes) -> Int32Array:
        """Return the ascending positions of the units (20 bytes each) whose message may pass.

        That of any other unit does not pass.
        """
        return np.arange(len(units) // _UNIT_BYTES, dtype=np.int32)

    @abstractmethod
    def keep(self, properties: Any, offsets: Int64Array) -> Mask:
        """Return 1 for each message that passes, otherwise 0.

        Message k has properties[offsets[k]:offsets[k + 1]].
        """


class TagFilter(NotCopyable, Filter):
    """Messages with one of some tags, compared by hash and then exactly."""

    units_max = 65_536  # takes about a third of a millisecond if no unit has the hash

    def __init__(self, tags: list[str], *, has_hashes: bool) -> None:
        texts = [tag.encode() for tag in dict.fromkeys(tags)]
        hashes = {text: int(lib.ts_topic_hash(text, len(text))) for text in texts}
        texts.sort(key=lambda text: hashes[text])
        self.believes_units = has_hashes
        sorted_hashes = ffi.new("int32_t[]", [hashes[text] for text in texts])
        joined = ffi.new("uint8_t[]", b"".join(texts) or b"\0")
        ends = np.cumsum([0, *map(len, texts)]).tolist()
        offsets = ffi.new("int64_t[]", ends)
        self._native = ffi.new("ts_tags *", (sorted_hashes, joined, offsets, len(texts)))
        self._parts = (sorted_hashes, joined, offsets)  # C reads them through _native

    def candidates(self, units: bytes) -> Int32Array:
        """Return the positions of the units whose tags code is one of the hashes.

        A code below all hashes is an address in the queue's ext file: the unit excludes nothing.
        """
        if not self.believes_units:
            return super().candidates(units)
        count = len(units) // _UNIT_BYTES
        positions = np.empty(count, np.int32)
        found = lib.ts_units_tagged(
            units, count, self._native, ffi.from_buffer("int32_t[]", positions)
        )
        return positions[:found]

    def keep(self, properties: Any, offsets: Int64Array) -> Mask:
        """Return 1 for each message whose tag is one of the tags, otherwise 0."""
        mask = np.empty(len(offsets) - 1, np.uint8)
        lib.ts_texts_tagged(
            ffi.from_buffer("uint8_t[]", properties),
            ffi.from_buffer("int64_t[]", offsets),
            len(mask),
            self._native,
            address(mask),
        )
        return mask


class SqlFilter(Filter):
    """Messages whose properties meet a condition; units exclude nothing."""

    units_max = 1024  # takes about 10 ms: each record is read and its properties parsed in Python

    def __init__(self, condition: SqlCondition) -> None:
        self._evaluate = condition.evaluate

    def keep(self, properties: Any, offsets: Int64Array) -> Mask:
        """Return 1 for each message that meets the condition; 0 for others, or if it is unknown."""
        text, ends = bytes(properties), offsets.tolist()
        pairs = (parse_properties(text[begin:end]) for begin, end in pairwise(ends))
        return np.fromiter((self._evaluate(one) is True for one in pairs), np.uint8, len(ends) - 1)


def filter_problems(tags: object, sql: object) -> list[str]:
    """Return a problem for each of the two that is neither text nor None."""
    problems = []
    if tags is not None and not isinstance(tags, str):
        problems.append(f"tags: wanted text such as 'a || b', got {typed(tags)}")
    if sql is not None and not isinstance(sql, str):
        problems.append(f"sql: wanted text such as 'a > 5', got {typed(sql)}")
    return problems


def make_filter(route: Route, tags: str | None, sql: str | None) -> Filter | None:
    """Return the filter of a pull of one queue, or None if every message passes.

    tags: tags separated by `||`; with None, "" and "*" every message passes.
    sql: an expression for sql.py. At most one of the two may be given.
    """
    if problems := filter_problems(tags, sql):
        raise MessageError(problems)
    if sql is not None:
        if tags is not None:
            raise MessageError(
                f"filter: wanted one of tags and sql, got {quoted(tags)} and {quoted(sql)}"
            )
        return SqlFilter(parse_sql(sql))
    wanted = parse_tags(tags)
    if wanted is None:
        return None
    return TagFilter(wanted, has_hashes=route.native.kind != lib.TS_ROUTE_LEVELS)


def parse_tags(tags: str | None) -> list[str] | None:
    """Return the tags that an expression names, or None if every message passes."""
    if tags is None or tags.strip(_BLANKS) in {"", "*"}:
        return None
    found, at = [], 0
    for part in tags.split("||"):
        tag = part.strip(_BLANKS)
        if not tag:
            raise MessageError(f"tags: wanted a tag at character {at + 1} of {tags!r}, got none")
        if tag == "*":
            place = at + part.index("*") + 1
            raise MessageError(f"tags: * stands alone, got it at character {place} of {tags!r}")
        if not message_fields.is_utf8(tag):
            raise MessageError(
                f"tags: wanted text without half a surrogate pair, got {quoted(tag)}"
            )
        found.append(tag)
        at += len(part) + 2
    return found
