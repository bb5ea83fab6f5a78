"""Measure how long a killed store takes to open with much unread data after its last checkpoint.

The time is not asserted. It is added to the ledger (promise P24 allows at most 3 s for each GiB).
"""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import timerstore
from tests.support import ledger
from timerstore import StoreConfig

pytestmark = [pytest.mark.deep, pytest.mark.timeout(0)]

_MIB = 1 << 20
_BODY_BYTES = 800  # a record has about a KiB then
_BATCH = 2000
_CONFIG = StoreConfig(
    flush="async",
    checkpoint_log_bytes=64 << 30,
    checkpoint_log_bytes_max=64 << 30,
    checkpoint_interval_ms=600_000,
)


def _fill(root: Path, mib: int) -> None:
    """Fill a store in a child that is killed.

    Half of the messages are due tomorrow, half at once.
    """
    pid = os.fork()
    if pid == 0:
        store = timerstore.open(root, _CONFIG)
        bodies = np.zeros(_BATCH * _BODY_BYTES, np.uint8).tobytes()
        offsets = np.arange(_BATCH + 1, dtype=np.int64) * _BODY_BYTES
        later_ms = time.time_ns() // 1_000_000 + 86_400_000
        due = np.where(np.arange(_BATCH) % 2, later_ms, 0).astype(np.int64)
        while store.stats()["log_end_bytes"] < mib * _MIB:
            store.put_many("t", (bodies, offsets), deliver_ms=due, queue_id=0)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL


@pytest.mark.parametrize("what", ["from the watermark", "from the log alone"])
def test_opening_time_after_a_kill(tmp_path: Path, what: str) -> None:
    mib = int(os.environ.get("TIMERSTORE_RECOVERY_MIB", "1024"))
    root = tmp_path / "store"
    _fill(root, mib)
    if what == "from the log alone":
        (root / "timerstore/watermark").unlink()
        (root / "timerstore/counts").unlink()
    begun, cpu = time.monotonic(), time.process_time()
    store = timerstore.open(root, _CONFIG, threads=False)
    wall_s, cpu_s = time.monotonic() - begun, time.process_time() - cpu
    stats = store.stats()
    store.close()
    gib = stats["log_end_bytes"] / (1 << 30)
    assert stats["pending_messages"] > 300 * mib
    print(f"{what}: {gib:.2f} GiB, {wall_s:.2f} s, {cpu_s:.2f} s of a core")
    counts = {"MiB": round(gib * 1024), "ms of a core": round(1000 * cpu_s)}
    ledger.add(f"recovery, {what}", 1, cpu_s, counts)
    again = timerstore.open(root, _CONFIG, threads=False)
    assert again.stats()["pending_messages"] == stats["pending_messages"]
    again.close()
