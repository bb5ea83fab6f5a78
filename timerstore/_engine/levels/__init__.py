"""Deliver messages with a fixed delay. Each delay level has one queue of the level topic.

    put(level=n) -> level topic, queue n - 1 -> deliver.py -> queue of the real topic -> pull

deliver.py                the service that delivers due messages
level_runs.py             which message of a queue is due next
level_pending.py          the messages that are still pending
pending_counts.py         how many messages are pending, by real topic
broker_offsets.py         config/delayOffset.json, for a broker that opens the directory after us

See also: format/delay_levels.py (the table of delays), queues/level_cursors.py (which places are
delivered), native/timer/levels.c (the copies that are appended).
Invariants:
    1. A message is delivered once and not before its time.
    2. A message is not delayed by one that is due later (docs/decisions/0007-delay-levels.md).
"""
