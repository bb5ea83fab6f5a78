"""Command `doctor`: examine this machine and a store, and say what must change.

finding.py        one finding: what, why it matters, what to type
machine.py        Python, extras, limits of the process, memory, clock
file_system.py    the file system of a path: kind, options, sync, space
store_owner.py    the process that has a store open, its limits and its sockets
examined_path.py  what a path holds: a store, shards, a backup, something else; access and settings
examination.py    runs the examinations and writes the findings

Invariants:
    1. Nothing is written, locked or connected to. Files are opened for reading only.
    2. An examination that the system does not permit is a finding or is left out.
"""

from timerstore.cli.doctor.examination import doctor_command

__all__ = ["doctor_command"]
