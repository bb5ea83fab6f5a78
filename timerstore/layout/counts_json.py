"""timerstore/counts: pending timers by real topic and queue, as at the last two watermarks.

Data:     JSON: {"entries": [{"log_end": L, "pending": {topic: {queue: n}}}, ...]}, the newer last.
          Our own file, derived: where no entry is of the watermark's log end, the pending are
          counted anew.
"""

import json

from timerstore.layout.json_text import Json

Pending = dict[str, dict[int, int]]


def write(entries: list[tuple[int, Pending]]) -> bytes:
    """Give the file's text."""
    return json.dumps(
        {"entries": [{"log_end": log_end, "pending": pending} for log_end, pending in entries[-2:]]}
    ).encode()


def read(text: bytes | None, log_end: int) -> Pending | None:
    """Give the counts at a watermark, None where the file has none."""
    if text is None:
        return None
    try:
        entries: list[Json] = json.loads(text)["entries"]
        for entry in entries:
            if entry["log_end"] == log_end:
                return {
                    str(topic): {int(queue): int(n) for queue, n in queues.items()}
                    for topic, queues in entry["pending"].items()
                }
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return None
