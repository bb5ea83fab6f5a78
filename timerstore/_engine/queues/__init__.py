"""Consume queues: for each topic and queue number, units that point into the commit log.

    new log records -> dispatch.py -+-> queue of a real topic  -> read/
                                    +-> queue of wheel_timer   -> timer/
                                    +-> the index, by message key -> read/query.py

dispatch.py             the service that brings queues and index up to the end of the log
consume_queue.py        one queue: units of fixed size in files of fixed size
routes.py               find a queue by topic and queue number
record_lookup.py        find the queue of a record
key_index.py            find log offsets by message key; index_file.py is one file of the index
level_cursors.py        the delivered messages of the delay levels
level_guard.py          the part of the log that the delay levels need
pending_removals.py     cancels that are not visible to all readers yet
old_units.py            check units that existed before this opening against the log
record_properties.py    properties of the messages of some topics

Invariants:
    1. A queue has no gap: unit k points at the record with queue offset k.
    2. Queues and index can be rebuilt from the commit log.
"""
