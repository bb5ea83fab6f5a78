"""Real workers of Celery, in processes of their own, and a server of their store.

Import it after `pytest.importorskip("celery")`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from celery import Celery

import timerstore
import timerstore.contrib.celery

PATIENCE_S = 60.0
JOBS = """
import json, os, time
import timerstore.contrib.celery
from celery import Celery
from celery.exceptions import Reject

app = Celery("jobs", broker=os.environ["JOBS_BROKER"], control=timerstore.contrib.celery.Control)
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=4)
app.conf.broker_transport_options = json.loads(os.environ["JOBS_OPTIONS"])

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

@app.task(acks_late=False)
def early(number, seconds):
    last(number, seconds)

@app.task(bind=True)
def requeue(self, number):
    is_again = self.request.delivery_info["redelivered"]
    note(requeued=number, is_again=is_again)
    if not is_again:
        raise Reject(requeue=True)

@app.task(bind=True, max_retries=2)
def fail(self, number):
    note(tried=number, retries=self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=0.5)
"""


class Plant:
    """A server of a store, its workers, and the notes of their tasks."""

    options: ClassVar[Mapping[str, Any]] = {}
    """Those of the transport."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._notes = folder / "notes"
        self._notes.touch()
        (folder / "jobs.py").write_text(JOBS)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.broker = self._prepare()
        self.app = Celery("jobs", set_as_current=False, control=timerstore.contrib.celery.Control)
        self.app.conf.broker_url = self.broker
        self.app.conf.broker_transport_options = self.options
        self.serve()

    def _prepare(self) -> str:
        """Prepare the broker, and return its URL."""
        timerstore.open(self.folder / "s").close()
        return f"timerstore://{self.folder}/x.sock"

    def serve(self) -> None:
        store, at = str(self.folder / "s"), str(self.folder / "x.sock")
        self.server = self._start(*_PYTHON, "timerstore.cli", "serve", store, "--socket", at)
        with timerstore.connect(f"unix://{at}", retry_for=PATIENCE_S) as one:
            one.topics()

    def kill_server(self) -> None:
        self.server.kill()
        self.server.wait()

    def worker(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker, and wait until it answers."""
        name = f"w{len(self._processes)}@here"
        app = (*_PYTHON, "celery", "-A", "jobs", "worker", "-n", name, "--loglevel=INFO")
        found = self._start(*app, *options)
        self.wait(lambda: self.app.control.ping([name], timeout=0.5))
        return found

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"log{len(self._processes)}").open("wb") as log:
            found = subprocess.Popen(
                command,
                cwd=self.folder,
                env={
                    **os.environ,
                    "JOBS_BROKER": self.broker,
                    "JOBS_OPTIONS": json.dumps(self.options),
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

    def leased_count(self) -> int:
        """Return how many tasks are leased, after asserting that none is ready."""
        with timerstore.connect(f"unix://{self.folder}/x.sock") as store:
            found = store.backlog("celery", "celery")
        assert not found.ready
        return found.leased

    def notes(self, key: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self._notes.read_text().splitlines()]
        return [one for one in found if key in one]

    def wait(self, is_done: Callable[[], Any], within_s: float = PATIENCE_S) -> None:
        end_s = time.monotonic() + within_s
        while not is_done():
            assert time.monotonic() < end_s, self.logs()
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(one.read_text()[-3000:] for one in sorted(self.folder.glob("log*")))

    def close(self) -> None:
        self.app.close()
        for one in self._processes:
            if one.poll() is None:
                kill(one)


_PYTHON = (sys.executable, "-m")


def kill(worker: subprocess.Popen[bytes]) -> None:
    """Kill a worker with its pool."""
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
