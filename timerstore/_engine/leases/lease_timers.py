"""Find the timer at the end of a lease, by the receipt of the lease.

Thread safety: any thread.
"""

from array import array

import numpy as np

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.handle import Handle
from timerstore._engine.format.lease import Receipt, renewal_mark
from timerstore._engine.log.timer_states import TimerStates, which_wait
from timerstore._engine.queues.core import Core
from timerstore._engine.timer.handle_lookup import FoundTimer, HandleLookup
from timerstore.types.receipts import out_ms

# --- lease timers ---
# A lease that was renewed keeps its receipt, and has another timer at present.
#
#     receive -> receipt R of timer 7
#     renew(R)     timer 7 becomes timer 9, with the property TS_RENEWED "<opening> 7"
#     renew(R)     timer 9 becomes timer 12, with the same property
#     ack(R)       cancels timer 12
#
# The table of renewals is a cache. After an opening the timer is searched by the id of its message.
#
# Thread safety: any thread.
# Locking: `lock` is held while a lease is renewed, and while the present timer is looked up again.
# Invariants:
#     1. A receipt that finds its own timer cancelled is looked up again under the lock, so it never
#        misses a renewal that runs at the same time.


_KEPT_MIN = 1024
_KEPT_MS = 3_600_000  # after the end of a lease; later its receipt is SETTLED, not EXPIRED

Root = tuple[int, int]
"""Opening and timer id of the receipt that a lease keeps."""


class LeaseTimers(NotCopyable):
    """The timers of the leases of one store."""

    def __init__(self, core: Core, opening: int, lookup: HandleLookup) -> None:
        """`opening`: the random number of this opening of the store."""
        self._routes = core.routes
        self._config = core.config
        self._clock = core.clock
        self._opening = opening
        self._lookup = lookup
        self._present: dict[Root, Receipt] = {}  # of renewed leases
        self._kept_max = _KEPT_MIN
        self.lock = Lock()

    def timer_of(self, receipt: Receipt) -> FoundTimer | None:
        """Return the timer of a receipt, or None if an earlier opening of the store made it.

        Its timer id may name another timer now.
        """
        if receipt.opening != self._opening:
            return None
        route = self._routes.get(receipt.lease_topic, receipt.queue_id)
        if route is None:
            return None
        slot_ms = out_ms(receipt.until_ms, self._config.precision_ms)
        until_ms, at = receipt.until_ms, receipt.log_offset
        return FoundTimer(receipt.timer_id, receipt.message_id, route, slot_ms, until_ms, at)

    def handle_of(self, receipt: Receipt) -> Handle:
        """Return the handle of the timer, by which it is searched."""
        return Handle(
            receipt.lease_topic,
            self._config.broker_name,
            out_ms(receipt.until_ms, self._config.precision_ms) + 1,
            receipt.message_id,
            receipt.timer_id,
        )

    # --- renewals ---

    def present(self, receipt: Receipt) -> Receipt:
        """Return a receipt of the present timer; the same one if no renewal is known."""
        if not self._present:  # the usual case
            return receipt
        return self._present.get(_root_of(receipt), receipt)

    def add_renewal(self, receipt: Receipt, present: Receipt) -> None:
        """Record a renewal; the caller holds the lock."""
        if len(self._present) >= self._kept_max:
            oldest_ms = self._clock.now_ms - _KEPT_MS
            self._present = {
                root: one for root, one in self._present.items() if one.until_ms >= oldest_ms
            }
            self._kept_max = max(2 * len(self._present), _KEPT_MIN)
        self._present[_root_of(receipt)] = present

    def remove_renewal(self, receipt: Receipt) -> None:
        """Forget a lease that was settled."""
        if self._present:
            self._present.pop(_root_of(receipt), None)

    def again(self, receipt: Receipt, tried: Receipt) -> Receipt | None:
        """Return the present timer of a receipt if it is another one than `tried`, or None.

        The caller holds the lock.
        """
        present = self.present(receipt)
        if present != tried:
            return present
        if receipt.opening == self._opening or tried != receipt:
            return None  # the table has all renewals of this opening
        found = self._lookup.find_marked(
            receipt.lease_topic, receipt.message_id, renewal_mark(receipt)
        )
        if found is None:
            return None
        present = receipt._replace(
            opening=self._opening,
            queue_id=found.real.queue_id,
            until_ms=found.due_ms,
            timer_id=found.timer_id,
            log_offset=found.log_offset,
        )
        self.add_renewal(receipt, present)
        return present


def _root_of(receipt: Receipt) -> Root:
    return receipt.opening, receipt.timer_id


# --- lease kinds ---
# Count the timers of a group by kind: those in back-off, and leases of a last attempt.
#
# The timer of a lease waits for the retry topic, or in its last attempt for the dead-letter topic
# of the group. `nack` gives the message a new timer, which waits for the retry topic, too. So the
# number of pending timers of a topic does not tell a lease from a message in back-off, nor one
# topic of the group from another: the ids are kept here. An id leaves when its timer is not pending
# any more.
#
# Thread safety: any thread.
# Locking: `_lock`, for changes of the arrays.
# Invariants: memory is 8 bytes for each pending id, and for at most as many ids that have left.
# See also: docs/decisions/0009-leases-replace-and-recurring.md.


_SPARE_IDS = 4096

Key = tuple[str, str]
"""Topic and group."""


class TimerIds(NotCopyable):
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
            ids = self._ids.setdefault(key, array("q"))
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

    def forget(self, topic: str) -> None:
        """Forget the timers of a deleted topic."""
        with self._lock:
            for key in [key for key in self._ids if key[0] == topic]:
                del self._ids[key]

    def _count(self, key: Key) -> int:
        ids = np.unique(np.array(self._ids[key], np.int64))
        ids = ids[which_wait(self._states.native, ids)]
        self._ids[key] = array("q", ids.tobytes())
        self._limits[key] = 2 * len(ids) + _SPARE_IDS
        return len(ids)


class LeaseKinds(NotCopyable):
    """The timers of all groups of one store that are not plain leases."""

    def __init__(self, states: TimerStates) -> None:
        self.in_backoff = TimerIds(states)
        """Messages that `nack` returned, and that are delivered again later."""
        self.last_attempts = TimerIds(states)
        """Leases whose messages become dead letters when they end."""
