"""`Expected`: states and counts that the log requires at one log end."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import lib
from timerstore._engine.format.counts_json import Levels
from timerstore._engine.log.fold import Fold
from timerstore._engine.log.scanned_records import Scan
from timerstore._engine.maintenance import id_states
from timerstore._engine.maintenance.id_states import LogFold, Packed


class Expected(NamedTuple):
    """States and counts that the log requires at one log end."""

    states: Packed
    pending: dict[int, int] | None  # by index of route; None: not known
    levels: Levels
    level_pending: dict[int, int]  # by index of route, of messages on fixed levels

    @classmethod
    def of_walk(cls, by_id: LogFold) -> "Expected":
        """Return the result of a fold by id so far."""
        pending, on_levels = dict(by_id.pending), dict(by_id.levels.pending)
        return cls(by_id.states.copy(), pending, by_id.levels.copy(), on_levels)

    @classmethod
    def of_fold(cls, found: Fold, scanned: Scan, by_id: LogFold) -> "Expected":
        """Return the result of a fold by matching, for a log in which a broker wrote."""
        pending, level_pending = (
            _counted(scanned["route"][rows])
            for rows in (found.rows_pending, found.level_rows_pending)
        )
        levels = by_id.levels.of_fold(found)
        return cls(id_states.of_fold(found), pending, levels, level_pending)

    def with_inherited(self, inherited: list[tuple[int, int]], on_levels: list[int]) -> "Expected":
        """Add messages that only later records show to have been pending, as retention removed
        their sources.
        """
        states = id_states.IdStates()
        ids = np.array([timer_id for timer_id, _ in inherited], np.int64)
        states.put(ids, np.full(len(ids), lib.TS_PENDING, np.uint8))
        added, pending = states.copy(), self.pending
        packed = np.zeros(max(len(added), len(self.states)), np.uint8)
        packed[: len(added)] = added
        packed[: len(self.states)] |= self.states
        if pending is not None:
            for _, route in inherited:
                pending[route] = pending.get(route, 0) + 1
        for route in on_levels:
            self.level_pending[route] = self.level_pending.get(route, 0) + 1
        return self._replace(states=packed, pending=pending)


def _counted(routes: npt.NDArray[np.int32]) -> dict[int, int]:
    indexes, counts = np.unique(routes, return_counts=True)
    return dict(zip(indexes.tolist(), counts.tolist(), strict=True))
