"""Ingest: rows of a named source and version, in the store exactly once.

    ingest("orders", 7, batches)

    chunk 0   | header: orders 7 rows 4000 so far 4000 | 4000 messages |    one group: all or none
    chunk 1   | header: orders 7 rows 4000 so far 8000 | 4000 messages |
    chunk 2   | header: orders 7 rows  123 so far 8123, last | 123 ... |    version 7 is complete

The headers lie in the queue of a system topic: that queue is the ledger, and what is in memory
is a fold of it. A version that a crash cut short goes on behind its last whole chunk. Before
retention removes headers, one record a source says once more what they said.
"""

from timerstore.ingest.carrying import Carrier
from timerstore.ingest.ingester import Ingester
from timerstore.ingest.ledger import Ledger

__all__ = ["Carrier", "Ingester", "Ledger"]
