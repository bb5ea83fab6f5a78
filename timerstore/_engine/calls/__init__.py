"""The calls of an open store, by subject. `timerstore.TimerStore` combines them.

open_store.py            running calls, errors that are final, closing
read_calls.py            pull, query, consumer
lease_calls.py           receive, ack, nack, extend, bury, dead letters, requeue
change_calls.py          cancel, cancel_many, reschedule, pace
introspection_calls.py   pending, histogram, explain, stats
maintenance_calls.py     flush, verify, backup, services
"""
