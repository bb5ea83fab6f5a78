"""Inspect: looks at a store and says what is not as it should be; changes nothing.

check.py         every invariant of an open store, as a Report: snapshots, and what to compare
check_log.py     the commit log; queue units and timer units, against its records
check_timer.py   timer log, slots and chains; whether all that waits is reached
check_side.py    watermark, states and counts, as of the last checkpoint
check_offsets.py what groups committed, against the queues
id_states.py     what the log says of each timer id        findings.py   problems, gathered

Holds:    a Report without problems means that every message has its unit, and every waiting timer
          its place.
"""
