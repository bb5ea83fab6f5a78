"""Look after a store: verify, repair, back up, restore.

    verify.py            every invariant of an open store, as a Report
    check_*.py           what it compares: log, queues, index, timer log, wheel, side files, offsets
    verify_at_rest.py    a directory that need not be open: every damaged range, as a Report
    repair.py            a damaged directory's log into a new one
    backup.py            a live store into a backup; again: what is new since
    restore_backup.py    a backup into a store, every byte checked
    bootstrap_files.py   the side files that repair and restore leave for the first opening

A backup is a folder: backup.json (format/backup_json.py) and commitlog/ with the segments. Queues,
index, wheel, timer log and states are derived: the first opening of a restored store rebuilds them.
"""

from timerstore._engine.maintenance.backup import Copier
from timerstore._engine.maintenance.repair import repair_directory
from timerstore._engine.maintenance.restore_backup import check_backup, restore
from timerstore._engine.maintenance.verify import verify_directory

__all__ = ["Copier", "check_backup", "repair_directory", "restore", "verify_directory"]
