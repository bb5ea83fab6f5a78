"""Find the present timer of a lease that was renewed, by the receipt that it keeps.

    receive -> receipt R of timer 7
    renew(R)     timer 7 becomes timer 9, with the property TS_RENEWED "<opening> 7"
    renew(R)     timer 9 becomes timer 12, with the same property
    ack(R)       cancels timer 12

The table is a cache. After an opening the timer is searched by the id of its message.

Thread safety: any thread.
Locking: `lock` is held while a lease is renewed, and while the present timer is looked up again.
Invariants:
    1. A receipt that finds its own timer cancelled is looked up again under the lock, so it never
       misses a renewal that runs at the same time.
"""

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.format.lease import Receipt, renewal_mark
from timerstore._engine.timer.handle_lookup import HandleLookup
from timerstore.clock import Clock

_KEPT_MIN = 1024
_KEPT_MS = 3_600_000  # after the end of a lease; later its receipt is SETTLED, not EXPIRED

Root = tuple[int, int]
"""Opening and timer id of the receipt that a lease keeps."""


class Renewals(Owner):
    """The renewed leases of one store."""

    def __init__(self, opening: int, clock: Clock, lookup: HandleLookup) -> None:
        self._opening = opening
        self._clock = clock
        self._lookup = lookup
        self._present: dict[Root, Receipt] = {}
        self._kept_max = _KEPT_MIN
        self.lock = Lock()

    def present(self, receipt: Receipt) -> Receipt:
        """Return a receipt of the present timer; the same one if no renewal is known."""
        if not self._present:  # the usual case
            return receipt
        return self._present.get(_root_of(receipt), receipt)

    def add(self, receipt: Receipt, present: Receipt) -> None:
        """Record a renewal; the caller holds the lock."""
        if len(self._present) >= self._kept_max:
            oldest_ms = self._clock.now_ms - _KEPT_MS
            self._present = {
                root: one for root, one in self._present.items() if one.until_ms >= oldest_ms
            }
            self._kept_max = max(2 * len(self._present), _KEPT_MIN)
        self._present[_root_of(receipt)] = present

    def remove(self, receipt: Receipt) -> None:
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
        self.add(receipt, present)
        return present


def _root_of(receipt: Receipt) -> Root:
    return receipt.opening, receipt.timer_id
