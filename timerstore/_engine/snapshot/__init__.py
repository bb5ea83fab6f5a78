"""Read a store while another process may have it open. Nothing here writes.

    position.py -> Snapshot -> columns/         tables of columns: Arrow, Spark, export
                            -> store_summary.py, live_stats.py     CLI and dashboard
                -> view.py  -> snapshot_*.py    messages, timers and queries: ReadOnlyStore
                                                counts: store_summary.py, live_stats.py

How far to read:
position.py                   decide how far a store may be read, and follow that position
broker_limits.py              the same for files that a broker wrote
file_limits.py                `Snapshot`: sizes and limits of one store's files, as a value
log_walk.py                   where a log ends, and whether a record begins at an offset
log_windows.py                parts of a log's files, copied into memory
snapshot_segments.py          mapped segment files that another process appends to
queue_files.py                the files that name topics and queues
row_types.py                  numpy types of the rows that C fills

Tables and numbers:
columns/                      the tables of a store as columns
store_summary.py              limits, counts, and the owner process
live_stats.py                 the same repeatedly, with rates, lateness and the wheel's contents

A read-only store:
view.py                       log, routes and queues at one position
snapshot_log.py               the commit log, read up to the position
snapshot_queue.py             a consume queue, read up to the position
snapshot_routes.py            topics and queues, as the files show them
snapshot_counts.py            pending messages and ends of queues, for every reader
snapshot_timers.py            timer states, delivered levels, pending messages
snapshot_calls.py             run one call at a position, and again if files changed below it
snapshot_pull.py              pull calls
snapshot_polling.py           wait until the owner makes more messages visible
snapshot_introspection.py     pending, query, explain and histogram
key_search.py                 find messages by key without an index
explain_snapshot.py           explain one message
rejected_calls.py             the calls that a read-only store refuses

Invariants:
    1. A read-only store opens its files by a disk that cannot write (storage/read_only_disk.py).
See also: read_only_store.py and tables.py at the package root;
          docs/decisions/0010-shards-and-spark.md and
          docs/decisions/0012-snapshots-and-retention.md.
"""
