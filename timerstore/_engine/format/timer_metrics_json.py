"""config/timermetrics: how many timers are pending, by destination topic.

The file is derived: if it is wrong or missing, the timers are counted again.

Invariants:
    1. A broker's file that is read and written again has the same bytes.
Raises: CorruptError if neither the file nor its older copy can be parsed.
On-disk format: JSON on one line, as a broker writes it.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from timerstore._engine.format import json_text
from timerstore._engine.format.json_text import DataVersion


class TopicCount(NamedTuple):
    """Pending messages of one destination topic, and when they were counted, ms since 1970."""

    pending_count: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class TimerMetrics:
    """The whole file, topics in its order."""

    version: DataVersion = json_text.NO_VERSION
    counts: dict[str, TopicCount] = field(default_factory=dict)


def read(main: bytes | None, backup: bytes | None) -> TimerMetrics:
    """Parse the file (None: absent), or its older copy if the file is absent, empty or invalid."""
    return json_text.first_readable(main, backup, _parse, TimerMetrics())


def write(metrics: TimerMetrics) -> bytes:
    """Return the file's text."""
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
