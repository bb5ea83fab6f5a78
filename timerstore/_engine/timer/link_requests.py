"""Make requests for the linker, from due entries and from units of the far wheel.

The messages of these requests are linked again: their record in the log stays where it is.

Thread safety: any thread may call it.
"""

import numpy as np

from timerstore._engine.base.native import ffi, lib
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.timer.timer_arrays import REQUEST, Int64Array, Records
from timerstore._engine.timer.timer_states import TimerStates


def requests_of_far_units(units: Records, log_begin: int) -> tuple[Records, Int64Array]:
    """Return requests for units of the far wheel, and their rows.

    Units whose record retention has moved are left out.
    """
    rows = np.flatnonzero(units["log_offset"] >= log_begin)
    requests = np.zeros(len(rows), REQUEST)
    for name in ("id", "log_offset", "due_ms", "size", "topic_hash"):
        requests[name] = units[name][rows]
    requests["flags"] = lib.TS_FLAG_AGAIN
    return requests, rows


def requests_of_due_entries(
    log: CommitLog, states: TimerStates, store_id: int, precision_ms: int, entries: Records
) -> tuple[Records, Int64Array]:
    """Return requests for due entries, and their rows.

    Entries whose record retention has moved are left out.
    """
    segments = log.segments
    with segments.view(log.written) as view:
        rows = np.flatnonzero(entries["log_offset"] >= view.begin)
        living = np.ascontiguousarray(entries[rows])
        requests = np.empty(len(living), REQUEST)
        done = 0
        while done < len(living):
            got = lib.ts_due_requests(
                view,
                ffi.from_buffer("ts_due[]", living) + done,
                len(living) - done,
                states.native,
                store_id,
                precision_ms,
                ffi.from_buffer("ts_request[]", requests) + done,
            )
            if got < 0:
                segments.serve(view, got, "relink")
            else:
                done += got
    requests["flags"] = lib.TS_FLAG_AGAIN
    return requests, rows
