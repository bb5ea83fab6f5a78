"""timerstore/counts: pending timers and queue ends, as at the last two watermarks.

Data:     JSON: {"entries": [{"log_end": L, "pending": {topic: {queue: n}}, "ends": {topic: {queue:
          queue offset behind the last unit below L}}}, ...]}, the newer last; zeros are left out.
          Our own file, derived: where no entry is of the watermark's log end, or a queue has
          another end, everything is built anew from the log.
"""

import json
from typing import NamedTuple

from timerstore.layout.json_text import Json

Pending = dict[str, dict[int, int]]


class Counts(NamedTuple):
    """Numbers by topic and queue at one log end."""

    log_end: int
    pending: Pending
    ends: Pending


def write(entries: list[Counts]) -> bytes:
    """Give the file's text."""
    return json.dumps({"entries": [entry._asdict() for entry in entries[-2:]]}).encode()


def _numbers(found: Json) -> Pending:
    if not isinstance(found, dict):
        raise TypeError
    return {
        str(topic): {int(queue): int(n) for queue, n in queues.items()}
        for topic, queues in found.items()
    }


def read_counts(text: bytes | None, log_end: int) -> Counts | None:
    """Give what is known of a watermark, None where the file has nothing."""
    if text is None:
        return None
    try:
        entries: list[Json] = json.loads(text)["entries"]
        for entry in entries:
            if entry["log_end"] == log_end:
                return Counts(log_end, _numbers(entry["pending"]), _numbers(entry["ends"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return None


def read(text: bytes | None, log_end: int) -> Pending | None:
    """Give the pending timers at a watermark, None where the file has none."""
    found = read_counts(text, log_end)
    return None if found is None else found.pending
