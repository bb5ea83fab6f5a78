"""Inspect: looks at a store and says what is not as it should be; changes nothing.

check.py         every invariant of an open store, as a Report: snapshots, and what to compare
check_log.py     the commit log; queue units and timer units, against its records
check_timer.py   timer log, slots and chains; whether all that waits is reached
check_side.py    watermark, states and counts, as of the last checkpoint
check_offsets.py what groups committed, against the queues
id_states.py     what the log says of each timer id        findings.py   problems, gathered

offline.py       a directory that need not be open: every damaged range, as a Report
repair.py        a damaged directory's log into a new one
check_log_files.py, check_queue_files.py, log_units.py   what both read

Holds:    a Report of check.py without problems means that every message has its unit, and every
          waiting timer its place.
"""

from timerstore.inspect.offline import verify_directory
from timerstore.inspect.repair import repair_directory

__all__ = ["repair_directory", "verify_directory"]
