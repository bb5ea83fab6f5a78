"""The commit log: every message in order of arrival. Everything else is derived from it.

    append -> staging (memory that outlives the process) -> segment files -> sync
       end                                             written          durable     log offsets

commit_log.py         append, write out, sync
staging.py            the two halves of the side file that takes appended records
group_commit.py       one thread syncs for all waiting threads
log_recovery.py       find the end of the log after a crash
survey.py             read every readable record, also past damage
scanned_records.py    the array of records that a scan returns
fold.py               derive the state of every timer from the whole log, with:
    fold_ownership.py     which records belong to this store
    fold_by_id.py         records that name a timer id
    fold_by_matching.py   records of a broker, matched by content
    fold_levels.py        messages of the delay levels
    multiset.py           groups of equal records
retention.py          remove the oldest segments

Invariants:
    1. durable <= written <= end.
    2. A record that was acknowledged as durable is in its place after any crash.
    3. Only zeros follow the end, and no later file exists.
"""
