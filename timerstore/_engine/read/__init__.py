"""Read messages: pull from a queue, consume with a group, query by key.

pull.py                  pull messages from an offset on, now or when they arrive
waiting_pull.py          one waiting pull, driven by a thread or by an event loop
multi_wait.py            wait for several pulls at once
long_poll.py             all waiting pulls by queue, and which of them an arrival wakes
queue_reader.py          the messages between two queue offsets
page.py                  the rows and bytes of one pull
page_buffers.py          memory of released pages, for reuse
query.py                 find messages by key or id, pending ones included
found_messages.py        read the messages that a query found
filter.py                tag and SQL filters; sql.py parses, sql_condition.py evaluates
consumer.py              read a topic for a group: poll, commit, seek
consumer_context.py      the parts of a store that a consumer uses
groups.py                the assignment of queues to the members of a group
consumer_offsets.py      committed offsets, on disk
consumer_lag.py          messages that known groups have not read yet
queue_ends.py            whether a queue has messages from an offset on
lease_progress.py        how far groups that use leases have read
waiting_poll.py          a consumer's waiting poll; wait_queue.py orders several of them
topic_reader.py          pulls and long polls of one topic, with the filter of a group
time_seek.py             the first queue offset stored at or after a time
pull_request.py          the arguments of a pull, as a value
commit_request.py, pull_validation.py, query_validation.py, validation.py   check arguments

Invariants:
    1. A returned message is durable, unless the store was configured to show written messages.
    2. There are no gaps: each offset returns the same message every time.
    3. No waiting pull misses its message, and an arrival wakes no pull of another queue.
"""
