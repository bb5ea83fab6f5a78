"""config/timermetrics: how many messages wait, by real topic.

Data:     JSON in one line, as a broker writes it. Derived: wrong or gone, it is counted again.
Holds:    a file of a broker that is read and written again has the same bytes.
Fails:    CorruptError where file and older copy are both unreadable.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from timerstore._engine.format import json_text
from timerstore._engine.format.json_text import DataVersion


class TopicCount(NamedTuple):
    """Messages of one real topic that wait, and when that was counted."""

    pending_count: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class TimerMetrics:
    """The whole file, topics in its order."""

    version: DataVersion = json_text.NO_VERSION
    counts: dict[str, TopicCount] = field(default_factory=dict)


def read(main: bytes | None, backup: bytes | None) -> TimerMetrics:
    """Read the file (None: absent), or its older copy where it is absent, empty or broken."""
    return json_text.first_readable(main, backup, _parse, TimerMetrics())


def write(metrics: TimerMetrics) -> bytes:
    """Give the file's text."""
    counts = {
        topic: {"count": one.pending_count, "timeStamp": one.timestamp_ms}
        for topic, one in metrics.counts.items()
    }
    return json_text.one_line({"dataVersion": metrics.version.to_json(), "timingCount": counts})


def _parse(text: bytes) -> TimerMetrics:
    whole = json_text.loads(text)
    counts = {}
    for topic, value in json_text.as_table(whole.get("timingCount", {}), "timingCount").items():
        one = json_text.as_table(value, f"timingCount of {topic!r}")
        counts[topic] = TopicCount(
            json_text.as_int(one.get("count", 0), "count"),
            json_text.as_int(one.get("timeStamp", 0), "timeStamp"),
        )
    return TimerMetrics(DataVersion.from_json(whole.get("dataVersion")), counts)
