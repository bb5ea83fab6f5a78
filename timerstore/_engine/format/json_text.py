"""The JSON dialect of the broker's config files.

Data:     as fastjson writes it: maps with integer keys are written without quotes; the pretty form
          indents with a tab and puts no space behind a colon; what is not
          ASCII is escaped.
Holds:    what `pretty` and `one_line` write is what the broker writes for the same values.
          A file that we write ends with a seal: a line of 32 blanks and tabs, the bits of the
          CRC-32 of all before it. To a broker it is white space; what a broker writes has none.
Fails:    CorruptError where neither the file nor its older copy can be read, or a seal is broken.
"""

import json
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from timerstore.errors import CorruptError

Json = dict[str, Any]
Record = TypeVar("Record")

NOT_OURS = (
    ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, CorruptError,
)  # fmt: skip
"""What reading a side file's JSON can raise where somebody else wrote it."""

_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?[0-9]+)(?=\s*:)', re.DOTALL)


class DataVersion(NamedTuple):
    """Version of a config file. Of two, the greater (state, counter, timestamp) is the newer."""

    state_version: int = 0
    counter: int = 0
    timestamp_ms: int = 0

    def next(self, now_ms: int) -> "DataVersion":
        """Give the version after one more change."""
        return DataVersion(self.state_version, self.counter + 1, now_ms)

    def to_json(self) -> Json:
        """Give it as the broker writes it."""
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp_ms,
        }

    @classmethod
    def from_json(cls, value: object) -> "DataVersion":
        """Read it; absent fields count as 0."""
        table = as_table(value if value is not None else {}, "dataVersion")
        return cls(
            as_int(table.get("stateVersion", 0), "stateVersion"),
            as_int(table.get("counter", 0), "counter"),
            as_int(table.get("timestamp", 0), "timestamp"),
        )


NO_VERSION = DataVersion()


def loads(text: bytes) -> Json:
    """Read one JSON object; keys that are bare integers become strings. CorruptError else."""
    try:
        decoded = text.decode("utf-8")
        quoted = _BARE_KEY.sub(lambda m: f'{m[1]}"{m[2]}"' if m[2] is not None else m[0], decoded)
        return as_table(json.loads(quoted), "file")
    except (UnicodeError, ValueError, RecursionError) as error:
        raise CorruptError(f"not JSON ({error})", got=f"{len(text)} bytes") from error


def first_readable(
    main: bytes | None, backup: bytes | None, parse: Callable[[bytes], Record], empty: Record
) -> Record:
    """Read a file, or its older copy where it is absent, empty or broken.

    Neither there counts as `empty`. CorruptError where something is there and nothing is readable.
    """
    failure: CorruptError | None = None
    for text in (main, backup):
        if text is None or not text.strip(b"\x00 \t\r\n"):
            continue
        try:
            return parse(unsealed(text))
        except CorruptError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return empty


_SEAL = re.compile(rb"\n[ \t]{32}\Z")
_ZERO, _ONE = b" ", b"\t"


def sealed(text: bytes) -> bytes:
    """Give a file's text with its seal."""
    crc = zlib.crc32(text)
    return text + b"\n" + b"".join(_ONE if crc >> bit & 1 else _ZERO for bit in range(32))


def unsealed(text: bytes) -> bytes:
    """Give a file's text without its seal, if it has one; CorruptError where that is broken."""
    if not _SEAL.search(text):
        return text
    inner = text[:-33]
    if sealed(inner) != text:
        raise CorruptError(
            "its CRC does not match; if somebody edited it, remove its last line, of blanks",
            got=f"{len(text)} bytes",
        )
    return inner


def as_table(value: object, what: str) -> Json:
    """Give `value` as an object; CorruptError where it is none."""
    if not isinstance(value, dict):
        raise CorruptError(f"{what}: wrong type", wanted="an object", got=type(value).__name__)
    return value


def as_int(value: object, what: str) -> int:
    """Give `value` as a whole number; CorruptError where it is none."""
    if type(value) is not int:
        raise CorruptError(f"{what}: wrong type", wanted="a whole number", got=repr(value))
    return value


def pretty(value: Mapping[str, Any]) -> bytes:
    """Write the form with a line for each field."""
    return _write(value, "\n").encode("ascii")


def one_line(value: Mapping[str, Any]) -> bytes:
    """Write the form without any space."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _write(value: object, newline: str) -> str:
    """json.dumps would put a space after a colon, and split an empty object never: so by hand."""
    if not isinstance(value, Mapping) or not value:
        return json.dumps(value, separators=(",", ":"))
    inner = f"{newline}\t"
    rows = [f"{inner}{json.dumps(key)}:{_write(one, inner)}" for key, one in value.items()]
    return f"{{{','.join(rows)}{newline}}}"
