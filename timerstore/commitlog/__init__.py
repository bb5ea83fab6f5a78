"""The commit log: every message in order of arrival, the truth that all else is built from.

    append ─► staging (memory that outlives the process) ─► segment files ─► sync
       end                                            written           durable     log offsets

commit_log.py   appending, writing out, syncing
staging.py      the two halves that take appends
recover.py      where the log ends after a crash
fold.py         what the whole log says of every timer; pure
multiset.py     groups of equal records, for fold.py; pure

Holds:    (1) durable <= written <= end; (2) a record that was acknowledged as durable is there,
          whole and in its place, after any crash; (3) behind the end there are zeros, and no later
          file.
"""
