"""Rows that are staged, committed and ingested through a bucket, while requests and owners fail."""

import os
import pickle
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import timerstore
from tests.support.bench import NOW, small
from tests.support.bucket import s3_server
from tests.support.bucket.fault_proxy import Fault, FaultProxy
from tests.support.bucket.fixtures import prefix, proxy, s3_endpoint
from tests.support.bucket.uploads import bucket_of
from tests.support.inside import ingest_in_background, is_ingested
from tests.support.points import noted
from tests.support.programs import run_program
from tests.support.shards import ShardBench
from tests.support.staging import batch_of
from timerstore import BucketError, ConfigError, CorruptError, FullError, MessageError
from timerstore.shards import (
    Committed,
    Staged,
    WriteOptions,
    abort,
    clean,
    commit,
    ingest,
    prune,
    stage,
)
from timerstore.shards.bucket_staging import BucketStaging
from timerstore.shards.committing import quarantined
from timerstore.testing import ManualClock

__all__ = ["prefix", "proxy", "s3_endpoint"]

CLOCK = ManualClock(NOW)


def opened(root: Path, url: str, **options: Any) -> ShardBench:
    """Return three shards that ingest from a bucket."""
    bench = ShardBench(root, 3)
    bench.close()
    bench.open(ingest_from=url, **options)
    return bench


@pytest.fixture
def shards(tmp_path: Path, prefix: str) -> Iterator[ShardBench]:
    one = opened(tmp_path / "shards", prefix)
    yield one
    one.close()


def staged(url: str, first: int = 0, version: int = 0, source: str = "s", **given: Any) -> Staged:
    storage = given.pop("storage_options", None)
    return stage(
        url, source, version, "a", [batch_of(20, first)], WriteOptions(**given), clock=CLOCK,
        storage_options=storage,
    )  # fmt: skip


def write(url: str, first: int = 0, version: int = 0, source: str = "s") -> Committed:
    return commit(url, source, version, [staged(url, first, version, source)], clock=CLOCK)


def names(url: str, part: str) -> list[str]:
    return [one.path for one in bucket_of(url).list(f"_ingest/{part}")]


def expected(count: int) -> Counter[bytes]:
    return Counter({b"body-%d" % k: 1 for k in range(count)})


# --- the protocol ---------------------------------------------------------------------------------


def test_rows_travel_through_the_bucket_once(shards: ShardBench, prefix: str) -> None:
    first = write(prefix)
    assert not first.is_replay
    assert first.manifest.row_count == 20
    assert len(names(prefix, "staging")) == len(first.manifest.files)
    done = shards.store.ingest()
    assert sum(one.row_count for one in done) == 20
    assert names(prefix, "staging") == []
    assert len(names(prefix, "manifests")) == 1
    assert shards.store.ingest() == []
    write(prefix, 20, 1)
    write(prefix, 40, 0, "other")
    shards.store.ingest()
    shards.turn(1_000_000)
    assert shards.counted() == expected(60)
    assert not list((shards.root / "_ingest" / "fetched").iterdir())


def test_files_and_manifest_are_those_of_a_directory(
    shards: ShardBench, prefix: str, tmp_path: Path
) -> None:
    """The bytes of both places are equal, but for random names and times."""
    root = tmp_path / "other"
    timerstore.open_shards(root, 3, small(), clock=CLOCK, threads=False).close()
    local, remote = (commit(one, "s", 0, [staged(str(one))], clock=CLOCK) for one in (root, prefix))
    assert local.manifest.digest == remote.manifest.digest
    assert [one._replace(path="") for one in local.manifest.files] == [
        one._replace(path="") for one in remote.manifest.files
    ]
    for mine, other in zip(local.manifest.files, remote.manifest.files, strict=True):
        assert (root / mine.path).read_bytes() == bucket_of(prefix).get(other.path)


def test_repeated_commit_adds_nothing(shards: ShardBench, prefix: str) -> None:
    first = write(prefix)
    again = commit(prefix, "s", 0, [staged(prefix)], same_rows=True, clock=CLOCK)
    assert again.is_replay
    assert again.manifest == first.manifest
    with pytest.raises(MessageError, match="committed with other rows"):
        commit(prefix, "s", 0, [staged(prefix, 20)], same_rows=True, clock=CLOCK)
    shards.store.ingest()
    write(prefix)  # a replay after the files are gone
    assert shards.store.ingest() == []
    assert len(clean(prefix, old_ms=-60_000)) == 3  # the attempts that no manifest names
    assert names(prefix, "staging") == []
    shards.turn(1_000_000)
    assert shards.counted() == expected(20)


def test_drivers_at_once_commit_one_version(shards: ShardBench, prefix: str) -> None:
    parts = [staged(prefix) for _ in range(6)]
    barrier = threading.Barrier(len(parts))
    results: list[Committed] = []

    def run(part: Staged) -> None:
        barrier.wait(60)
        results.append(commit(prefix, "s", 0, [part], same_rows=True, clock=CLOCK))

    threads = [threading.Thread(target=run, args=(part,)) for part in parts]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert Counter(one.is_replay for one in results) == {True: 5, False: 1}
    assert len({one.manifest for one in results}) == 1
    shards.store.ingest()
    shards.turn(1_000_000)
    assert shards.counted() == expected(20)


def test_quarantined_rows_stay_readable(shards: ShardBench, prefix: str) -> None:
    broken = batch_of(5, key=["two words"] * 5)
    part = stage(prefix, "s", 0, "a", [broken], WriteOptions(on_invalid="quarantine"), clock=CLOCK)
    commit(prefix, "s", 0, [part], clock=CLOCK)
    assert shards.store.ingest()
    (aside,) = quarantined(prefix, "s", 0)
    assert names(prefix, "staging") == [aside.path]
    assert prune(prefix, is_ingested(shards.store), old_ms=-60_000) == 0
    assert names(prefix, "staging") == [aside.path]


def test_staging_that_fails_leaves_no_object(shards: ShardBench, prefix: str) -> None:
    with pytest.raises(MessageError, match="rows are invalid"):
        stage(prefix, "s", 0, "a", [batch_of(5, key=["two words"] * 5)], clock=CLOCK)
    assert names(prefix, "staging") == []


def test_commit_without_its_files_is_rejected(shards: ShardBench, prefix: str) -> None:
    part = staged(prefix)
    bucket_of(prefix).delete([part.files[1].path])
    with pytest.raises(CorruptError, match=r"staged file that is to be committed; at s3://"):
        commit(prefix, "s", 0, [part], clock=CLOCK)
    assert names(prefix, "manifests") == []


def test_clocks_of_writers_do_not_matter(shards: ShardBench, prefix: str) -> None:
    """Writers whose clocks are ten days ahead, and ten days behind."""
    for version, now_ms in enumerate((NOW + 10 * 86_400_000, NOW - 10 * 86_400_000)):
        part = stage(
            prefix, "s", version, "a", [batch_of(20, 20 * version)], clock=ManualClock(now_ms)
        )
        commit(prefix, "s", version, [part], clock=ManualClock(now_ms))
    assert clean(prefix) == []
    shards.store.ingest()
    assert prune(prefix, is_ingested(shards.store)) == 0
    shards.turn(1_000_000)
    assert shards.counted() == expected(40)


# --- requests that fail ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["error 500", "error 503", "cut upload", "lost answer"])
@pytest.mark.parametrize("part", ["staging/", "manifests/"])
def test_writer_repeats_requests_that_fail(
    shards: ShardBench, prefix: str, proxy: FaultProxy, kind: str, part: str
) -> None:
    storage = s3_server.options(proxy.endpoint)
    proxy.fail(Fault(kind, "PUT", part, 2))
    whole = staged(prefix, storage_options=storage)
    done = commit(prefix, "s", 0, [whole], clock=CLOCK, storage_options=storage)
    assert not done.is_replay
    assert len(proxy.happened) == 2
    shards.store.ingest()
    shards.turn(1_000_000)
    assert shards.counted() == expected(20)


def test_writer_needs_no_permission_to_delete(
    shards: ShardBench, prefix: str, proxy: FaultProxy
) -> None:
    storage = s3_server.options(proxy.endpoint)
    proxy.fail(*(Fault("error 403", method, count=99) for method in ("POST", "DELETE")))
    first = write(prefix)
    again = commit(
        prefix, "s", 0, [staged(prefix, storage_options=storage)], same_rows=True, clock=CLOCK,
        storage_options=storage,
    )  # fmt: skip
    assert again.is_replay
    assert again.manifest == first.manifest
    abort(prefix, [staged(prefix, storage_options=storage)], storage_options=storage)
    assert proxy.happened == []


def test_error_of_staging_is_raised_without_permission_to_delete(
    shards: ShardBench, prefix: str, proxy: FaultProxy
) -> None:
    proxy.fail(Fault("error 403", "POST", count=99), Fault("error 403", "PUT", count=1))
    with pytest.raises(BucketError, match="put: "):
        staged(prefix, storage_options=s3_server.options(proxy.endpoint))
    assert len(proxy.happened) == 1


def test_full_disk_of_the_writer_is_an_error(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffered data are written last, when the object is sent."""
    full = Path("/dev/full").open("r+b")  # noqa: SIM115 - closed by the attempt
    monkeypatch.setattr("tempfile.TemporaryFile", lambda: full)
    attempt = BucketStaging(bucket_of(prefix)).attempt("x")
    attempt.create("0").write(b"rows", 0)
    with pytest.raises(FullError, match="write: "):
        attempt.finish(synced=True)
    attempt.abandon()
    assert full.closed


def test_commit_request_that_arrives_after_the_abort_loses_nothing(
    shards: ShardBench, prefix: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver gives up and aborts; then the service carries out its first request."""
    storage = s3_server.options(proxy.endpoint)
    part = staged(prefix)
    monkeypatch.setattr("timerstore._engine.buckets.bucket._CREATE_TRIES", 1)
    proxy.fail(Fault("no answer", "PUT", "manifests/", 100))
    with pytest.raises(BucketError):
        commit(prefix, "s", 0, [part], clock=CLOCK, storage_options=storage)
    abort(prefix, [part])
    assert commit(prefix, "s", 0, [part], clock=CLOCK).is_replay is False  # the late request
    assert commit(prefix, "s", 0, [staged(prefix)], same_rows=True, clock=CLOCK).is_replay
    shards.store.ingest()
    shards.turn(1_000_000)
    assert shards.counted() == expected(20)


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "HEAD"])
@pytest.mark.parametrize(
    "kind",
    [
        "error 503",
        *(
            pytest.param(one, marks=pytest.mark.more)
            for one in ("no answer", "lost answer", "cut answer")
        ),
    ],
)
def test_owner_survives_requests_that_fail(
    tmp_path: Path, prefix: str, proxy: FaultProxy, method: str, kind: str
) -> None:
    storage = s3_server.options(proxy.endpoint)
    shards = opened(tmp_path / "shards", prefix, storage_options=storage)
    write(prefix)
    write(prefix, 20, 1)
    proxy.fail(Fault(kind, method, count=3))
    for _ in range(10):
        with suppress(BucketError):
            ingest_in_background(shards.store)
    assert proxy.happened
    proxy.heal()
    shards.store.ingest()
    shards.turn(1_000_000)
    assert shards.counted() == expected(40)
    prune(prefix, is_ingested(shards.store))
    assert names(prefix, "staging") == []
    shards.close()


def test_damaged_object_stops_its_source_only(shards: ShardBench, prefix: str) -> None:
    bad = write(prefix)
    write(prefix, 20, 1)
    write(prefix, 40, 0, "other")
    bucket, one = bucket_of(prefix), bad.manifest.files[0]
    data = bucket.get(one.path)
    assert data is not None
    bucket.put(one.path, data[:99] + bytes([data[99] ^ 1]) + data[100:])
    with pytest.raises(CorruptError, match="CRC-32"):
        shards.store.ingest()
    assert [0 in store.ingested("other") for store in shards.store.stores] == [True] * 3
    assert 1 not in shards.store.stores[one.shard].ingested("s")
    bucket.put(one.path, data)
    shards.store.ingest()
    shards.turn(1_000_000)
    assert shards.counted() == expected(60)


def lose_rows(root: Path) -> None:
    """Commit rows in the directory, and remove their files."""
    lost = commit(root, "local", 0, [staged(str(root), source="local")], clock=CLOCK)
    for one in lost.manifest.files:
        (root / one.path).unlink()


def run_of_stopped_shards(bench: ShardBench, url: str) -> None:
    bench.close()
    try:
        ingest(bench.root, clock=CLOCK, ingest_from=url)
    finally:
        bench.open()


@pytest.mark.parametrize(
    "run",
    [
        lambda bench, _url: bench.store.ingest(),
        lambda bench, _url: ingest_in_background(bench.store),
        run_of_stopped_shards,
    ],
    ids=["call", "background", "stopped"],
)
def test_error_of_the_directory_does_not_stop_the_bucket(
    shards: ShardBench, prefix: str, run: Callable[[ShardBench, str], object]
) -> None:
    lose_rows(shards.root)
    write(prefix)
    with pytest.raises(CorruptError, match="'local' version 0 is lost"):
        run(shards, prefix)
    assert is_ingested(shards.store)("s", 0)


def test_missing_object_is_reported_as_lost(shards: ShardBench, prefix: str) -> None:
    one = write(prefix).manifest.files[0]
    bucket_of(prefix).delete([one.path])
    with pytest.raises(CorruptError, match=rf"is lost.*{one.path}"):
        shards.store.ingest()


# --- owners that die ------------------------------------------------------------------------------

POINTS = ("shard_ingest_begun", "ingest_appended", "shard_ingest_durable", "shard_files_dropped")


@pytest.mark.parametrize("point", POINTS)
def test_killed_owner_loses_and_doubles_nothing(tmp_path: Path, prefix: str, point: str) -> None:
    root = tmp_path / "shards"
    opened(root, prefix).close()
    write(prefix)
    write(prefix, 20, 1)
    done = run_program(_OWNER, root, prefix, point, str(NOW + 1))
    assert done.returncode == -signal.SIGKILL, done.stderr
    bench = opened(root, prefix)
    bench.store.ingest()
    prune(prefix, is_ingested(bench.store))
    assert names(prefix, "staging") == []
    bench.turn(1_000_000)
    assert bench.counted() == expected(40)
    bench.close()


_OWNER = """
    import os, signal, sys
    from timerstore._engine.base import failpoints
    from timerstore.shards import ingest
    from timerstore.testing import ManualClock

    root, url, point, now = sys.argv[1:]

    def hook(name):
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.hook = hook
    ingest(root, clock=ManualClock(int(now)), ingest_from=url)
"""


def test_ingest_of_stopped_shards_reads_the_bucket(
    tmp_path: Path, prefix: str, proxy: FaultProxy
) -> None:
    root = tmp_path / "shards"
    timerstore.open_shards(root, 3, small(), clock=CLOCK, threads=False).close()
    assert ingest(root, clock=CLOCK, ingest_from=prefix).row_count == 0  # publishes
    write(prefix)
    commit(root, "local", 0, [staged(str(root), 20, 0, "local")], clock=CLOCK)
    report = ingest(root, clock=CLOCK, ingest_from=prefix)
    assert report.row_count == 40
    assert report.locked == ()
    assert ingest(root, clock=CLOCK, ingest_from=prefix).row_count == 0


# --- the janitor ----------------------------------------------------------------------------------


def test_clean_removes_only_old_attempts_without_manifest(shards: ShardBench, prefix: str) -> None:
    named = write(prefix)
    left = staged(prefix, 20, 1)
    abort(prefix, [left])
    every = len(named.manifest.files) + len(left.files)
    assert len(names(prefix, "staging")) == every  # a commit may still be under way
    assert clean(prefix) == []
    assert len(clean(prefix, old_ms=-60_000)) == 1
    assert names(prefix, "staging") == [one.path for one in sorted(named.manifest.files)]
    shards.store.ingest()
    shards.turn(1_000_000)
    assert shards.counted() == expected(20)


def test_prune_removes_old_manifests_and_late_replay_adds_nothing(
    shards: ShardBench, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timerstore.shards.janitor.KEPT_COUNT", 2)
    for version in range(5):
        write(prefix, 20 * version, version)
    done = is_ingested(shards.store)
    assert prune(prefix, done, old_ms=-60_000) == 0  # no shard has them yet
    shards.store.ingest()
    assert prune(prefix, done) == 0  # too young
    assert prune(prefix, done, old_ms=-60_000) == 3
    assert [one[-8:] for one in names(prefix, "manifests")] == ["003.json", "004.json"]
    assert not write(prefix, 20, 1).is_replay  # a driver that slept for days
    assert shards.store.ingest() == []
    prune(prefix, done)
    assert names(prefix, "staging") == []
    shards.turn(1_000_000)
    assert shards.counted() == expected(100)


# --- owners and writers find each other -----------------------------------------------------------


def test_writer_needs_a_published_description(prefix: str) -> None:
    with pytest.raises(ConfigError, match=r"not a staging area \(no cluster.json\)"):
        staged(prefix)


def test_second_directory_is_rejected(shards: ShardBench, prefix: str, tmp_path: Path) -> None:
    """It would ingest every row a second time."""
    with pytest.raises(ConfigError, match="belongs to another directory of shards"):
        opened(tmp_path / "second", prefix)
    write(prefix)
    with pytest.raises(ConfigError, match="belongs to another directory of shards"):
        ingest(tmp_path / "second", clock=CLOCK, ingest_from=prefix)
    shards.reopen()
    shards.close()
    shards.open(ingest_from=prefix)
    assert shards.store.ingest()


def test_directory_that_is_not_bound_removes_nothing(
    shards: ShardBench, prefix: str, tmp_path: Path, proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The bucket does not answer when the second directory is opened, so it is bound later."""
    monkeypatch.setattr("timerstore.shards.bucket_binding._RETRY_S", 0.2)
    proxy.fail(Fault("error 503", "GET", count=10_000))
    root = tmp_path / "second"
    second = opened(root, prefix, storage_options=s3_server.options(proxy.endpoint))
    commit(root, "s", 0, [staged(str(root), 100)], clock=CLOCK)
    with pytest.raises(BucketError):
        second.store.ingest()
    assert is_ingested(second.store)("s", 0)
    proxy.heal()
    first = write(prefix)
    with pytest.raises(ConfigError, match="belongs to another directory of shards"):
        ingest_in_background(second.store)
    second.close()
    assert len(names(prefix, "staging")) == len(first.manifest.files)
    assert shards.store.ingest()


def test_limits_of_the_owner_are_those_of_writers(tmp_path: Path, prefix: str) -> None:
    timerstore.open_shards(
        tmp_path / "s", 2, small(message_bytes_max=10), clock=CLOCK, threads=False,
        ingest_from=prefix,
    ).close()  # fmt: skip
    with pytest.raises(MessageError, match="body"):
        stage(prefix, "s", 0, "a", [batch_of(1, body=[b"12345678901"])], clock=CLOCK)


def test_service_without_conditional_puts_is_refused_at_opening(
    tmp_path: Path, prefix: str, proxy: FaultProxy
) -> None:
    proxy.fail(Fault("ignored condition", "PUT", count=9))
    with pytest.raises(ConfigError, match="conditional puts"):
        opened(tmp_path / "s", prefix, storage_options=s3_server.options(proxy.endpoint))
    ShardBench(tmp_path / "s", 3).close()  # nothing keeps them locked


def test_missing_permission_is_an_error_at_opening(
    tmp_path: Path, prefix: str, proxy: FaultProxy
) -> None:
    proxy.fail(Fault("error 403", "GET", count=99))
    with pytest.raises(BucketError):
        opened(tmp_path / "s", prefix, storage_options=s3_server.options(proxy.endpoint))


def test_unreachable_bucket_delays_only_its_own_rows(
    tmp_path: Path, prefix: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timerstore.shards.bucket_binding._RETRY_S", 0.2)
    root = tmp_path / "s"
    proxy.fail(Fault("error 503", "GET", count=10_000))
    shards = opened(root, prefix, storage_options=s3_server.options(proxy.endpoint))
    commit(root, "local", 0, [staged(str(root), 0, 0, "local")], clock=CLOCK)
    with pytest.raises(BucketError):
        shards.store.ingest()
    shards.turn(1_000_000)
    assert shards.counted() == expected(20)
    proxy.heal()
    shards.store.ingest()  # binds
    write(prefix, 20)
    shards.store.ingest()
    shards.turn(1_000_000)
    assert shards.counted() == expected(40)
    shards.close()


def test_threads_ingest_from_the_bucket(tmp_path: Path, prefix: str) -> None:
    with timerstore.open_shards(
        tmp_path / "s", 2, small(), ingest_every=0.05, ingest_from=prefix
    ) as store:
        with noted() as points:
            write(prefix)
            store.wake_ingest()
            pause = threading.Event()
            # A thread reaches the point after its shard shows the version.
            while "shard_ingest_durable" not in points or not all(
                0 in one.ingested("s") for one in store.stores
            ):
                pause.wait(0.02)
        assert store.stats()["ingest_error"] == ""


# --- secrets --------------------------------------------------------------------------------------


def test_credentials_are_in_no_log_error_or_pickle(
    tmp_path: Path, prefix: str, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "hunter2-hunter2"
    storage = s3_server.options(proxy.endpoint) | {"secret_access_key": secret}
    caplog.set_level(0)
    shards = opened(tmp_path / "s", prefix, storage_options=storage)
    part = staged(prefix, storage_options=storage)
    done = commit(prefix, "s", 0, [part], clock=CLOCK, storage_options=storage)
    proxy.fail(Fault("error 403", "GET", count=99))
    with pytest.raises(BucketError) as caught:
        shards.store.ingest()
    proxy.heal()
    shards.store.ingest()
    text = f"{caught.value} {caught.value!r} {shards.store!r} {done!r} {caplog.text}"
    assert secret not in text
    assert secret.encode() not in pickle.dumps((part, done))
    assert all(secret.encode() not in (bucket_of(prefix).get(one) or b"") for one in
               ("cluster.json", *names(prefix, "manifests")))  # fmt: skip
    shards.close()
    for folder, _, files in os.walk(tmp_path):
        for name in files:
            assert secret.encode() not in (Path(folder) / name).read_bytes()


def test_command_ingests_from_the_bucket(
    tmp_path: Path, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("click")
    from timerstore.cli import main

    root = tmp_path / "s"
    timerstore.open_shards(root, 2, small(), clock=CLOCK, threads=False).close()
    assert main(["ingest", str(root), "--from", prefix]) == 0  # publishes
    write(prefix)
    assert main(["ingest", str(root), "--from", prefix, "--json"]) == 0
    assert '"rows": 20' in capsys.readouterr().out
    assert main(["ingest", str(root), "--from", "/mnt/x"]) == 2
