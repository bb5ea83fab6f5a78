"""Workers that are started, stopped and killed at random leave nothing behind.

TIMERSTORE_CELERY_SOAK_S: duration in seconds (20; 600 in full).
"""

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.celery_plant import PATIENCE_S, Plant, kill

pytestmark = [pytest.mark.more, pytest.mark.timeout(0)]

SECONDS = float(os.environ.get("TIMERSTORE_CELERY_SOAK_S", "20"))
WORKERS_MAX = 3


def _resources(plant: Plant) -> dict[str, Any]:
    """Return the resources of the server. This process is one of its clients."""
    with timerstore.connect(f"unix://{plant.folder}/x.sock") as store:
        queue = store.backlog("celery", "celery")
        return {
            "topics": sorted(store.topics()),
            "tasks": queue.ready + queue.leased + queue.in_backoff,
            "dead letters": queue.dead_letters,
            "pending": len(list(store.pending())),
            "connections": store.stats()["net_connections"],
            "descriptors": len(list(Path(f"/proc/{plant.server.pid}/fd").iterdir())),
        }


def _end_all(plant: Plant, workers: list[Any], sent: int) -> dict[str, Any]:
    """Wait until all tasks have run, end the workers, and return the resources of the server."""
    workers.append(plant.worker("-c", "2"))
    plant.wait(lambda: len({one["ended"] for one in plant.notes("ended")}) == sent)
    plant.wait(lambda: not _resources(plant)["tasks"])
    while workers:
        workers[-1].terminate()
        workers.pop().wait(PATIENCE_S)
    time.sleep(1)  # until the server has seen the ends of their connections
    return _resources(plant)


def test_workers_at_random_leave_nothing_behind(plant: Plant) -> None:
    draw = random.Random(1)
    workers = [plant.worker("-c", "2")]
    plant.send("last", 0, 1.0)
    plant.wait(lambda: plant.notes("began"))
    kill(workers.pop())  # so that there is a topic of retries
    sent = 1
    before = _end_all(plant, workers, sent)
    end_s = time.monotonic() + SECONDS
    starts = 0
    while time.monotonic() < end_s:
        for _ in range(draw.randrange(40)):
            plant.send("last", sent, draw.choice((0.0, 0.1)), countdown=draw.choice((0, 0.5, 3)))
            sent += 1
        if len(workers) < WORKERS_MAX and (not workers or draw.random() < 0.5):
            workers.append(plant.worker("-c", str(draw.randint(1, 2))))
            starts += 1
        elif draw.random() < 0.5:
            kill(workers.pop(draw.randrange(len(workers))))
        else:
            gone = workers.pop(draw.randrange(len(workers)))
            gone.terminate()
            gone.wait(PATIENCE_S)
        time.sleep(draw.random())
    after = _end_all(plant, workers, sent)
    again = len(plant.notes("began")) - sent
    print(f"\n{sent} tasks, {starts} workers, {again} tasks begun again: {after}")
    assert after == before
