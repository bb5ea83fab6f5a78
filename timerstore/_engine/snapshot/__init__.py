"""Read a store while another process may have it open. Nothing here writes.

    position.py (how far to read) -> view.py (log and queues) -> snapshot_pull.py
                                                              -> snapshot_timers.py -> query

position.py                   how far the store may be read now, and that this part is durable
snapshot_segments.py          segment files that another process appends to
snapshot_queue.py             a consume queue, read up to the position
snapshot_routes.py            topics and queues, as the files show them
snapshot_log.py               the commit log, read up to the position
view.py                       log, routes and queues of one position
snapshot_timers.py            timer states, delivered levels, pending messages
key_search.py                 find messages by key without an index
explain_snapshot.py           explain one message
due_histogram.py              count pending messages by due time
snapshot_polling.py           wait until the owner makes more messages visible
calls.py                      run one call at a position, and again if the files changed below it
snapshot_pull.py              pull calls of a read-only store
snapshot_introspection.py     pending, query, explain and histogram of a read-only store
unsupported.py                the calls that a read-only store refuses
read_only_store.py            ReadOnlyStore

Invariants:
    1. Files are opened by a disk that cannot write (storage/read_only_disk.py).
See also: read_only_store.py at the package root; docs/decisions/0010-shards-and-spark.md and
          docs/decisions/0012-snapshots-and-retention.md.
"""
