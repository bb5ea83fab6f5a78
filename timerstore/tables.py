"""Read the tables of a store as Arrow record batches, without Spark. Needs `timerstore[arrow]`.

    for batch in timerstore.tables.read("orders.store", "deliveries"):
        print(batch.num_rows)

Another process may have the store open. `take` fixes how far the files are read, so that several
reads see the same.
"""

from timerstore._engine.tables import TABLES, Column, Snapshot, take
from timerstore._engine.tables.arrow_batches import read
from timerstore._engine.tables.table_scan import Bounds

__all__ = ["TABLES", "Bounds", "Column", "Snapshot", "read", "take"]
