"""Schedule: messages that wait for a fixed delay, one queue of the level topic a level.

    put(level=n) -> level topic, queue n - 1 -> deliver.py -> the real topic's queue -> pull
                    the unit's tagsCode says when     the copy's TS_LEVEL says: this place is done

deliver.py     the service                      runs.py   which of a queue's messages is due next
pending.py     what waits
offsets.py     config/delayOffset.json, for a broker that opens the directory after us
queues/levels.py has the table, queues/level_cursors.py what is done, native/src/levels.c the copies

Holds:    a message is delivered once, not before its time, and behind nothing that is due later
          (decision 0013).
"""
