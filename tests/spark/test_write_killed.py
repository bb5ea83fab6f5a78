"""Writes with killed drivers, killed executors and concurrent attempts store each row once.

`make nightly` runs the long loop; TIMERSTORE_SPARK_KILLS is the number of drivers it kills.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import timerstore
from tests.spark import write_programs
from tests.spark.test_write import came, each_once
from tests.support.bench import small
from tests.support.inside import Disk
from tests.support.spark import session as spark_session
from timerstore import shards
from timerstore.shards import manifest
from timerstore.shards.shard_paths import ShardsTree


@pytest.fixture(autouse=True)
def needs_spark() -> None:
    wrong = spark_session.missing()
    if wrong is not None:
        pytest.skip(f"Spark cannot run: {wrong}")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    timerstore.open_shards(tmp_path / "s", 3, small(), threads=False).close()
    return tmp_path


def start(name: str, scratch: Path, **settings: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.write_programs", name, scratch, json.dumps(settings)],
        cwd=spark_session.ROOT,
        env=os.environ | spark_session.environment(),
        stdout=subprocess.PIPE,
        stderr=(scratch / "stderr").open("a"),
        text=True,
        start_new_session=True,
    )


def kill(process: "subprocess.Popen[str]") -> None:
    """Send SIGKILL to the driver and its JVM. Python workers end a little later."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def finish(process: "subprocess.Popen[str]", scratch: Path, timeout_s: float = 240) -> None:
    out, _ = process.communicate(timeout=timeout_s)
    assert "DONE" in out, (scratch / "stderr").read_text()[-5000:]


def _committed(root: Path) -> int:
    disk, tree = Disk(), ShardsTree(root)
    return sum(len(manifest.versions(disk, tree, one)) for one in manifest.sources(disk, tree))


def _noted(scratch: Path) -> int:
    """Return the number of batches that Spark has recorded as done."""
    return sum(one.name.isdigit() for one in (scratch / "checkpoint" / "commits").glob("*"))


def _kill_drivers(scratch: Path, kills: int, seed: int) -> int:
    """Kill drivers, most of them right after a manifest. Return the number of replayed batches."""
    chance = random.Random(seed)
    replays = 0
    for _ in range(kills):
        before = _committed(scratch / "s")
        process = start("stream", scratch)
        end = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < end:
            if _committed(scratch / "s") > before:
                break
            time.sleep(0.001)
        if process.poll() is None and chance.random() < 0.3:
            time.sleep(chance.random() * 1.5)  # kill at a random point of a later batch
        if process.poll() is not None:
            break
        kill(process)
        time.sleep(1)  # workers may still be running
        replays += _committed(scratch / "s") > _noted(scratch)
    finish(start("stream", scratch), scratch)
    return replays


def _check_stream(scratch: Path) -> None:
    # There are fewer versions than files if a driver died after recording a file and before
    # recording its batch: the next batch then has two files (test_write_stream.py).
    assert 1 < _committed(scratch / "s") <= write_programs.FILES
    assert came(scratch / "s") == each_once(write_programs.FILES * write_programs.ROWS_A_FILE)
    shards.clean(scratch / "s", old_ms=-3_600_000)
    assert not list((scratch / "s/_ingest/staging").rglob("*.arrow"))


def test_stream_writes_once_when_driver_is_killed_after_manifest(scratch: Path) -> None:
    write_programs.make_files(scratch)
    replays = _kill_drivers(scratch, 2, seed=1)
    _check_stream(scratch)
    assert replays >= 1, "no driver died between its manifest and Spark's record of the batch"


@pytest.mark.deep
@pytest.mark.timeout(0)
def test_stream_writes_once_when_driver_is_killed_repeatedly(scratch: Path) -> None:
    kills = int(os.environ.get("TIMERSTORE_SPARK_KILLS", "9"))
    write_programs.make_files(scratch)
    replays = _kill_drivers(scratch, kills, seed=7)
    _check_stream(scratch)
    assert replays >= 2


# --- executors ---


@pytest.mark.cluster
def test_write_stores_each_row_once_when_executor_is_killed(scratch: Path) -> None:
    process = start(
        "executor", scratch, master="local-cluster[2,1,1024]", spark__executor__memory="600m"
    )
    finish(process, scratch)
    assert came(scratch / "s") == each_once(20_000)
    # Only the partial files of the killed attempt are left.
    left = [one.name for one in scratch.glob("s/_ingest/staging/w/*/*")]
    assert [name.split("-")[0] for name in left] == ["1"]


class Cluster:
    """A master and two workers with separate addresses: Spark does not speculate on one host."""

    def __init__(self, scratch: Path, port: int) -> None:
        self.url = f"spark://127.0.0.1:{port}"
        self._scratch = scratch
        self._processes: list[subprocess.Popen[bytes]] = []
        master = "org.apache.spark.deploy.master.Master"
        self._start(master, "127.0.0.1", "--port", str(port), "--webui-port", "0")
        for number in (2, 3):
            self._start(
                "org.apache.spark.deploy.worker.Worker", f"127.0.0.{number}", "-c", "1", "-m", "1g",
                "-d", str(scratch / f"worker-{number}"), "--webui-port", "0", self.url,
            )  # fmt: skip

    def _start(self, cls: str, host: str, *arguments: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        environment = os.environ | spark_session.environment()
        environment |= {"SPARK_LOCAL_IP": host, "SPARK_HOME": str(home)}
        environment |= {"SPARK_DAEMON_MEMORY": "256m"}
        log = (self._scratch / f"{host}.log").open("wb")
        self._processes.append(
            subprocess.Popen(
                [home / "bin/spark-class", cls, "--host", host, *arguments],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        )

    def close(self) -> None:
        for one in self._processes:
            os.killpg(one.pid, signal.SIGTERM)
        for one in self._processes:
            try:
                one.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(one.pid, signal.SIGKILL)
                one.wait()


@pytest.fixture
def cluster(scratch: Path) -> Iterator[Cluster]:
    one = Cluster(scratch, 17_077 + os.getpid() % 1000)
    yield one
    one.close()


@pytest.mark.more
@pytest.mark.cluster
def test_write_stores_each_row_once_when_task_is_speculated(
    scratch: Path, cluster: Cluster
) -> None:
    process = start(
        "speculation",
        scratch,
        master=cluster.url,
        spark__executor__memory="600m",
        spark__speculation="true",
        spark__speculation__interval="100ms",
        spark__speculation__quantile="0.5",
        spark__speculation__multiplier="1.1",
        spark__speculation__minTaskRuntime="100ms",
    )
    finish(process, scratch)
    assert came(scratch / "s") == each_once(20_000)
    left = [one.name for one in scratch.glob("s/_ingest/staging/w/*/*")]
    assert [name.split("-")[0] for name in left] == ["0"], "there was only one attempt"
