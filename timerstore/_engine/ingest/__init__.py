"""Ingest: store the rows of a named source and version exactly once.

    ingest("orders", 7, batches)

    chunk 0   | header: orders 7 rows 4000 so far 4000 | 4000 messages |    one atomic group
    chunk 1   | header: orders 7 rows 4000 so far 8000 | 4000 messages |
    chunk 2   | header: orders 7 rows  123 so far 8123, last | 123 ... |    version 7 is complete

The queue of a system topic holds the headers; it is the ledger. The ledger in memory is a fold of
that queue. A version that a crash interrupted continues after its last whole chunk. Before
retention removes headers, one record for each source repeats what they said.
"""

from timerstore._engine.ingest.ingester import Ingester
from timerstore._engine.ingest.ledger import Ledger
from timerstore._engine.ingest.ledger_carrier import LedgerCarrier

__all__ = ["Ingester", "Ledger", "LedgerCarrier"]
