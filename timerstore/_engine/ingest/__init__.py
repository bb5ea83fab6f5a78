"""Ingest: store the rows of a named source and version exactly once.

    ingest("orders", 7, batches)

    chunk 0   | header: orders 7 rows 4000 so far 4000 | 4000 messages |    one atomic group
    chunk 1   | header: orders 7 rows 4000 so far 8000 | 4000 messages |
    chunk 2   | header: orders 7 rows  123 so far 8123, last | 123 ... |    version 7 is complete

The queue of a system topic holds the headers; it is the ledger. The ledger in memory is derived
from that queue. A version that a crash interrupted continues after its last whole chunk. Before
retention removes headers, one record for each source repeats their contents.

ingester.py           append the rows of a version
row_batch.py          the public types; row_validation.py: check a batch
ledger.py             the versions of each source; version_set.py: a set of versions
ledger_side_file.py   a copy of the ledger, so that opening reads only the last headers
ledger_carrier.py     repeat the ledger before retention removes headers
"""

from timerstore._engine.ingest.ingester import Ingester
from timerstore._engine.ingest.ledger import Ledger
from timerstore._engine.ingest.ledger_carrier import LedgerCarrier

__all__ = ["Ingester", "Ledger", "LedgerCarrier"]
