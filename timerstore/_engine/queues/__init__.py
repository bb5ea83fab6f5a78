"""Consume queues: for each topic and queue number, units that point into the commit log.

    the log's tail -> dispatch.py -+-> queue of a real topic  -> read/
                                   +-> queue of wheel_timer   -> timer/
                                   +-> the index, by message key -> read/query.py

dispatch.py             the service that brings queues and index up to the log's end
consume_queue.py        one queue: units of one size in files of one size
routes.py               from topic and queue number to the queue; record_lookup.py: from a record
key_index.py            from a key to log offsets; index_file.py is one file of it
level_cursors.py        which places of the delay levels are delivered
level_guard.py          how far back the log is needed for the delay levels
pending_removals.py     cancels that are not visible to all readers yet
old_units.py            checks units that existed before this opening against the log
record_properties.py    properties of the messages of some topics

Invariants:
    1. A queue has no gap: unit k points at the record with queue offset k.
    2. Queues and index can be rebuilt from the commit log.
"""
