"""config/delayOffset.json: for each delay level, the queue offset that a broker delivers next.

The file is written for brokers. Recovery uses the log, which has more precise information.

Invariants:
    1. A broker's file that is read and written again has the same bytes.
Raises: CorruptError if neither the file nor its older copy can be parsed.
On-disk format: a broker's JSON. Keys of the inner table have no quotes. The table is on one line
    (fastjson, up to 5.3) or has one line for each entry (5.4).
"""

from dataclasses import dataclass, field, replace

from timerstore._engine.format import json_text
from timerstore._engine.format.json_text import DataVersion
from timerstore._engine.format.store_paths import whole_number
from timerstore.errors import CorruptError

_LEVEL_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class DelayOffsets:
    """The whole file, levels in its order. Level 1 has queue 0."""

    version: DataVersion = json_text.NO_VERSION
    offsets: dict[int, int] = field(default_factory=dict)
    has_line_breaks: bool = False

    def with_offsets(self, offsets: dict[int, int], now_ms: int) -> "DelayOffsets":
        """Return a file with these offsets; other levels keep theirs."""
        merged = dict(sorted({**self.offsets, **offsets}.items()))
        if merged == self.offsets:
            return self
        return replace(self, version=self.version.next(now_ms), offsets=merged)


def read(main: bytes | None, backup: bytes | None) -> DelayOffsets:
    """Parse the file (None: absent), or its older copy if the file is absent, empty or invalid."""
    return json_text.first_readable(main, backup, _parse, DelayOffsets())


def write(offsets: DelayOffsets) -> bytes:
    """Return the file's text."""
    head = json_text.pretty({"dataVersion": offsets.version.to_json()})
    between = ",\n\t\t" if offsets.has_line_breaks else ","
    rows = between.join(f"{level}:{offset}" for level, offset in offsets.offsets.items())
    before = "\n\t\t" if offsets.has_line_breaks else ""
    table = f"{{{before}{rows}\n\t}}" if rows else "{}"
    return head.removesuffix(b"\n}") + f',\n\t"offsetTable":{table}\n}}'.encode("ascii")


def _parse(text: bytes) -> DelayOffsets:
    whole = json_text.loads(text)
    table = json_text.as_table(whole.get("offsetTable", {}), "offsetTable")
    offsets = {}
    for name, value in table.items():
        offset = json_text.as_int(value, f"offset of level {name!r}")
        level = whole_number(name, _LEVEL_MAX)
        if level < 1 or offset < 0:
            raise CorruptError(
                "offsetTable", wanted="levels from 1 and offsets from 0", got=f"{name}:{value}"
            )
        offsets[level] = offset
    version = DataVersion.from_json(whole.get("dataVersion"))
    has_line_breaks = bool(offsets) and b'"offsetTable":{\n' in text
    return DelayOffsets(version, offsets, has_line_breaks=has_line_breaks)
