"""Leases: hand out messages for a time, and deliver them again unless they are acknowledged.

    store.receive("orders", "billing", lease=30) -> read -> one timer for each message -> the caller
          consumer dies            -> the timer is due -> %RETRY%billing|orders -> receive again
          ack(receipt)             -> the timer is cancelled
          after the last attempt   -> %DLQ%billing
          bury(receipt)            -> %DLQ%billing, now
          requeue("billing")       -> %RETRY%billing|orders, as attempt 1

No lease is kept in memory. A lease is a timer like any other.
"""

from timerstore._engine.leases.backoff import Backoff
from timerstore._engine.leases.lease_consumer import Heartbeat, LeaseConsumer
from timerstore._engine.leases.lease_reader import WaitingReceive
from timerstore._engine.leases.leased_message import AckResult, DeadLetter, LeasedMessage
from timerstore._engine.leases.leases import Leases
from timerstore._engine.leases.receive_request import LeaseCall

__all__ = [
    "AckResult",
    "Backoff",
    "DeadLetter",
    "Heartbeat",
    "LeaseCall",
    "LeaseConsumer",
    "LeasedMessage",
    "Leases",
    "WaitingReceive",
]
