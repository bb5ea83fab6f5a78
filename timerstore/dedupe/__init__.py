"""Dedupe: message ids that callers gave, remembered for `dedupe_window_ms`.

    put(topic, body, message_id="order-17")     not known: appended, and remembered in the same hold
    put(topic, body, message_id="order-17")     known: nothing is appended, the first one's receipt

What is remembered is a fold of the records with TS_ONCE in the log, as far back as the window goes:
tables in memory that C asks and fills under the append lock, and a side file that saves reading
that part of the log again at each opening, and tells of what retention has removed from it.
"""

from timerstore.dedupe.firsts import Firsts, Once
from timerstore.dedupe.ids import (
    Entries,
    Ids,
    Taken,
    read_ids,
    read_newest,
    remove_ids,
    write_ids,
)

__all__ = [
    "Entries",
    "Firsts",
    "Ids",
    "Once",
    "Taken",
    "read_ids",
    "read_newest",
    "remove_ids",
    "write_ids",
]
