"""Read the tables of a store as Arrow record batches, without Spark. Needs `timerstore[arrow]`.

    for batch in timerstore.tables.read("orders.store", "deliveries"):
        print(batch.num_rows)

Another process may have the store open. `take` returns a Snapshot, which fixes how far the files
are read. Several reads with one Snapshot see the same. It says which state that is: `log_end` and
`timer_log_end` are offsets, and `as_of_ms` is the time of the checkpoint.
"""

from timerstore._engine.snapshot.columns.arrow_batches import read
from timerstore._engine.snapshot.columns.schemas import TABLES, Column
from timerstore._engine.snapshot.columns.table_scan import Bounds
from timerstore._engine.snapshot.file_limits import Snapshot
from timerstore._engine.snapshot.position import take

__all__ = ["TABLES", "Bounds", "Column", "Snapshot", "read", "take"]
