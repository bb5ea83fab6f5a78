"""Logs for the fold, written record by record as the scan would return them.

Invariants: rows are in log order, 100 bytes apart; the timer queue has no gaps.
"""

from typing import Any

from tests.support.record_kind import RecordKind
from tests.support.scan_rows import identity, rows_array
from timerstore._engine.log.fold import fold
from timerstore._engine.log.scanned_records import PLACE_OFFSET_BITS, Scan

Own = tuple[int, int]


class SyntheticLog:
    """A log that rows are appended to. `own` is the TS_ID (store id, timer id), or None."""

    def __init__(self, first_log_offset: int = 0, first_queue_offset: int = 0) -> None:
        self.rows: list[dict[str, Any]] = []
        self.next_log_offset = first_log_offset
        self.next_queue_offset = first_queue_offset

    @property
    def scan(self) -> Scan:
        """Return the rows written so far."""
        return rows_array(self.rows)

    def append(self, kind: RecordKind, own: Own | None, **fields: Any) -> int:
        """Write one row, and return its row number."""
        store_id, timer_id = own or (0, -1)
        self.rows.append(
            {
                "log_offset": self.next_log_offset,
                "size": 100,
                "kind": kind,
                "store_id": store_id,
                "timer_id": timer_id,
                **fields,
            }
        )
        self.next_log_offset += 100
        return len(self.rows) - 1

    def _queued(self, kind: RecordKind, own: Own | None, **fields: Any) -> int:
        """Write one row of the timer queue, and return its queue offset."""
        self.next_queue_offset += 1
        self.append(kind, own, queue_offset=self.next_queue_offset - 1, **fields)
        return self.next_queue_offset - 1

    def timer(
        self,
        key: str,
        out_ms: int = 1000,
        *,
        rolls: int = 0,
        own: Own | None = None,
        topic: str = "T",
    ) -> int:
        """Write a source or a copy in the timer topic, and return its queue offset."""
        return self._queued(
            RecordKind.TIMER,
            own,
            identity=identity(f"{topic}+{key}"),
            bare_identity=identity(key),
            out_ms=out_ms,
            roll_times=rolls,
        )

    def own_timer(self, store_id: int, key: str, out_ms: int = 1000, topic: str = "T") -> int:
        """Write a source of ours, and return its timer id, which is its queue offset."""
        return self.timer(key, out_ms, own=(store_id, self.next_queue_offset), topic=topic)

    def delete(self, value: str, out_ms: int = 1000, *, own: Own | None = None) -> int:
        """Write a delete record, and return its queue offset."""
        hashed = identity(value)
        return self._queued(
            RecordKind.DELETE, own, identity=hashed, bare_identity=hashed, out_ms=out_ms
        )

    def unusable(self) -> int:
        """Write a timer record without TIMER_OUT_MS, and return its queue offset."""
        return self._queued(RecordKind.UNUSABLE, None)

    def delivered(
        self,
        key: str,
        out_ms: int = 1000,
        *,
        own: Own | None = None,
        topic: str = "T",
        level: int = 0,
    ) -> int:
        """Write a delivered timer, and return its row number."""
        return self.append(
            RecordKind.DELIVERED,
            own,
            identity=identity(f"{topic}+{key}"),
            bare_identity=identity(key),
            out_ms=out_ms,
            delay_level=level,
        )

    def level(
        self,
        key: str,
        level: int,
        *,
        delivered: bool = False,
        offset: int = 0,
        names: int | None = None,
    ) -> int:
        """Write a message of a fixed level, or its delivery, and return its row number.

        `offset` is the message's queue offset; `names` is the offset that our delivery names.
        """
        place = (level - 1) << PLACE_OFFSET_BITS
        return self.append(
            RecordKind.LEVEL_DELIVERED if delivered else RecordKind.LEVEL,
            None if names is None else (7, place | names),
            queue_id=level - 1,
            queue_offset=offset,
            identity=identity(f"T+{key}"),
            bare_identity=identity(key),
            delay_level=level,
        )

    def ordinary(self) -> int:
        """Write an ordinary record, and return its row number."""
        return self.append(RecordKind.ORDINARY, None)


def timer_states(log: SyntheticLog, store_id: int | None = None) -> tuple[list[int], ...]:
    """Fold the log, and return its pending, delivered and cancelled timer ids."""
    found = fold(log.scan, store_id)
    return (
        found.ids_pending.tolist(),
        found.ids_delivered.tolist(),
        found.ids_cancelled.tolist(),
    )
