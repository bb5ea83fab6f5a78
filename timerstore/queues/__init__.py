"""Queues: for every topic and queue number the units that point into the commit log.

    the log's tail ─► dispatch ─┬─► a real topic's queue ─► pull
                                ├─► wheel_timer's queue  ─► timer/
                                └─► the index, by message key ─► pull/query
                                        listeners hear which queues have grown

dispatch.py        the service that brings the queues up to the log
consume_queue.py   one queue: units of one size in files of one size
index.py           from a key to log offsets                     index_file.py  one file of it
routes.py          from topic and queue number to the queue      lookup.py   the same for a record
levels.py          the fixed delays, as numbers          level_cursors.py  what of them is delivered
level_pending.py   how many wait for them, by topic      removals.py       cancels nobody sees yet

Holds:    (1) a queue has no gap: unit k points at the record that says queue offset k; (2) nothing
          here is truth: queues and index can be built again from the commit log.
"""
