"""Writes through a bucket, with executors, drivers and owners that die and requests that fail.

Executors and drivers see only the bucket. The shards are on the disk of the owner.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import timerstore
from tests.spark import write_programs
from tests.spark.test_write import each_once
from tests.support.bench import small
from tests.support.bucket import s3_server
from tests.support.bucket.fault_proxy import Fault, FaultProxy
from tests.support.bucket.fixtures import prefix, proxy, s3_endpoint
from tests.support.bucket.uploads import bucket_of, upload
from tests.support.shards import bodies_of
from tests.support.spark import session as spark_session
from timerstore import ConfigError
from timerstore.shards import clean
from timerstore.testing import Stepper

__all__ = ["prefix", "proxy", "s3_endpoint"]

_OWNER = """
    import sys, time
    import timerstore

    with timerstore.open_shards(sys.argv[1], ingest_every=0.05, ingest_from=sys.argv[2]):
        time.sleep(600)
"""


@pytest.fixture(autouse=True)
def needs_spark() -> None:
    wrong = spark_session.missing()
    if wrong is not None:
        pytest.skip(f"Spark cannot run: {wrong}")


@pytest.fixture
def root(tmp_path: Path, prefix: str) -> Path:
    """Three shards that read the bucket."""
    root = tmp_path / "owner" / "s"
    root.parent.mkdir()
    timerstore.open_shards(root, 3, small(), threads=False, ingest_from=prefix).close()
    return root


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """The folder of the drivers, which has no shards."""
    path = tmp_path / "driver"
    path.mkdir()
    return path


def start(name: str, scratch: Path, url: str, endpoint: str, **settings: str) -> Any:
    """Start a driver that writes to the bucket through an endpoint."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.write_programs", name, scratch, json.dumps(settings)],
        cwd=spark_session.ROOT,
        env=os.environ
        | spark_session.environment()
        | s3_server.environment(endpoint)
        | {write_programs.BUCKET: url},
        stdout=subprocess.PIPE,
        stderr=(scratch / "stderr").open("a"),
        text=True,
        start_new_session=True,
    )


def kill(process: Any) -> None:
    """Send SIGKILL to a process and all of its session."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def finish(process: Any, scratch: Path) -> None:
    out, _ = process.communicate(timeout=240)
    assert "DONE" in out, (scratch / "stderr").read_text()[-5000:]


def committed(url: str) -> int:
    return len(bucket_of(url).list("_ingest/manifests"))


def came(root: Path, url: str) -> Counter[bytes]:
    """Ingest committed rows. Return how often each body is in its topic."""
    with timerstore.open_shards(root, threads=False, ingest_from=url) as store:
        store.ingest()
        for one in store.stores:
            Stepper(one).settle()
            assert one.verify().clean
        bodies = (body for one in store.stores for body in bodies_of(one, "t"))
        return Counter(body.rstrip(b".") for body in bodies)


class Owner:
    """An owner process that ingests, and that can be killed."""

    def __init__(self, root: Path, url: str) -> None:
        self._command = [sys.executable, "-c", dedent(_OWNER), str(root), url]
        self.kills = 0
        self._process: Any = None
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, cwd=spark_session.ROOT, start_new_session=True
        )

    def kill(self) -> None:
        """Kill the process, and start another one."""
        self.stop()
        self.kills += 1
        self.start()

    def stop(self) -> None:
        """Kill the process."""
        if self._process is not None:
            assert self._process.poll() is None, "the owner ended by itself"
            kill(self._process)
        self._process = None


@pytest.fixture
def owner(root: Path, prefix: str) -> Iterator[Owner]:
    one = Owner(root, prefix)
    yield one
    one.stop()


@pytest.mark.cluster
def test_executor_is_killed_and_requests_fail(
    root: Path, scratch: Path, prefix: str, proxy: FaultProxy
) -> None:
    proxy.fail(
        Fault("error 503", "PUT", "staging/", 2),
        Fault("cut upload", "PUT", "staging/", 2),
        Fault("lost answer", "PUT", "staging/", 2),
        Fault("lost answer", "PUT", "manifests/", 1),
        Fault("error 500", "GET", "cluster.json", 2),
    )
    process = start(
        "executor", scratch, prefix, proxy.endpoint,
        master="local-cluster[2,1,1024]", spark__executor__memory="600m",
    )  # fmt: skip
    finish(process, scratch)
    assert len(proxy.happened) == 9
    assert not (scratch / "s").exists()
    assert came(root, prefix) == each_once(20_000)
    # Only what the killed attempt had sent is left, if it had sent anything.
    clean(prefix, old_ms=-3_600_000)
    assert bucket_of(prefix).list("_ingest/staging") == []


def test_two_drivers_write_one_id(
    root: Path, scratch: Path, prefix: str, proxy: FaultProxy
) -> None:
    drivers = [start("batch", scratch, prefix, proxy.endpoint, master="local[1]") for _ in range(2)]
    for one in drivers:
        finish(one, scratch)
    assert committed(prefix) == 1
    assert came(root, prefix) == each_once(20_000)
    clean(prefix, old_ms=-3_600_000)  # the objects of the second driver
    assert bucket_of(prefix).list("_ingest/staging") == []


@pytest.mark.more
@pytest.mark.timeout(600)
def test_stream_drivers_and_owners_are_killed(
    root: Path, scratch: Path, prefix: str, proxy: FaultProxy, owner: Owner
) -> None:
    """Kill a driver right after a manifest, twice, and the owner every two seconds or so."""
    write_programs.make_files(scratch)
    chance = random.Random(3)
    for _ in range(2):
        before = committed(prefix)
        proxy.fail(Fault("error 503", "PUT", "staging/"), Fault("lost answer", "PUT", "manifests/"))
        driver = start("stream", scratch, prefix, proxy.endpoint)
        end = time.monotonic() + 120
        while driver.poll() is None and committed(prefix) == before and time.monotonic() < end:
            time.sleep(0.01)
        assert driver.poll() is None
        time.sleep(chance.random())
        kill(driver)
        owner.kill()
        time.sleep(1 + chance.random())  # workers may still be running
        owner.kill()
    driver = start("stream", scratch, prefix, proxy.endpoint)
    while driver.poll() is None:
        time.sleep(1 + 2 * chance.random())
        owner.kill()
    finish(driver, scratch)
    owner.stop()
    assert 1 < committed(prefix) <= write_programs.FILES
    count = write_programs.FILES * write_programs.ROWS_A_FILE
    assert came(root, prefix) == each_once(count)
    assert owner.kills > 4


def test_options_reach_executors_without_environment(
    spark: Any, root: Path, prefix: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in s3_server.environment(s3_endpoint):
        monkeypatch.delenv(name)
    rows = spark.range(0, 100, 1, 2).selectExpr(
        "'t' as topic", "cast(concat('body-', id) as binary) as body",
        "timestamp_millis(946684800000 + id) as deliver_at", "concat('key-', id) as key",
    )  # fmt: skip
    writer = rows.write.format("timerstore").mode("append")
    for name, value in s3_server.options(s3_endpoint).items():
        writer = writer.option(f"storage.{name}", value)
    writer.save(prefix)
    for name, value in s3_server.environment(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    assert came(root, prefix) == each_once(100)


def test_inline_ingest_and_unknown_places_are_rejected(
    spark: Any, root: Path, prefix: str, s3_endpoint: str
) -> None:
    rows = spark.range(1).selectExpr("'t' as topic", "cast('b' as binary) as body")
    writer = rows.write.format("timerstore").mode("append")
    for name, value in s3_server.options(s3_endpoint).items():
        writer = writer.option(f"storage.{name}", value)
    with pytest.raises(Exception, match="only the owner of the shards ingests"):
        writer.option("ingest", "inline").save(prefix)
    with pytest.raises(Exception, match="not a staging area"):
        writer.option("ingest", "auto").save(f"{prefix}/none")
    with pytest.raises(ConfigError):
        timerstore.open_shards(root.parent / "t", 3, small(), threads=False, ingest_from=prefix)


# --- backups --------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_backup_in_bucket_is_read_by_executors(
    spark: Any, root: Path, prefix: str, s3_endpoint: str
) -> None:
    with timerstore.open_shards(root, threads=False) as store:
        store.put_many("t", [b"body-%d" % k for k in range(300)], delay=60)
        for k in range(100):
            store.put("t", b"key-%d" % k, keys=f"k{k}", delay=60)
        for shard, one in enumerate(store.stores):
            one.backup(root.parent / f"backup-{shard}")
            upload(root.parent / f"backup-{shard}", f"{prefix}/backup/shard-0000{shard}")
    reader = spark.read.format("timerstore").option("table", "timers").option("columns", "*")
    for name, value in s3_server.options(s3_endpoint).items():
        reader = reader.option(f"storage.{name}", value)
    found = reader.load(f"{prefix}/backup")
    assert found.count() == 400
    assert found.select("shard", "log_offset").distinct().count() == 400
    assert found.select("shard").distinct().count() == 3
    with pytest.raises(Exception, match="no backup in the bucket"):
        reader.load(f"{prefix}/none").count()
