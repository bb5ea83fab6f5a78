"""Read a store's files as tables of columns. Nothing here writes or takes a lock.

    position.py -> Snapshot -> log_windows.py (8 MiB at a time) -> C fills rows -> columns

table_scan.py      the options of a scan, also at damage; the rows of one part of one table
schemas.py         the tables and their columns
arrow_batches.py   the tables as pyarrow.RecordBatch; the only file that needs pyarrow
pending_set.py     what a scan needs to know of its whole store: which messages are pending
record_starts.py   where records begin, from consume queues and segment starts

Thread safety: no locks, no threads.
Invariants:
    1. Nothing past the limits of a Snapshot is read, so two scans with one Snapshot return the
       same rows even if the store goes on.
    2. C checks lengths, positions and CRCs of everything that it reads from a file.
"""
