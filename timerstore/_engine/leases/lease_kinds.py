"""Count the timers of a group by kind: those in back-off, and leases of a last attempt.

The timer of a lease waits for the retry topic, or in its last attempt for the dead-letter topic of
the group. `nack` gives the message a new timer, which waits for the retry topic, too. So the number
of pending timers of a topic does not tell a lease from a message in back-off, nor one topic of the
group from another: the ids are kept here. An id leaves when its timer is not pending any more.

Thread safety: any thread.
Locking: `_lock`, for changes of the arrays.
Invariants: memory is 8 bytes for each pending id, and for at most as many ids that have left.
See also: docs/decisions/0009-leases-replace-and-recurring.md.
"""

from array import array

import numpy as np

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.timer.timer_states import TimerStates, which_wait

_SPARE_IDS = 4096

Key = tuple[str, str]
"""Topic and group."""


class TimerIds(Owner):
    """The ids of pending timers, by topic and group."""

    def __init__(self, states: TimerStates) -> None:
        self._states = states
        self._lock = Lock()
        self._ids: dict[Key, array[int]] = {}
        self._limits: dict[Key, int] = {}

    def add(self, topic: str, group: str, timer_id: int) -> None:
        """Add a timer."""
        key = topic, group
        with self._lock:
            ids = self._ids.get(key)
            if ids is None:
                ids = self._ids[key] = array("q")
            ids.append(timer_id)
            if len(ids) > self._limits.get(key, _SPARE_IDS):
                self._count(key)

    def count(self, topic: str, group: str) -> int:
        """Return how many of the timers are pending."""
        with self._lock:
            return self._count((topic, group)) if (topic, group) in self._ids else 0

    def known(self) -> list[Key]:
        """Return each topic and group that ever had a timer here."""
        with self._lock:
            return list(self._ids)

    def _count(self, key: Key) -> int:
        ids = np.unique(np.array(self._ids[key], np.int64))
        ids = ids[which_wait(self._states.native, ids)]
        self._ids[key] = array("q", ids.tobytes())
        self._limits[key] = 2 * len(ids) + _SPARE_IDS
        return len(ids)


class LeaseKinds(Owner):
    """The timers of all groups of one store that are not plain leases."""

    def __init__(self, states: TimerStates) -> None:
        self.in_backoff = TimerIds(states)
        """Messages that `nack` returned, and that are delivered again later."""
        self.last_attempts = TimerIds(states)
        """Leases whose messages become dead letters when they end."""
