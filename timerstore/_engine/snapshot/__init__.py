"""Read a store while another process may have it open. Nothing here writes.

    position.py -> Snapshot -> columns/         tables of columns: Arrow, Spark, export
                            -> live_stats.py                       CLI and dashboard
                -> view.py  -> snapshot_*.py    messages, timers and queries: ReadOnlyStore
                                                counts: live_stats.py

How far to read:
position.py                   decide how far a store may be read, also one that a broker wrote;
                              `Snapshot`: sizes and limits of one store's files, as a value
log_windows.py                parts of a log's files, copied into memory, and where a log ends

Tables and numbers:
columns/                      the tables of a store as columns
live_stats.py                 limits, counts and the owner process, once or repeatedly, with rates,
                              lateness and the wheel's contents

A read-only store:
view.py                       log, routes and queues at one position
snapshot_log.py               the commit log, consume queues and topics, read up to the position
snapshot_timers.py            timer states, delivered levels, pending messages
snapshot_calls.py             run one call at a position, and again if files changed below it; wait
                              until the owner shows more; the calls that are refused
snapshot_pull.py              pull calls
snapshot_introspection.py     pending, query without an index, explain and histogram

Invariants:
    1. A read-only store opens its files by a disk that cannot write (storage/disk.py).
See also: store.py and tables.py at the package root;
          docs/decisions/0010-shards-and-spark.md and
          docs/decisions/0012-snapshots-and-retention.md.
"""
