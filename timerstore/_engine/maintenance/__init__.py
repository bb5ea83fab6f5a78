"""Maintain a store: verify, repair, back up, restore.

    verify.py            every check, on a view of a store
    store_view.py        the view that checks read, and their findings
    live_view.py         the view of an open store
    at_rest_view.py      the view of a directory, whose log is read past damage
    check_log.py         the log, queues and index; check_timer.py: wheel, far wheel and timer log
    check_states.py      states, side files and config; expected_states.py: as the log requires them
    repair.py            copy a damaged directory's log into a new one
    backup.py            copy a live store into a backup, and later the new part
    restore_backup.py    copy a backup into a store, and check every byte

A backup is a folder with backup.json (format/backup_json.py) and the log's segments in commitlog/.
Queues, index, wheel, timer log and states are derived: the first opening of a restored store builds
them.
"""

from timerstore._engine.maintenance.backup import Copier
from timerstore._engine.maintenance.repair import repair_directory
from timerstore._engine.maintenance.restore_backup import check_backup, restore
from timerstore._engine.maintenance.verify import verify_directory

__all__ = ["Copier", "check_backup", "repair_directory", "restore", "verify_directory"]
