"""config/delayOffset.json: by level, the queue offset that a broker delivers next.

Data:     a broker's JSON; the inner table has its keys without quotes, in one line (fastjson,
          up to 5.3) or a line each (5.4). Derived: while the log is there, it says more.
Holds:    a file of a broker that is read and written again has the same bytes.
Fails:    CorruptError where file and older copy are both unreadable.
"""

from dataclasses import dataclass, field, replace

from timerstore._engine.format import json_text
from timerstore._engine.format.json_text import DataVersion
from timerstore._engine.format.store_paths import whole_number
from timerstore.errors import CorruptError

_LEVEL_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class DelayOffsets:
    """The whole file, levels in its order. Level 1 waits in queue 0."""

    version: DataVersion = json_text.NO_VERSION
    offsets: dict[int, int] = field(default_factory=dict)
    a_line_each: bool = False

    def with_offsets(self, offsets: dict[int, int], now_ms: int) -> "DelayOffsets":
        """Give the file with these offsets; levels that are not named keep theirs."""
        merged = dict(sorted({**self.offsets, **offsets}.items()))
        if merged == self.offsets:
            return self
        return replace(self, version=self.version.next(now_ms), offsets=merged)


def read(main: bytes | None, backup: bytes | None) -> DelayOffsets:
    """Read the file (None: absent), or its older copy where it is absent, empty or broken."""
    return json_text.first_readable(main, backup, _parse, DelayOffsets())


def write(offsets: DelayOffsets) -> bytes:
    """Give the file's text."""
    head = json_text.pretty({"dataVersion": offsets.version.to_json()})
    between = ",\n\t\t" if offsets.a_line_each else ","
    rows = between.join(f"{level}:{offset}" for level, offset in offsets.offsets.items())
    before = "\n\t\t" if offsets.a_line_each else ""
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
                "offsetTable", wanted="offsets from 0 on by level from 1 on", got=f"{name}:{value}"
            )
        offsets[level] = offset
    version = DataVersion.from_json(whole.get("dataVersion"))
    a_line_each = bool(offsets) and b'"offsetTable":{\n' in text
    return DelayOffsets(version, offsets, a_line_each=a_line_each)
