"""Columns: a store's files as columns, read beside whoever writes them; changes nothing.

    directory ─► Snapshot (how far to read) ─► Windows (8 MiB at a time) ─► C: rows ─► columns

tables.py     the tables and their columns
snapshot.py   one store's sizes and limits: its watermark's, or as far as a broker's log goes
windows.py    parts of a log's files in memory, never a whole segment
walk.py       where a log ends; record edges; how many records a part has
ranges.py     which part of a log can hold what is asked for
cancelled.py  which timers were cancelled, from a fold of the log
transactions.py  ingested versions, from the headers of their chunks
scan.py       what to read (Wanted), and rows of one part of one table as numpy arrays
look.py       sizes, what waits by topic, who has it open; pulse.py  that again and again, with
              rates, lateness and what is on the wheel
arrow.py      the same as pyarrow.RecordBatch; the only file that needs pyarrow

Threads:  none; nothing here takes the store's lock, starts a thread, or writes.
Holds:    (1) nothing beyond a snapshot's limits is looked at, so that two scans with one snapshot
          see the same however the store goes on; (2) no byte of a file is trusted: lengths are
          bounded, positions and CRCs compared, in C.
"""

from timerstore.columns.snapshot import Snapshot, take
from timerstore.columns.tables import TABLES, Column

__all__ = ["TABLES", "Column", "Snapshot", "take"]
