"""Deduplication: message ids given by callers, remembered for `dedupe_window_ms`.

    put(topic, body, message_id="order-17")     unknown: append, and remember in the same step
    put(topic, body, message_id="order-17")     known: append nothing, return the first receipt
                                                (write/contents.py compares the contents)

The ids can be derived from the records with TS_ONCE in the log, as far back as the window reaches.
C looks them up in tables in memory under the append lock. A side file saves reading that part of
the log at each opening, and keeps ids of records that retention removed.

first_messages.py   find and read the message that was put first with an id
message_ids.py      the tables of ids, and their side file
"""

from timerstore._engine.dedupe.first_messages import FirstRows, Firsts, Once
from timerstore._engine.dedupe.message_ids import (
    Entries,
    Ids,
    IdsCopy,
    read_ids,
    read_newest,
    remove_ids,
    write_ids,
)

__all__ = [
    "Entries",
    "FirstRows",
    "Firsts",
    "Ids",
    "IdsCopy",
    "Once",
    "read_ids",
    "read_newest",
    "remove_ids",
    "write_ids",
]
