"""The commit log: every message in order of arrival. Everything else is derived from it.

    append -> staging (memory that outlives the process) -> segment files -> sync
       end                                             written          durable     log offsets

commit_log.py       append, write out, sync
staging.py          the two halves of the side file that takes appends
group_commit.py     one thread syncs for all that wait
log_recovery.py     where the log ends after a crash
survey.py           every readable record, past any damage
fold.py             what the whole log says about each timer; multiset.py groups equal records
retention.py        remove the oldest segments

Invariants:
    1. durable <= written <= end.
    2. A record acknowledged as durable is in its place after any crash.
    3. After the end there are zeros, and no later file.
"""
