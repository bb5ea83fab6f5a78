"""Read a store's files as columns while another process may have it open. Nothing here writes.

    directory -> file_limits.py -> windows.py (8 MiB at a time) -> C: rows -> columns

schemas.py           the tables and their columns
file_limits.py       sizes of one store's files, and how far each may be read
windows.py           parts of a log's files in memory, never a whole segment
log_walk.py          where a log ends, where records begin, how many records a part has
cancelled.py         which timers were cancelled, from a fold of the log
transactions.py      ingested versions, from the headers of their chunks
queue_cover.py       whether a topic's consume queues can be used to find its records
table_scan.py        what to read, and the rows of one part of one table as numpy arrays
damage_policy.py     what to do where bytes are not a record
store_summary.py     file sizes, pending messages by topic, and the owner process
live_stats.py        the same repeatedly, with rates, lateness and the wheel's contents
arrow_batches.py     the tables as pyarrow.RecordBatch; the only file that needs pyarrow

Thread safety: no locks, no threads.
Invariants:
    1. Nothing past the limits of a Snapshot is read, so two scans with one Snapshot return the
       same rows even if the store goes on.
    2. No byte of a file is trusted: C checks lengths, positions and CRCs.
"""

from timerstore._engine.tables.file_limits import Snapshot, take
from timerstore._engine.tables.schemas import TABLES, Column

__all__ = ["TABLES", "Column", "Snapshot", "take"]
