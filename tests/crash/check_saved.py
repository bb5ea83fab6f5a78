"""Check a backup whose maker was killed: it must be complete, with the bytes of the log.

Invariants:
    1. At every kill, the bytes that backup.json names exist, and they are those of the store. They
       lie below a durable watermark, so that no later recovery changed them.
"""

import shutil
from pathlib import Path

import timerstore
from timerstore._engine.format import backup_json
from timerstore._engine.format.store_paths import Tree, segment_name
from timerstore._engine.maintenance.backup import MANIFEST


def check_saved(directory: Path, saved: Path) -> list[str]:
    """Compare a backup, if there is one, with the log of the store, then restore and verify it."""
    if not (saved / MANIFEST).exists():
        return []
    manifest = backup_json.read((saved / MANIFEST).read_bytes())
    problems = list(map(str, timerstore.check_backup(saved).problems))
    for one in manifest.segments:
        name = segment_name(one.offset)
        log = Tree(directory).commit_log / name
        if not log.exists():  # retention has removed the segment
            continue
        ours = log.read_bytes()[: one.size_bytes]
        if (Tree(saved).commit_log / name).read_bytes()[: one.size_bytes] != ours:
            problems.append(f"the backup of {name} is not what the log has")
    restored = directory.with_name("restored-to-check")
    shutil.rmtree(restored, ignore_errors=True)
    timerstore.restore(saved, restored)
    with timerstore.open(restored, threads=False) as store:
        problems += map(str, store.verify().problems)
        if store.stats()["log_end_bytes"] < manifest.log_end:
            problems.append(f"the restored log is shorter than {manifest.log_end}")
    shutil.rmtree(restored)
    return problems
