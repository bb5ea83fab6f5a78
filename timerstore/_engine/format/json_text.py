"""The JSON dialect of a broker's config files, and a checksum that brokers ignore.

Invariants:
    1. `pretty` and `one_line` write the same bytes as a broker for the same values.
Raises: CorruptError if neither the file nor its older copy can be parsed, or a checksum is wrong.
On-disk format: JSON as fastjson writes it. Integer keys have no quotes. The pretty form indents
    with tabs and has no space after a colon. Characters that are not ASCII are escaped. A file that
    this engine writes ends with a checksum line of 32 spaces and tabs: the bits of the CRC-32 of
    everything before it. A broker skips it as white space; a broker's file has none.
"""

import json
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from timerstore.errors import CorruptError

Json = dict[str, Any]
Record = TypeVar("Record")

PARSE_ERRORS = (
    ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, CorruptError,
)  # fmt: skip
"""Exceptions that parsing the JSON of a side file can raise if its contents are not valid."""

_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?[0-9]+)(?=\s*:)', re.DOTALL)


class DataVersion(NamedTuple):
    """Version of a config file. The greater (state, counter, timestamp) is the newer version."""

    state_version: int = 0
    counter: int = 0
    timestamp_ms: int = 0

    def next(self, now_ms: int) -> "DataVersion":
        """Return the version after one more change."""
        return DataVersion(self.state_version, self.counter + 1, now_ms)

    def to_json(self) -> Json:
        """Return the version in a broker's JSON form."""
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp_ms,
        }

    @classmethod
    def from_json(cls, value: object) -> "DataVersion":
        """Parse a broker's JSON form; absent fields are 0."""
        table = as_table(value if value is not None else {}, "dataVersion")
        return cls(
            as_int(table.get("stateVersion", 0), "stateVersion"),
            as_int(table.get("counter", 0), "counter"),
            as_int(table.get("timestamp", 0), "timestamp"),
        )


NO_VERSION = DataVersion()


def loads(text: bytes) -> Json:
    """Parse one JSON object; keys that are bare integers become strings.

    Raises:
        CorruptError: the text is not a JSON object.
    """
    try:
        decoded = text.decode("utf-8")
        quoted = _BARE_KEY.sub(lambda m: f'{m[1]}"{m[2]}"' if m[2] is not None else m[0], decoded)
        return as_table(json.loads(quoted), "file")
    except (UnicodeError, ValueError, RecursionError) as error:
        raise CorruptError(f"not JSON ({error})", got=f"{len(text)} bytes") from error


def first_readable(
    main: bytes | None, backup: bytes | None, parse: Callable[[bytes], Record], empty: Record
) -> Record:
    """Parse a file, or its older copy if the file is absent, empty or not valid.

    Return `empty` if both are absent or empty.

    Raises:
        CorruptError: at least one has contents, and neither can be parsed.
    """
    failure: CorruptError | None = None
    for text in (main, backup):
        if text is None or not text.strip(b"\x00 \t\r\n"):
            continue
        try:
            return parse(without_checksum(text))
        except CorruptError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return empty


_CHECKSUM_LINE = re.compile(rb"\n[ \t]{32}\Z")
_ZERO, _ONE = b" ", b"\t"


def with_checksum(text: bytes) -> bytes:
    """Return a file's text with a checksum line."""
    crc = zlib.crc32(text)
    return text + b"\n" + b"".join(_ONE if crc >> bit & 1 else _ZERO for bit in range(32))


def without_checksum(text: bytes) -> bytes:
    """Return a file's text without its checksum line, if it has one.

    Raises:
        CorruptError: the checksum is wrong.
    """
    if not _CHECKSUM_LINE.search(text):
        return text
    inner = text[:-33]
    if with_checksum(inner) != text:
        raise CorruptError(
            "the CRC does not match; after an edit by hand, remove the last line of spaces",
            got=f"{len(text)} bytes",
        )
    return inner


def sealed(fields: Json) -> bytes:
    """Return the text of a cache file: a line with the CRC-32 of the rest in hex, then JSON."""
    text = json.dumps(fields).encode("ascii")
    return b"%08x\n" % zlib.crc32(text) + text


def unsealed(data: bytes | None) -> Json:
    """Return the fields of such a file.

    Raises:
        CorruptError, ValueError: the file is absent, or not valid.
    """
    head, _, text = (data or b"").partition(b"\n")
    if int(head, 16) != zlib.crc32(text):
        raise CorruptError("the CRC does not match")
    return as_table(json.loads(text), "file")


def as_table(value: object, what: str) -> Json:
    """Return `value` if it is a JSON object, else raise CorruptError."""
    if not isinstance(value, dict):
        raise CorruptError(f"{what}: wrong type", wanted="an object", got=type(value).__name__)
    return value


def as_int(value: object, what: str) -> int:
    """Return `value` if it is a whole number, else raise CorruptError."""
    if type(value) is not int:
        raise CorruptError(f"{what}: wrong type", wanted="a whole number", got=repr(value))
    return value


def pretty(value: Mapping[str, Any], *, is_wide: bool = False) -> bytes:
    """Return the form with one line for each field; `is_wide`: also for each number of a list or
    table, and with a line break in an empty table.
    """
    return _text(value, "\n", is_wide=is_wide).encode("ascii")


def one_line(value: Mapping[str, Any]) -> bytes:
    """Return the form without spaces and line breaks."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _text(value: object, newline: str, *, is_wide: bool) -> str:
    """Format one value; `newline` is the line break and indent before its closing bracket."""
    # json.dumps cannot indent without a space after each colon.
    inner = f"{newline}\t"
    if isinstance(value, Mapping):
        if not value:
            return f"{{{inner}{newline}}}" if is_wide else "{}"
        # A 5.3 broker breaks the line before a name, but not before a number.
        rows = [
            f"{inner if is_wide or isinstance(key, str) else ''}"
            f"{json.dumps(key)}:{_text(one, inner, is_wide=is_wide)}"
            for key, one in value.items()
        ]
        return f"{{{','.join(rows)}{newline}}}"
    if isinstance(value, list) and value and is_wide:
        rows = [f"{inner}{_text(one, inner, is_wide=True)}" for one in value]
        return f"[{','.join(rows)}{newline}]"
    return json.dumps(value, separators=(",", ":"))
