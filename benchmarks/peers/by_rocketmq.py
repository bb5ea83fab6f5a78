"""RocketMQ's own timer: its store in a Java process of its own, without a network.

The program is tests/interop/rocketmq/src/main/java/interop/Bench.java. Its clock cannot be turned:
delivery is held by the timer's own switch until all is due, then let go; that wait is not timed,
nor is starting Java, nor a warm-up. It hands over by slots of `timerPrecisionMs`, at their end.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import START_MS, Work, need
from benchmarks.peers import contract
from benchmarks.peers.contract import HORIZON_MS, Lateness, Pace, Peer, Settings, Times

BUILT = Path(__file__).resolve().parents[2] / "tests" / "interop" / "rocketmq" / "target"
JAVA = (
    "-Xms1g", "-Xmx2g", "-XX:+UseParallelGC",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    # It would refuse to write, or delete, on a disk that is rather full.
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.99",
)  # fmt: skip
TUNED = {
    "flushDiskType": "ASYNC_FLUSH",
    "osPageCacheBusyTimeOutMills": 60_000,
    "maxTransferCountOnMessageInMemory": 10_000,
    "maxTransferBytesOnMessageInMemory": 64 << 20,
    "maxTransferCountOnMessageInDisk": 10_000,
    "maxTransferBytesOnMessageInDisk": 64 << 20,
}
WARM = 50_000
RATE = 90_000  # a second: a guess at what it puts and indexes, so that nothing is due before
SLOWER = (1, 3, 9)  # so many times the wait that the guess gives, where it was too short


class Java:
    """The process, asked in phases."""

    def __init__(self, root: Path, question: dict[str, Any], config: dict[str, Any]) -> None:
        self.store = root / "store"
        self.store.mkdir()
        self._log = root / "rocketmq.log"
        classpath = f"{BUILT / 'classes'}:{(BUILT / 'classpath').read_text().strip()}"
        asked = {"dir": str(self.store), "config": {**TUNED, **config}, **question}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["java", *JAVA, f"-Duser.home={root}", "-cp", classpath, "interop.Bench",
                 json.dumps(asked)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def hear(self, phase: str) -> dict[str, Any]:
        """Wait until it says that it is there."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        need(bool(line), f"Java ended: {self._log.read_text(errors='replace')[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        need("error" not in answer, f"RocketMQ: {answer.get('error')}")
        need(answer["phase"] == phase, f"RocketMQ: {answer['phase']} instead of {phase}")
        return answer

    def go_on(self) -> None:
        """Let it."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Kill -9."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def work_it(work: Work, root: Path, settings: Settings) -> Times:
    """As contract.drive, in Java; again with a longer wait where something was due too early."""
    (root / "bodies").write_bytes(work.buffer)
    (root / "dues").write_bytes((work.due_ms - START_MS).astype("<i8").tobytes())
    for slower in SLOWER:
        times = _try(work, root, settings, 1500 + slower * work.n * 1000 // RATE)
        if times is not None:
            return times
        shutil.rmtree(root / "store")
    raise harness.WorkError("some was due before all was indexed, however long the wait")


def _try(work: Work, root: Path, settings: Settings, lead_ms: int) -> Times | None:
    """None where something was due before all was indexed."""
    question = {
        "mode": "phases",
        "n": work.n,
        "body": work.body_bytes,
        "batch": settings.batch,
        "warm": 500 if settings.smoke else WARM,
        "lead_ms": lead_ms,
        "horizon_ms": HORIZON_MS,
        "bodies": str(root / "bodies"),
        "dues": str(root / "dues"),
        "found": str(root / "found"),
    }
    java = Java(root, question, {})
    try:
        java.hear("ready")
        empty_disk = harness.disk(java.store).allocated_bytes
        empty_ram = contract.process_ram_bytes(java.pid)
        java.go_on()
        pending = java.hear("pending")
        if not pending["in_time"]:
            return None
        disk = harness.disk(java.store).allocated_bytes - empty_disk
        ram = contract.process_ram_bytes(java.pid) - empty_ram
        java.go_on()
        done = java.hear("done")
    finally:
        java.close()
    need(done["in_queue"] == work.n, f"{done['in_queue']} came out, {work.n} were put")
    return Times(
        pending["schedule_s"], done["deliver_s"], pending["laps_ns"],
        (root / "found").read_bytes(), disk, max(0, ram),
    )  # fmt: skip


def paced(pace: Pace, root: Path, *, precision_ms: int) -> Lateness:
    """As contract.drive_paced, in Java: a thread puts, one takes, polling every millisecond."""
    question = {
        "mode": "paced",
        "rate": pace.rate,
        "seconds": pace.seconds,
        "body": pace.body,
        "ahead_from_ms": pace.ahead_ms[0],
        "ahead_to_ms": pace.ahead_ms[1],
        "warm": WARM,
    }
    java = Java(root, question, {"timerPrecisionMs": precision_ms})
    try:
        java.hear("ready")
        java.go_on()
        return np.array(java.hear("done")["curve_ms"], dtype=np.float64)
    finally:
        java.close()


def missing() -> str | None:
    """Java, and the process of real brokers."""
    if shutil.which("java") is None:
        return "no java in PATH (`make bench-peers` installs it)"
    wanted = (BUILT / "classpath", BUILT / "classes" / "interop" / "Bench.class")
    if not all(one.exists() for one in wanted):
        return "RocketMQ is not built (`make bench-peers` builds it, with Maven)"
    return None


LOST = "up to 0.5 s is lost in a power cut (ASYNC_FLUSH); a kill repeats deliveries"
PEERS = (
    Peer(
        key="rocketmq",
        name="RocketMQ 5.3.3",
        variant="its timer, embedded",
        durability=LOST,
        tuned="no network; heap 2 GiB, ParallelGC; a warm-up of 50,000; pulls of 10,000",
        work=work_it,
        missing=missing,
        exact=False,
        paced=partial(paced, precision_ms=1000),
    ),
    Peer(
        key="rocketmq-100ms",
        name="RocketMQ 5.3.3",
        variant="slots of 100 ms",
        durability=LOST,
        tuned="as by default, but timerPrecisionMs=100 (default 1000): less late",
        work=work_it,
        missing=missing,
        exact=False,
        paced=partial(paced, precision_ms=100),
    ),
)
