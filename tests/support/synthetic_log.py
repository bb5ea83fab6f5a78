"""Logs for the fold, written record by record as the scan would see them.

Holds:    rows are in log order, 100 bytes apart; the timer queue has no gaps.
"""

from typing import Any

from tests.support.scan_rows import identity, rows_array
from timerstore._engine.log.fold import fold
from timerstore._engine.log.scanned_records import PLACE_OFFSET_BITS, Kind, Scan

Own = tuple[int, int]


class SyntheticLog:
    """Appends rows. `own` is (store id, timer id), the TS_ID; None leaves it out."""

    def __init__(self, first_log_offset: int = 0, first_queue_offset: int = 0) -> None:
        self.rows: list[dict[str, Any]] = []
        self.next_log_offset = first_log_offset
        self.next_queue_offset = first_queue_offset

    @property
    def scan(self) -> Scan:
        """What was written so far."""
        return rows_array(self.rows)

    def append(self, kind: Kind, own: Own | None, **fields: Any) -> int:
        """Write one row; returns its row number."""
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

    def _queued(self, kind: Kind, own: Own | None, **fields: Any) -> int:
        """Write one row of the timer queue; returns its queue offset."""
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
        """A source or a copy in the timer topic; returns its queue offset."""
        return self._queued(
            Kind.TIMER,
            own,
            identity=identity(f"{topic}+{key}"),
            bare_identity=identity(key),
            out_ms=out_ms,
            roll_times=rolls,
        )

    def own_timer(self, store_id: int, key: str, out_ms: int = 1000, topic: str = "T") -> int:
        """A source of ours: its timer id is its queue offset, which is returned."""
        return self.timer(key, out_ms, own=(store_id, self.next_queue_offset), topic=topic)

    def delete(self, value: str, out_ms: int = 1000, *, own: Own | None = None) -> int:
        """A delete record; returns its queue offset."""
        hashed = identity(value)
        return self._queued(Kind.DELETE, own, identity=hashed, bare_identity=hashed, out_ms=out_ms)

    def unusable(self) -> int:
        """Something in the timer topic without TIMER_OUT_MS; returns its queue offset."""
        return self._queued(Kind.UNUSABLE, None)

    def delivered(
        self,
        key: str,
        out_ms: int = 1000,
        *,
        own: Own | None = None,
        topic: str = "T",
        level: int = 0,
    ) -> int:
        """A delivered timer; returns its row."""
        return self.append(
            Kind.DELIVERED,
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
        """A message of a fixed level, or its delivery; returns its row.

        `offset`: the message's in its queue; `names`: the offset that a delivery of ours names.
        """
        place = (level - 1) << PLACE_OFFSET_BITS
        return self.append(
            Kind.LEVEL_DELIVERED if delivered else Kind.LEVEL,
            None if names is None else (7, place | names),
            queue_id=level - 1,
            queue_offset=offset,
            identity=identity(f"T+{key}"),
            bare_identity=identity(key),
            delay_level=level,
        )

    def ordinary(self) -> int:
        """Something that has no part in it; returns its row."""
        return self.append(Kind.ORDINARY, None)


def timer_states(log: SyntheticLog, store_id: int | None = None) -> tuple[list[int], ...]:
    """Fold the log, and return its pending, delivered and cancelled timer ids."""
    found = fold(log.scan, store_id)
    return (
        found.ids_pending.tolist(),
        found.ids_delivered.tolist(),
        found.ids_cancelled.tolist(),
    )
