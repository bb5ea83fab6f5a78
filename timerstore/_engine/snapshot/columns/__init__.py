"""Read a store's files as tables of columns. Nothing here writes or takes a lock.

    position.py -> Snapshot -> log_windows.py (8 MiB at a time) -> C fills rows -> columns

schemas.py           the tables and their columns
table_scan.py        the options of a scan, and the rows of one part of one table as numpy arrays
arrow_batches.py     the tables as pyarrow.RecordBatch; the only file that needs pyarrow
pending_set.py       the records that stand for the pending messages
store_facts.py       what a scan needs to know of its whole store
cancelled.py         which timers were cancelled, from a fold of the log
transactions.py      ingested versions, from the headers of their chunks
record_starts.py     where records begin, from consume queues and segment starts
queue_cover.py       whether a topic's consume queues can be used to find its records
damage_policy.py     skip, stop or fail at bytes that are not a record

Thread safety: no locks, no threads.
Invariants:
    1. Nothing past the limits of a Snapshot is read, so two scans with one Snapshot return the
       same rows even if the store goes on.
    2. C checks lengths, positions and CRCs of everything that it reads from a file.
"""
