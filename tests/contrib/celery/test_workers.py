"""Real workers, in processes of their own, with a server that is killed with -9, too."""

import itertools
import os
import time
from collections import Counter
from typing import Any

import pytest

from tests.support.celery_plant import Plant, kill

pytestmark = [pytest.mark.more, pytest.mark.timeout(300)]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_delayed_tasks_run_once_and_not_early(plant: Plant, pool: str) -> None:
    plant.worker("-P", pool, "-c", "2")
    eta_s = time.time() + 3
    for number in range(60):
        plant.send("work", number, countdown=eta_s - time.time())
    reserved = plant.app.control.inspect().reserved()
    assert [task for tasks in reserved.values() for task in tasks] == []
    plant.wait(lambda: len(plant.notes("number")) >= 60)
    found = plant.notes("number")
    assert sorted(one["number"] for one in found) == list(range(60))
    assert min(one["at"] for one in found) >= eta_s - 0.01  # countdown is counted from each call


def test_retries_with_countdown_wait_in_the_store(plant: Plant) -> None:
    plant.worker("-P", "prefork", "-c", "1")
    plant.send("fail", 1)
    plant.wait(lambda: len(plant.notes("tried")) >= 3)
    found = plant.notes("tried")
    assert [one["retries"] for one in found] == [0, 1, 2]
    assert all(b["at"] - a["at"] >= 0.5 for a, b in itertools.pairwise(found))


def test_task_of_a_killed_worker_begins_in_another_within_two_seconds(plant: Plant) -> None:
    workers = {one.pid: one for one in (plant.worker("-c", "1") for _ in range(2))}
    plant.send("last", 1, 2.0)
    plant.wait(lambda: plant.notes("began"))
    killed_s = time.time()  # before: the other may begin while this one waits for the end
    kill(workers[os.getsid(plant.notes("began")[0]["pid"])])
    plant.wait(lambda: plant.notes("ended"))
    began = plant.notes("began")
    assert len(began) == 2
    assert killed_s < began[1]["at"] < killed_s + 2
    time.sleep(1)  # a second end would come now
    assert len(plant.notes("ended")) == 1


def test_long_task_of_the_pool_solo_keeps_its_lease(plant: Plant, monkeypatch: Any) -> None:
    sites = plant.folder / "sitecustomize.py"
    sites.write_text(
        "from timerstore.contrib.celery import consuming, held_leases as leases\n"
        "leases.LEASE_S = consuming.LEASE_S = 2.0\nleases._RENEW_S = 0.5\n"
    )
    plant.worker("-P", "solo")
    plant.send("last", 1, 6.0)
    plant.wait(lambda: plant.notes("began"))
    plant.worker("-P", "solo")
    plant.wait(lambda: plant.notes("ended"))
    time.sleep(3)
    assert len(plant.notes("began")) == 1


def test_killed_server_neither_loses_nor_doubles_tasks(plant: Plant) -> None:
    plant.worker("-P", "prefork", "-c", "2")
    numbers = iter(range(10_000))
    sent = []
    for _ in range(20):
        for _ in range(40):
            sent.append(next(numbers))
            plant.send("work", sent[-1], countdown=0.3)
        plant.kill_server()
        time.sleep(0.2)
        plant.serve()
    plant.wait(lambda: len(plant.notes("number")) >= len(sent))
    time.sleep(2)
    counts = Counter(one["number"] for one in plant.notes("number"))
    assert sorted(counts) == sent
    assert [number for number, count in counts.items() if count > 1] == []


def test_worker_connects_again_after_a_long_absence_of_the_server(plant: Plant) -> None:
    plant.worker("-P", "prefork", "-c", "1")
    plant.kill_server()
    log = plant.folder / "log1"
    plant.wait(lambda: "Cannot connect to timerstore://" in log.read_text())
    assert "no server was found in" in log.read_text()
    plant.serve()
    plant.send("work", 1)
    plant.wait(lambda: plant.notes("number"))
