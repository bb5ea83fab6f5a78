"""The calls of an open store. `timerstore.TimerStore` adds the puts.

open_store.py    running calls, errors that are final, closing
store_calls.py   reads, leases, cancels, introspection and maintenance
"""
