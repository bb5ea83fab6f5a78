"""The table `timers` against the calls `pending` and `histogram` of a store."""

from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.arrow_rows import read_rows

UNITS_MS = {"second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}


def timers_of(store: Any) -> list[tuple[Any, ...]]:
    """Return (due time, topic, message id, whether it is a timer) of each pending message."""
    return sorted(
        (one.due_ms, one.topic, one.message_id, one.timer_id >= 0) for one in store.pending()
    )


def check_timers(store: Any, root: Path, **how: Any) -> list[dict[str, Any]]:
    """Check the rows of the table, and their counts by time; return them."""
    rows = read_rows(root, "timers", **how)
    got = sorted(
        (row["deliver_at"], row["topic"], row["msg_id"].decode(), row["level"] is None)
        for row in rows
    )
    assert got == timers_of(store)
    records = {row["log_offset"]: row for row in read_rows(root)}
    for row in rows:
        assert records[row["log_offset"]]["msg_id"] == row["msg_id"]
    if rows:
        begin, end = (edge(row["deliver_at"] for row in rows) for edge in (min, max))
        for by, unit_ms in UNITS_MS.items():
            if (end - begin) // unit_ms > 10_000:
                continue
            seen = store.histogram(begin, end + 1, by=by)
            found = {
                int(edge): int(n) for edge, n in zip(seen.edges, seen.counts, strict=False) if n
            }
            assert found == Counter(row["deliver_at"] // unit_ms * unit_ms for row in rows)
    return rows
