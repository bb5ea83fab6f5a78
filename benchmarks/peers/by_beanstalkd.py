"""beanstalkd -b: jobs with a delay; its delays are whole seconds, and its clock cannot be turned.

The due time is also the priority of a job, so that ready jobs are ordered by it. The real wait
until all jobs are due is not timed. Moving jobs to the ready heap during that wait is not timed
either, which favors beanstalkd.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import BinaryIO

from benchmarks import harness
from benchmarks.harness import START_MS, Work, need
from benchmarks.peers import contract
from benchmarks.peers.contract import HORIZON_MS, Peer, Settings, Times

PART = 500  # commands a send
STARTS_S = 20.0
RATE = 20_000  # a second: a guess at the least it schedules, so that nothing is due too early


class InBeanstalkd:
    """A server of its own, on a socket in its directory."""

    def __init__(self, root: Path) -> None:
        path = root / "beanstalkd.sock"
        (root / "wal").mkdir()
        self._server = subprocess.Popen(
            ["beanstalkd", "-l", f"unix:{path}", "-b", str(root / "wal"), "-f", "50"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._socket = socket.socket(socket.AF_UNIX)
        until = time.monotonic() + STARTS_S
        while self._socket.connect_ex(str(path)):
            need(time.monotonic() < until and self._server.poll() is None, "it did not start")
            time.sleep(0.005)
        self._answers: BinaryIO = self._socket.makefile("rb", buffering=1 << 20)

    def _ask(self, commands: list[bytes], answer: bytes) -> None:
        """Send them together; each must be answered so."""
        self._socket.sendall(b"".join(commands))
        for _ in commands:
            line = self._answers.readline()
            need(line.startswith(answer), f"beanstalkd answered {line!r}")

    def schedule(self, lead_s: int, due_in_ms: list[int], bodies: list[bytes]) -> None:
        puts = [
            b"put %d %d 120 %d\r\n%b\r\n" % (due, lead_s + due // 1000, len(body), body)
            for due, body in zip(due_in_ms, bodies, strict=True)
        ]
        for at in range(0, len(puts), PART):
            self._ask(puts[at : at + PART], b"INSERTED")

    def take(self, limit: int) -> list[bytes]:
        """Reserve and delete."""
        found: list[bytes] = []
        while len(found) < limit:
            count = min(PART, limit - len(found))
            self._socket.sendall(b"reserve-with-timeout 0\r\n" * count)
            jobs: list[bytes] = []
            for _ in range(count):
                word, *rest = self._answers.readline().split()
                if word != b"RESERVED":
                    continue
                found.append(self._answers.read(int(rest[1])))
                self._answers.read(2)
                jobs.append(b"delete %b\r\n" % rest[0])
            if not jobs:
                break
            self._ask(jobs, b"DELETED")
        return found

    def ram_bytes(self) -> int:
        return contract.process_ram_bytes(self._server.pid)

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
        self._server.kill()
        self._server.wait()


def work_it(work: Work, root: Path, settings: Settings) -> Times:
    """As contract.drive, with a wait in the middle."""
    lead_s = work.n // RATE + 2
    due = work.due_ms - START_MS
    batch = settings.batch
    cuts = [(at, min(at + batch, work.n)) for at in range(0, work.n, batch)]
    given = [(lead_s, due[begin:end].tolist(), work.bodies(begin, end)) for begin, end in cuts]
    session = InBeanstalkd(root)
    found: list[bytes] = []
    try:
        empty = session.ram_bytes()
        laps = harness.Stopwatch()
        for part in given:
            with laps:
                session.schedule(*part)
        due_at = time.monotonic() + lead_s + HORIZON_MS / 1000 + 0.5
        need(laps.seconds < lead_s, f"scheduling took {laps.seconds:.1f} s, some was due already")
        disk, ram = harness.disk(root).allocated_bytes, session.ram_bytes() - empty
        time.sleep(max(0.0, due_at - time.monotonic()))
        began = time.perf_counter()
        while len(found) < work.n:
            taken = session.take(min(batch, work.n - len(found)))
            need(bool(taken), f"{work.n - len(found)} of {work.n} did not come out")
            found += taken
        ended = time.perf_counter()
    finally:
        session.close()
    return Times(laps.seconds, ended - began, laps.laps_ns, b"".join(found), disk, ram)


def missing() -> str | None:
    """The server."""
    if shutil.which("beanstalkd") is None:
        return "no beanstalkd in PATH (`make bench-peers` installs it)"
    return None


PEERS = (
    Peer(
        key="beanstalkd",
        name="beanstalkd",
        variant="-b -f 50",
        durability="up to 50 ms is lost in a power cut",
        tuned="unix socket, 500 commands a send, sync every 50 ms (its default); whole seconds",
        work=work_it,
        missing=missing,
    ),
)
