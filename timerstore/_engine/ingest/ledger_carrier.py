"""Repeat the ledger in the log before retention removes its headers.

Thread safety: runs on the retention thread.
Invariants:
    1. Before a file with ledger records is removed, a statement of each source is appended. It
       replaces every earlier header. Later headers follow it, in files that stay.
Raises: FullError is retried. MessageError if a statement exceeds the largest record: then the file
    stays.
See also: docs/decisions/0012-snapshots-and-retention.md.
"""

import numpy as np

from timerstore._engine.base.column_batch import BatchPart, ColumnBatch
from timerstore._engine.format import queue_unit
from timerstore._engine.format.ledger_json import write_state
from timerstore._engine.format.store_paths import INGEST_TOPIC
from timerstore._engine.ingest.ingester import Ingester
from timerstore._engine.ingest.row_validation import Checked
from timerstore._engine.queues.routes import Routes


class LedgerCarrier:
    """Carries the ledger of one store."""

    def __init__(self, ingester: Ingester, routes: Routes) -> None:
        self._ingester = ingester
        self._routes = routes
        self._stated_at = -1  # log offset where the last statements of all sources begin

    def carry(self, end: int) -> bool:
        """Append statements so that no ledger record below log offset `end` is needed.

        Returns whether that is done.
        """
        route = self._routes.get(INGEST_TOPIC, 0)
        if route is None or self._stated_at >= end:
            return True
        units = queue_unit.read(route.queue.read(route.queue.min_offset, 1))
        if not len(units) or int(units["log_offset"][0]) >= end:
            return True
        begin = self._ingester.log_end  # read first: the ledger then has all headers below it
        if not self._ingester.resolve_all():
            return False
        for source in self._ingester.ledger.sources():
            state = self._ingester.ledger.state(source)
            nothing = np.zeros(1, np.int64)
            batch = Checked(
                INGEST_TOPIC, b"", ColumnBatch(b"", nothing, nothing[:0], b""), nothing[:0]
            )
            self._ingester.append_record(batch, BatchPart(0, 0, 0, 0, 0), write_state(state))
        self._stated_at = begin
        return True
