"""Measure Celery with timerstore, Redis and RabbitMQ as the broker. No result backend is used.

One producer (this process), the broker, and one worker with two processes share the machine. A run
enqueues `n` tasks, starts the worker, and waits until it has run them. Then `late` tasks with an
`eta` come, `late_rate` in each second; the spread is their lateness. At last `future` tasks are
enqueued that are due in an hour. The memory is anonymous memory that they add to the broker and to
the worker.

Raises: WorkError if a task does not run, or runs early.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import harness
from benchmarks.harness import Result, need, spread
from benchmarks.peers.contract import module_missing, process_ram_bytes
from benchmarks.rounds import interleaved
from benchmarks.served.contract import program_missing
from benchmarks.served.of_redis import server_command

ENDS_S = 120.0
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
FULL: dict[str, Any] = {"n": 4000, "late": 1000, "late_rate": 100, "future": 10_000, "rounds": 2,
                        "seconds_max": 900.0, "brokers": ""}  # fmt: skip
SMOKE: dict[str, Any] = {"n": 20, "late": 20, "late_rate": 20, "future": 20, "rounds": 1,
                         "seconds_max": 60.0, "brokers": "timerstore"}  # fmt: skip
TASKS = """
import json, os, time
import timerstore.contrib.celery
from celery import Celery

app = Celery("bench_tasks", broker=os.environ["BENCH_BROKER"])
app.conf.broker_transport_options = json.loads(os.environ["BENCH_OPTIONS"])

@app.task(ignore_result=True)
def note(number):
    with open("notes", "ab", 0) as notes:
        notes.write(b"%d %f\\n" % (number, time.time()))
"""


class Process:
    """A server or a worker, with the processes that it starts."""

    def __init__(
        self, command: Sequence[str], root: Path, name: str, more: Mapping[str, str]
    ) -> None:
        self._log = root / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=root, env={**os.environ, **more}, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def wait(self, is_done: Callable[[], object], what: str) -> None:
        """Wait until something is so, or the process has ended."""
        end_s = time.monotonic() + ENDS_S
        while not is_done():
            is_up = time.monotonic() < end_s and self._process.poll() is None
            need(is_up, f"{what}: {self._log.read_text('utf-8', 'replace')[-800:]}")
            time.sleep(0.02)

    def memory_bytes(self) -> int:
        """Return the anonymous memory of all processes."""
        total = 0
        for folder in Path("/proc").glob("[0-9]*"):
            pid = int(folder.name)
            with suppress(ProcessLookupError, FileNotFoundError):  # it has ended
                if os.getsid(pid) == self._process.pid:
                    total += process_ram_bytes(pid)
        return total

    def close(self) -> None:
        """Kill all processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Started(NamedTuple):
    """A broker that runs."""

    process: Process
    url: str
    options: Mapping[str, Any]
    """Of kombu's transport."""


def _timerstore(root: Path) -> Started:
    place = root / "x.sock"
    python = [sys.executable, "-m", "timerstore.cli"]
    subprocess.run([*python, "init", root / "store"], check=True, stdout=subprocess.DEVNULL)
    server = Process(
        [*python, "serve", str(root / "store"), "--socket", str(place)], root, "broker", {}
    )
    server.wait(place.exists, "no server")
    return Started(server, f"timerstore://{place}", {})


def _redis(fsync: str, root: Path) -> Started:
    place = root / "x.sock"
    server = Process(server_command(fsync, place), root, "broker", {})
    server.wait(place.exists, "no server")
    return Started(server, f"redis+socket://{place}", {})


def _rabbitmq(root: Path) -> Started:
    with ExitStack() as free:
        probes = [free.enter_context(socket.socket()) for _ in range(3)]
        for one in probes:
            one.bind(("127.0.0.1", 0))
        port, inner, names = (str(one.getsockname()[1]) for one in probes)
    settings = {
        "HOME": str(root), "RABBITMQ_BASE": str(root), "RABBITMQ_MNESIA_BASE": str(root / "data"),
        "RABBITMQ_LOG_BASE": str(root), "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_NODE_PORT": port,
        "RABBITMQ_DIST_PORT": inner, "ERL_EPMD_PORT": names, "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(root / "plugins"),
        "RABBITMQ_PID_FILE": str(root / "pid"),
    }  # fmt: skip
    both = f"epmd -port {names} & exec {RABBITMQ}"  # else it starts one that outlives it
    server = Process(["sh", "-c", both], root, "broker", settings)

    def accepts() -> bool:
        with socket.socket() as probe:
            return not probe.connect_ex(("127.0.0.1", int(port)))

    server.wait(accepts, "no server")
    return Started(server, f"amqp://guest:guest@127.0.0.1:{port}//", {"confirm_publish": True})


class Broker(NamedTuple):
    """A broker with one setting of durability."""

    key: str
    name: str
    durability: str
    start: Callable[[Path], Started]
    missing: Callable[[], str | None]


def _no_redis() -> str | None:
    return program_missing("redis-server") or module_missing("redis")


def _no_rabbitmq() -> str | None:
    return None if RABBITMQ.exists() else f"no {RABBITMQ} (`make bench-peers` installs it)"


BROKERS = (
    Broker("timerstore", "timerstore", "each task is synced", _timerstore,
           partial(module_missing, "msgspec")),
    Broker("redis-always", "Redis, AOF always", "each task is synced", partial(_redis, "always"),
           _no_redis),
    Broker("redis-everysec", "Redis, AOF everysec", "up to 1 s is lost in a power cut",
           partial(_redis, "everysec"), _no_redis),
    Broker("rabbitmq", "RabbitMQ, confirmed", "each task is synced", _rabbitmq, _no_rabbitmq),
)  # fmt: skip


def _notes(root: Path) -> list[tuple[int, float]]:
    """Return the number and the time of each task that ran."""
    found = (root / "notes").read_text("ascii").splitlines() if (root / "notes").exists() else []
    return [(int(number), float(at)) for number, at in (one.split() for one in found)]


def _steady_bytes(process: Process) -> int:
    """Return the memory of a process that has ceased to grow."""
    found = process.memory_bytes()
    end_s = time.monotonic() + ENDS_S
    while time.monotonic() < end_s:
        time.sleep(2)
        before, found = found, process.memory_bytes()
        if found - before < 1 << 18:
            break
    return found


def once(broker: Broker, parameters: Mapping[str, Any], root: Path) -> Result:
    """One broker."""
    import celery  # noqa: PLC0415 - it may be missing

    import timerstore.contrib.celery  # noqa: PLC0415

    n, late, future = (parameters[name] for name in ("n", "late", "future"))
    (root / "bench_tasks.py").write_text(TASKS)
    with ExitStack() as running:
        started = broker.start(root)
        running.callback(started.process.close)
        app = celery.Celery("bench_tasks", broker=started.url, set_as_current=False)
        app.conf.broker_transport_options = started.options
        running.callback(app.close)
        send = partial(app.send_task, "bench_tasks.note", ignore_result=True)

        began = time.perf_counter()
        for number in range(n):
            send([number])
        enqueue_s = time.perf_counter() - began
        settings = {"BENCH_BROKER": started.url, "BENCH_OPTIONS": json.dumps(started.options),
                    "PYTHONPATH": f"{root}:{Path(timerstore.__file__).parents[1]}"}  # fmt: skip
        command = [sys.executable, "-m", "celery", "-A", "bench_tasks", "worker", "-c", "2"]
        worker = Process(command, root, "worker", settings)
        running.callback(worker.close)
        worker.wait(lambda: len(_notes(root)) >= n, "tasks do not run")
        times = sorted(at for _, at in _notes(root))

        first_s = time.time() + 2 + late / 100  # all are enqueued before the first is due
        due_s = [first_s + k / parameters["late_rate"] for k in range(late)]
        for k, at_s in enumerate(due_s):
            send([n + k], eta=datetime.fromtimestamp(at_s, UTC))
        need(time.time() < first_s, "the tasks were enqueued too slowly")
        worker.wait(lambda: len(_notes(root)) >= n + late, "tasks do not run")
        before = _steady_bytes(started.process), _steady_bytes(worker)
        for number in range(future):
            send([-1 - number], countdown=3600)
        after_worker = _steady_bytes(worker)
        after = _steady_bytes(started.process), after_worker
        found = _notes(root)
    late_ms = [1000 * (at - due_s[k - n]) for k, at in found if k >= n]
    need({k for k, _ in found} == set(range(n + late)), "a task did not run, or before its hour")
    need(min(late_ms) > -1, "a task ran early")
    return Result(
        "celery",
        {"broker": broker.key, "n": n, "late": late, "late_rate": parameters["late_rate"],
         "future": future},
        n,
        (n - 1) / (times[n - 1] - times[0]),
        "ms late",
        spread(late_ms),
        broker.durability,
        harness.digest(f"{n} {late} {future}"),
        {
            "name_of_broker": broker.name,
            "enqueue_rate": n / enqueue_s,
            "broker_bytes": after[0] - before[0],
            "worker_bytes": after[1] - before[1],
            "doubles": len(found) - n - late,
        },
    )  # fmt: skip


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """Each broker that can run here, in turns."""
    need(module_missing("celery") is None, "celery is not installed")
    keys = parameters["brokers"].split(",") if parameters["brokers"] else [b.key for b in BROKERS]
    ready = []
    for one in BROKERS:
        if one.key in keys and (reason := one.missing()) is not None:
            print(f"!!! NOT MEASURED: {one.name}: {reason}", file=sys.stderr)
        elif one.key in keys:
            ready.append(one)
    need(bool(ready), f"no broker {parameters['brokers']!r} can run here")
    variants = [partial(once, one, parameters) for one in ready]
    yield from interleaved(variants, parameters, smoke=smoke, directory=directory)


def main(argv: list[str] | None = None) -> int:
    """Print the lines."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
