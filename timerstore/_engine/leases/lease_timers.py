"""Find the timer at the end of a lease, by the receipt of the lease.

Thread safety: any thread.
"""

from timerstore._engine.base.owner import Owner
from timerstore._engine.format.handle import Handle
from timerstore._engine.format.lease import Receipt
from timerstore._engine.queues.routes import Routes
from timerstore._engine.timer.handle_lookup import FoundTimer
from timerstore.config import StoreConfig
from timerstore.receipts import out_ms


class LeaseTimers(Owner):
    """The timers of the leases of one store."""

    def __init__(self, routes: Routes, config: StoreConfig, opening: int) -> None:
        """`opening`: the random number of this opening of the store."""
        self._routes = routes
        self._config = config
        self._opening = opening

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
