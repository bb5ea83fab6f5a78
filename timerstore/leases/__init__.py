"""Leases: messages that are handed out for a time, and come again where nobody settles them.

    store.receive("orders", "billing", lease=30) ─► read ─► one timer a message ─► the caller
          a consumer that dies    ─► the timer is due ─► %RETRY%billing|orders ─► receive, attempt 2
          ack(receipt)            ─► the timer is cancelled
          the last attempt's      ─► %DLQ%billing

Nothing of a lease is kept in memory: it is a timer like any other, and the wheel brings it back.
"""

from timerstore.leases.backoff import Backoff
from timerstore.leases.consumer import LeaseConsumer
from timerstore.leases.leases import Leases
from timerstore.leases.message import AckResult, LeasedMessage
from timerstore.leases.reader import WaitingReceive

__all__ = [
    "AckResult",
    "Backoff",
    "LeaseConsumer",
    "LeasedMessage",
    "Leases",
    "WaitingReceive",
]
