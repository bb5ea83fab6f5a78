"""The commit log: every message in order of arrival. Everything else is derived from it.

    append -> staging (memory that outlives the process) -> segment files -> sync
       end                                             written          durable     log offsets

commit_log.py        append, write out, sync: one thread syncs for all waiting threads
log_reader.py        what a reader needs of this log or of a snapshot of one
staging.py           the two halves of the side file that takes appended records
log_recovery.py      find the end of the log after a crash
timer_states.py      pending, delivered or cancelled, for each timer id
survey.py            read every readable record, also past damage
scanned_records.py   the array of records that a scan returns, and groups of equal records
fold.py              derive the state of every timer from the whole log, and decide which records
                     belong to this store
fold_matching.py     its rules: by timer id, by content for a broker's records, for delay levels

Invariants:
    1. durable <= written <= end.
    2. A record that was acknowledged as durable is in its place after any crash.
    3. Only zeros follow the end, and no later file exists.
"""
