"""Filter: what a pull lets through; asked about a queue unit first, then about its message.

Data:     the hash of a tag is the tags code of its unit; the tag itself, and
          all that an SQL expression asks for, stand in the message's property text.
Threads:  any; a filter never changes.
Holds:    (1) what `matches` a message, `may_match` says of its unit: nothing is lost by asking the
          unit first; (2) units of the levels' topic carry a due time instead of a hash, and pass.
Fails:    MessageError on an expression that does not parse: what, and where in it.
See also: docs/decisions/0006-index-and-queries.md for SQL.
"""

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore._engine.base import message_fields
from timerstore._engine.base.native import address, ffi, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.sql import parse_sql
from timerstore._engine.read.sql_condition import Condition
from timerstore.errors import MessageError, quoted, typed
from timerstore.messages import Int32Array, Int64Array, parse_properties

Mask = npt.NDArray[np.uint8]

_BLANKS = "".join(map(chr, range(0x21)))  # what the ancestor trims: space and all below it
_UNIT_BYTES = 20


class Filter(ABC):
    """What one pull lets through. A hold asks `may_match` of each unit that comes, then `matches`
    of its message; a pull asks the same of many: `candidates`, `keep`.
    """

    units_max: int
    """How many units one pull asks it about, at least."""
    believes_units = False
    """Whether a unit alone may say that its message does not pass."""

    def may_match(self, tags_code: int) -> bool:  # noqa: ARG002  # the kind that asks no unit
        """Whether the message of a unit with this tags code may pass; False is final."""
        return True

    def candidates(self, units: bytes) -> Int32Array:
        """Give the positions of the units, 20 bytes each, whose message may pass; ascending."""
        return np.arange(len(units) // _UNIT_BYTES, dtype=np.int32)

    def matches(self, properties: bytes) -> bool:
        """Whether a message with this property text passes."""
        return bool(self.keep(properties, np.array([0, len(properties)]))[0])

    @abstractmethod
    def keep(self, properties: Any, offsets: Int64Array) -> Mask:
        """Give 1 for each message that passes, else 0; text k is
        properties[offsets[k]:offsets[k + 1]].
        """


class TagFilter(Owner, Filter):
    """Messages with one of some tags: by hash, then exactly."""

    units_max = 65_536  # about a third of a millisecond, where none has the hash

    def __init__(self, tags: list[str], *, has_hashes: bool) -> None:
        texts = [tag.encode() for tag in dict.fromkeys(tags)]
        hashes = {text: int(lib.ts_topic_hash(text, len(text))) for text in texts}
        texts.sort(key=lambda text: hashes[text])
        self._hashes = frozenset(hashes.values()) if has_hashes else None
        self.believes_units = has_hashes
        sorted_hashes = ffi.new("int32_t[]", [hashes[text] for text in texts])
        joined = ffi.new("uint8_t[]", b"".join(texts) or b"\0")
        ends = np.cumsum([0, *map(len, texts)]).tolist()
        offsets = ffi.new("int64_t[]", ends)
        self._native = ffi.new("ts_tags *", (sorted_hashes, joined, offsets, len(texts)))
        self._parts = (sorted_hashes, joined, offsets)  # C reads them through _native

    def may_match(self, tags_code: int) -> bool:
        """Whether a unit's tags code is one of the hashes."""
        # Below every hash: an address in the queue's ext file, which says nothing here.
        return self._hashes is None or tags_code in self._hashes or tags_code < -(2**31)

    def candidates(self, units: bytes) -> Int32Array:
        """Give the positions of the units whose tags code is one of the hashes."""
        if self._hashes is None:
            return super().candidates(units)
        count = len(units) // _UNIT_BYTES
        positions = np.empty(count, np.int32)
        found = lib.ts_units_tagged(
            units, count, self._native, ffi.from_buffer("int32_t[]", positions)
        )
        return positions[:found]

    def keep(self, properties: Any, offsets: Int64Array) -> Mask:
        """Give 1 for each message whose tag is exactly one of ours."""
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
    """Messages whose properties meet a condition; units say nothing about it."""

    units_max = 1024  # some 10 ms: each is a record read, its properties parsed and asked in Python

    def __init__(self, condition: Condition) -> None:
        self._ask = condition.ask

    def matches(self, properties: bytes) -> bool:
        """Whether the condition is met; unknown is no."""
        return self._ask(parse_properties(properties)) is True

    def keep(self, properties: Any, offsets: Int64Array) -> Mask:
        """Give 1 for each message that meets the condition."""
        texts, ends = bytes(properties), offsets.tolist()
        found = (self.matches(texts[begin:end]) for begin, end in pairwise(ends))
        return np.fromiter(found, np.uint8, len(ends) - 1)


def filter_problems(tags: object, sql: object) -> list[str]:
    """What of the two is no text."""
    problems = []
    if tags is not None and not isinstance(tags, str):
        problems.append(f"tags: wanted text such as 'a || b', got {typed(tags)}")
    if sql is not None and not isinstance(sql, str):
        problems.append(f"sql: wanted text such as 'a > 5', got {typed(sql)}")
    return problems


def make_filter(route: Route, tags: object, sql: object = None) -> Filter | None:
    """Give the filter of a pull of one queue; None where everything passes.

    `tags`: tags with `||` between them; None, "" and "*" let everything through. `sql`: an
    expression as sql.py reads it. At most one of the two.
    """
    if problems := filter_problems(tags, sql):
        raise MessageError(problems)
    if sql is not None:
        if tags is not None:
            raise MessageError(
                f"filter: wanted one of tags and sql, got {quoted(tags)} and {quoted(sql)}"
            )
        assert isinstance(sql, str), "looked at above"
        return SqlFilter(parse_sql(sql))
    wanted = parse_tags(tags)
    if wanted is None:
        return None
    return TagFilter(wanted, has_hashes=route.native.kind != lib.TS_ROUTE_LEVELS)


def parse_tags(tags: object) -> list[str] | None:
    """Give the tags that an expression names; None where it lets everything through."""
    if tags is None:
        return None
    if not isinstance(tags, str):
        raise MessageError(f"tags: wanted text such as 'a || b', got {type(tags).__name__}")
    if tags.strip(_BLANKS) in {"", "*"}:
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
