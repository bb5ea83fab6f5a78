"""Many tasks wait in the store while four workers run.

TIMERSTORE_CELERY_TASKS: how many (10,000; 100,000 in full, on a quiet machine). All are due within
an hour. The test waits for the first 40 s of them, 500 in each second.
"""

import os
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.celery_plant import Plant

pytestmark = [pytest.mark.more, pytest.mark.timeout(900)]

TASKS = int(os.environ.get("TIMERSTORE_CELERY_TASKS", "10000"))
FULL = 100_000
PER_SECOND = 500
RUNS = min(TASKS // 2, 40 * PER_SECOND)
MIB = 1 << 20


def _memory_bytes(process_ids: list[int]) -> int:
    pages = [int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in process_ids]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


def _eta(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)


def test_waiting_tasks_take_no_memory_of_workers_and_run_on_time(plant: Plant) -> None:
    workers = [plant.worker("-c", "1").pid for _ in range(4)]
    for number in range(PER_SECOND):
        plant.send("work", -1 - number)
    plant.wait(lambda: len(plant.notes("number")) >= PER_SECOND)
    memory_bytes = [_memory_bytes(workers)]
    hour_s = time.time() + 3500
    for number in range(RUNS, TASKS):
        plant.send("work", number, eta=_eta(hour_s + number / TASKS))
    first_s = time.time() + 5 + RUNS / 250
    due_s = [first_s + number / PER_SECOND for number in range(RUNS)]
    for number, at_s in enumerate(due_s):
        plant.send("work", number, eta=_eta(at_s))
    inspect = plant.app.control.inspect()
    found = [*(inspect.reserved() or {}).values(), *(inspect.active() or {}).values()]
    assert time.time() < first_s, "sending took too long"
    assert found == [[]] * 8
    memory_bytes.append(_memory_bytes(workers))
    plant.wait(lambda: len(plant.notes("number")) >= PER_SECOND + RUNS, 300)
    memory_bytes.append(_memory_bytes(workers))
    ran = {one["number"]: one["at"] for one in plant.notes("number")}
    late_s = sorted(ran[number] - at_s for number, at_s in enumerate(due_s))
    p50_s, p99_s = late_s[RUNS // 2], late_s[RUNS * 99 // 100]
    mib = [one // MIB for one in memory_bytes]
    print(f"\n{RUNS} of {TASKS} tasks: late by {p50_s:.4f} s (p50), {p99_s:.4f} s (p99); {mib} MiB")
    assert Counter(one["number"] for one in plant.notes("number")) == Counter(
        range(-PER_SECOND, RUNS)
    )
    assert late_s[0] >= 0
    assert max(memory_bytes) < memory_bytes[0] + 20 * MIB
    if TASKS >= FULL:
        assert p99_s < 0.1
