"""Pull: messages out of one queue, from an offset on, one by one or as columns; and by key.

pull.py        answers
waiting.py     one pull that waits, by a thread or by an event loop
hold.py        the pulls of a store that wait, by queue: who is woken by what
reading.py     the messages between two offsets        page.py   what one pull has got so far
query.py       messages by key, wherever they lie; those that wait, too
filter.py      what a pull lets through: asked about a unit, then about its message
sql.py         the text of an SQL filter               condition.py   what it asks of properties
consumer.py    reads a topic for a group: hands out, commits, seeks
groups.py      who of a group has which queue      offsets.py   what was committed, on disk
polling.py     a consumer's poll that waits        line.py      who of them stands in the table
watcher.py     puts them there
seek.py        from a time to an offset

Holds:    (1) what is given is durable, unless the store was opened to show what is only written;
          (2) no gap, and the same messages in the same order however often an offset is asked for;
          (3) no pull sleeps past its message, and no message wakes the pulls of another queue.
"""
