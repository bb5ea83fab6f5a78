"""Read messages: pull from a queue, consume with a group, query by key.

pull.py                  pull messages from an offset on, now or when they arrive
waiting.py               waiting pulls and polls, driven by a thread or by an event loop
long_poll.py             all waiting pulls by queue, and which of them an arrival wakes
queue_reader.py          the messages between two queue offsets, or from a time on
page.py                  the rows and bytes of one pull
query.py                 find messages by key or id, pending ones included
filter.py                tag and SQL filters; sql.py parses and evaluates
consumer.py              read a topic for a group: poll, commit, seek
groups.py                the queues of each member of a group, and the order of its waiting polls
consumer_offsets.py      committed offsets, on disk; how far leases have read; the lag of groups
topic_reader.py          pulls and long polls of one topic, with the filter of a group
pull_request.py          the arguments of a pull, as a value, and their checks

Invariants:
    1. A returned message is durable, unless the store was configured to show written messages.
    2. There are no gaps: each offset returns the same message every time.
    3. No waiting pull misses its message, and an arrival wakes no pull of another queue.
"""
