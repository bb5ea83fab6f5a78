"""What a backup is after its maker was killed: whole, and the log's own bytes.

Holds:    whatever died, backup.json speaks of bytes that are there, and that are the store's: they
          lay below a durable watermark, so that no recovery changed them since.
"""

import shutil
from pathlib import Path

import timerstore
from timerstore._engine.format import backup_json
from timerstore._engine.format.store_paths import Tree, segment_name
from timerstore._engine.maintenance.backup import MANIFEST


def check_saved(directory: Path, saved: Path) -> list[str]:
    """Compare a backup, where there is one, with the store's log; restore it, and look it over."""
    if not (saved / MANIFEST).exists():
        return []
    manifest = backup_json.read((saved / MANIFEST).read_bytes())
    problems = list(map(str, timerstore.check_backup(saved).problems))
    for one in manifest.segments:
        name = segment_name(one.offset)
        log = Tree(directory).commit_log / name
        if not log.exists():  # retention has dropped it
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
