"""Backup: a store's commit log, and what cannot be told from it, kept a second time.

A backup is a folder: backup.json (layout/backup_json.py) and commitlog/ with the segments, each as
long as what counts of it. Queues, index, wheel, timer log and states are derived: a restored store
builds them anew when it is opened first.

    copying.py     a live store -> a backup; again: what is new since
    restoring.py   a backup -> a store, every byte checked on the way
"""

from timerstore.backup.copying import Copier
from timerstore.backup.restoring import check_backup, restore

__all__ = ["Copier", "check_backup", "restore"]
