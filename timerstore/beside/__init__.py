"""Beside: a store read beside whoever has it open, as messages; changes nothing.

    Moments (how far) ─► Room (log, queues) ─► pulls
                                            ─► Timers (what waits) ─► pending, query, explain

moment.py      how far a store may be read now, and that this is on the disk
segments.py    files that somebody else writes, in maps
queue.py, routes.py, log.py   what rooms that read ask of a store, without what writes
room.py        these as of one moment
timers.py      states, levels' cursors, what waits
search.py, explaining.py, counting.py   query, explain, histogram
polling.py     waiting for what the store's owner makes visible
answering.py   a call as of the moment of now; pulling.py, timing.py  what is asked
refusing.py    what would change something
store.py       ReadOnlyStore, the face of it all

Holds:    rooms open files by a disk that cannot write (files/read_only.py); columns and verify,
          which look from outside, call only what reads.
Source:   decisions 0021, 0058.
"""

from timerstore.beside.store import ReadOnlyStore

__all__ = ["ReadOnlyStore"]
