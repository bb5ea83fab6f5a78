"""Consume queues: for each topic and queue number, units that point into the commit log.

    new log records -> dispatch.py -+-> queue of a real topic  -> read/
                                    +-> queue of wheel_timer   -> timer/
                                    +-> the index, by message key -> read/query.py

core.py            `Core`: the values that nearly every component needs
dispatch.py        the service that brings queues and index up to the end of the log; cancels that
                   are not visible to all readers yet
consume_queue.py   one queue: units of fixed size in files of fixed size
routes.py          find a queue by topic and queue number; check units of an earlier opening
record_lookup.py   find the queue of a record, and its properties
key_index.py       find log offsets by message key; index_file.py is one file of the index
message_ids.py     the ids that callers gave, remembered for `dedupe_window_ms`
level_cursors.py   the delivered messages of the delay levels

Invariants:
    1. A queue has no gap: unit k points at the record with queue offset k.
    2. Queues and index can be rebuilt from the commit log.
"""
