"""Real workers, in processes of their own, with a server that is killed with -9, too."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import timerstore
import timerstore.contrib.celery

pytestmark = [pytest.mark.more, pytest.mark.timeout(300)]

PATIENCE_S = 60.0
JOBS = """
import json, os, time
import timerstore.contrib.celery
from celery import Celery

app = Celery("jobs", broker=os.environ["JOBS_BROKER"], control=timerstore.contrib.celery.Control)
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=4)

def note(**what):
    with open(os.environ["JOBS_NOTES"], "a") as notes:
        notes.write(json.dumps({**what, "at": time.time(), "pid": os.getpid()}) + "\\n")

@app.task
def work(number):
    note(number=number)

@app.task
def last(number, seconds):
    note(began=number)
    time.sleep(seconds)
    note(ended=number)

@app.task(bind=True, max_retries=2)
def fail(self, number):
    note(tried=number, retries=self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=0.5)
"""


class Plant:
    """A server of a store, workers, and what their tasks noted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = f"timerstore://{folder}/x.sock"
        self._notes = folder / "notes"
        self._notes.touch()
        (folder / "jobs.py").write_text(JOBS)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.app = Celery("jobs", set_as_current=False, control=timerstore.contrib.celery.Control)
        self.app.conf.broker_url = self.broker
        timerstore.open(folder / "s").close()
        self.serve()

    def serve(self) -> None:
        self.server = self._start(
            "timerstore.cli", "serve", str(self.folder / "s"), "--socket", f"{self.folder}/x.sock"
        )
        with timerstore.connect(f"unix://{self.folder}/x.sock", retry_for=PATIENCE_S) as store:
            store.topics()

    def kill_server(self) -> None:
        self.server.kill()
        self.server.wait()

    def worker(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker, and wait until it answers."""
        name = f"w{len(self._processes)}@here"
        found = self._start(
            "celery", "-A", "jobs", "worker", "-n", name, "--loglevel=INFO", *options
        )
        self.wait(lambda: self.app.control.ping([name], timeout=0.5))
        return found

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"log{len(self._processes)}").open("wb") as log:
            found = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=self.folder,
                env={
                    **os.environ,
                    "JOBS_BROKER": self.broker,
                    "JOBS_NOTES": str(self._notes),
                    "PYTHONPATH": f"{Path(timerstore.__file__).parents[1]}:{self.folder}",
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(found)
        return found

    def send(self, name: str, *args: Any, **options: Any) -> Any:
        return self.app.send_task(f"jobs.{name}", args, **options)

    def notes(self, key: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self._notes.read_text().splitlines()]
        return [one for one in found if key in one]

    def wait(self, is_done: Callable[[], Any]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not is_done():
            assert time.monotonic() < end_s, self.logs()
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(one.read_text()[-3000:] for one in sorted(self.folder.glob("log*")))

    def close(self) -> None:
        self.app.close()
        for one in self._processes:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    one = Plant(tmp_path)
    yield one
    one.close()


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


def test_task_of_a_killed_worker_begins_again_in_another(plant: Plant) -> None:
    first = plant.worker("-P", "prefork", "-c", "1")
    plant.send("last", 1, 2.0)
    plant.wait(lambda: plant.notes("began"))
    os.killpg(first.pid, signal.SIGKILL)
    killed_s = time.time()
    plant.worker("-P", "prefork", "-c", "1")
    plant.wait(lambda: plant.notes("ended"))
    began = plant.notes("began")
    assert len(began) == 2
    assert began[1]["at"] > killed_s
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
    for _ in range(5):
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
