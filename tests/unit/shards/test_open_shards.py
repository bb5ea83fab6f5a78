"""Opening, creating and closing a directory of shards."""

import errno
import json
import warnings
from pathlib import Path

import pytest

import timerstore
from tests.crash.failing_calls import FailingCalls
from tests.support.bench import NOW, small
from timerstore import (
    ClosedError,
    ConfigError,
    CorruptError,
    LockedError,
    TimerStore,
)
from timerstore.errors import FailedError, FormatVersionError
from timerstore.shards import cluster
from timerstore.shards.shard_ingest import IngestService
from timerstore.testing import ManualClock


def test_close_during_call_to_every_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = timerstore.open_shards(tmp_path / "s", 3, small())
    first, topics = store.stores[0], store.stores[0].topics

    def close_right_behind() -> dict[str, int]:
        found = topics()
        monkeypatch.undo()
        store.close()
        return found

    monkeypatch.setattr(first, "topics", close_right_behind)
    with pytest.raises(ClosedError):
        store.stats()


def test_shard_count_is_read_from_cluster_json(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with pytest.raises(ConfigError, match="not a directory of shards yet"):
        timerstore.open_shards(root)
    timerstore.open_shards(root, 2, small(), threads=False).close()
    text = (root / "cluster.json").read_bytes()
    assert json.loads(text)["shards"] == 2
    with timerstore.open_shards(root, threads=False) as store:
        assert store.shard_count == 2
    for wrong in (1, 3):
        with pytest.raises(ConfigError, match=f"has 2 shards, got {wrong}"):
            timerstore.open_shards(root, wrong)
    assert (root / "cluster.json").read_bytes() == text
    assert sorted(one.name for one in root.iterdir()) == [
        "cluster.json", "shard-00000", "shard-00001",
    ]  # fmt: skip


@pytest.mark.parametrize("n", [0, -1, 1025, 2.0, "2", True])
def test_open_rejects_invalid_shard_count(tmp_path: Path, n: object) -> None:
    with pytest.raises(ConfigError, match="n: wanted 1 to 1024 shards"):
        timerstore.open_shards(tmp_path / "s", n)  # type: ignore[arg-type]
    assert not (tmp_path / "s").exists()


def test_open_closes_other_shards_when_one_is_locked(tmp_path: Path) -> None:
    root = tmp_path / "s"
    timerstore.open_shards(root, 3, small(), threads=False).close()
    with timerstore.open(root / "shard-00001", small(), threads=False):
        with pytest.raises(LockedError, match=r"shard 1: .*shard-00001"):
            timerstore.open_shards(root, threads=False)
        for free in (0, 2):
            timerstore.open(root / f"shard-{free:05d}", small(), threads=False).close()
    timerstore.open_shards(root, threads=False).close()


def test_close_closes_other_shards_when_one_has_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    store = timerstore.open_shards(root, 3, small(), threads=False)
    close = TimerStore.close

    def no_memory(self: TimerStore) -> None:
        if self is store.stores[0]:
            raise MemoryError
        close(self)

    with monkeypatch.context() as patched:
        patched.setattr(TimerStore, "close", no_memory)
        with pytest.raises(MemoryError):
            store.close()
    for free in (1, 2):
        timerstore.open(root / f"shard-{free:05d}", small(), threads=False).close()
    store.close()
    timerstore.open_shards(root, threads=False).close()


def test_close_that_fails_leaves_the_shards_closed(tmp_path: Path) -> None:
    """So no warning follows when the object is dropped."""
    root = tmp_path / "s"
    calls = FailingCalls(root)
    with calls.installed():
        store = timerstore.open_shards(root, 3, small(), threads=False)
        calls.fail(1, errno.EIO, once=False)
        with pytest.raises(FailedError, match="shard 0: "):
            store.close()
        calls.heal()
    timerstore.open_shards(root, threads=False).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.__del__()
        store.close()
    with pytest.raises(ClosedError):
        store.topics()


def test_open_closes_all_shards_when_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    timerstore.open_shards(root, 3, small(), threads=False).close()
    close = TimerStore.close
    closed = []

    def fails(self: TimerStore) -> None:
        close(self)
        closed.append(self.path.name)
        raise FailedError("by a test")

    last = timerstore.open(root / "shard-00002", small(), threads=False)
    with monkeypatch.context() as patched:
        patched.setattr(TimerStore, "close", fails)
        with pytest.raises(LockedError, match="shard 2: ") as caught:
            timerstore.open_shards(root, threads=False)
    last.close()
    assert closed == ["shard-00000", "shard-00001"]
    assert [note.count("by a test") for note in caught.value.__notes__] == [1, 1]


def test_open_closes_all_shards_when_ingest_thread_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"

    def no_thread(_self: IngestService) -> None:
        raise FailedError("no thread")

    with monkeypatch.context() as patched:
        patched.setattr(IngestService, "start", no_thread)
        with pytest.raises(FailedError, match="no thread"):
            timerstore.open_shards(root, 2, small())
    timerstore.open_shards(root, threads=False).close()


def test_open_does_not_recreate_lost_shard(tmp_path: Path) -> None:
    root = tmp_path / "s"
    timerstore.open_shards(root, 3, small(), threads=False).close()
    (root / "shard-00002").rename(tmp_path / "elsewhere")
    with pytest.raises(CorruptError, match="shard 2 of 3 is lost"):
        timerstore.open_shards(root, threads=False)
    assert not (root / "shard-00002").exists()


def test_open_rejects_used_shards_without_cluster_json(tmp_path: Path) -> None:
    root = tmp_path / "s"
    timerstore.open_shards(root, 3, small(), threads=False).close()
    (root / "cluster.json").unlink()
    with pytest.raises(CorruptError, match=r"no cluster\.json"):
        timerstore.open_shards(root, 2, threads=False)
    assert not (root / "cluster.json").exists()


def test_open_succeeds_after_crash_during_creation(tmp_path: Path) -> None:
    root = tmp_path / "s"
    (root / "shard-00000").mkdir(parents=True)  # died before cluster.json
    (root / ".cluster.json.1.ab.tmp").write_bytes(b"{")
    with timerstore.open_shards(root, 2, small(), threads=False) as store:
        assert store.shard_count == 2


def test_open_shards_rejects_single_store(tmp_path: Path) -> None:
    timerstore.open(tmp_path / "s", small(), threads=False).close()
    with pytest.raises(ConfigError, match="single store"):
        timerstore.open_shards(tmp_path / "s", 2)


def test_concurrent_creation_succeeds_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "s"
    load, looks = cluster.load, []

    def slow_load(disk: object, tree: object) -> object:
        found = load(disk, tree)  # type: ignore[arg-type]
        if not looks:
            looks.append(1)
            timerstore.open_shards(root, 2, small(), threads=False).close()
        return found

    monkeypatch.setattr(cluster, "load", slow_load)
    with pytest.raises(ConfigError, match="has 2 shards, got 3"):
        timerstore.open_shards(root, 3, small(), threads=False)


def test_open_reports_damaged_cluster_json(tmp_path: Path) -> None:
    root = tmp_path / "s"
    timerstore.open_shards(root, 2, small(), threads=False).close()
    file = root / "cluster.json"
    good = file.read_bytes()
    for k in range(len(good) - 1):
        bad = bytearray(good)
        bad[k] ^= 1
        file.write_bytes(bad)
        if bad.decode("utf-8", "replace").split() == good.decode().split():
            continue
        with pytest.raises((CorruptError, FormatVersionError), match=r"cluster\.json"):
            timerstore.open_shards(root, threads=False)
    for size in range(0, len(good) - 1, 7):
        file.write_bytes(good[:size])
        with pytest.raises(CorruptError):
            timerstore.open_shards(root, threads=False)
    file.write_bytes(cluster.sealed({"format": 2}))
    with pytest.raises(FormatVersionError, match="wanted 1; got 2"):
        timerstore.open_shards(root, threads=False)
    file.write_bytes(cluster.sealed({**json.loads(good), "hash": "md5", "crc": 0}))
    with pytest.raises(CorruptError):
        timerstore.open_shards(root, threads=False)
    table = json.loads(good)
    del table["crc"]
    file.write_bytes(cluster.sealed({**table, "hash": "md5"}))
    with pytest.raises(FormatVersionError, match="hash"):
        timerstore.open_shards(root, threads=False)
    file.write_bytes(cluster.sealed({**table, "config": {"of_tomorrow": 1}}))
    with pytest.raises(FormatVersionError, match="of_tomorrow"):
        timerstore.open_shards(root, threads=False)
    file.write_bytes(cluster.sealed({**table, "config": {"precision_ms": 0}}))
    with pytest.raises(CorruptError, match="precision_ms"):
        timerstore.open_shards(root, threads=False)
    file.write_bytes(good)
    timerstore.open_shards(root, threads=False).close()


def test_open_rejects_config_below_limits_of_writers(tmp_path: Path) -> None:
    root = tmp_path / "s"
    timerstore.open_shards(root, 1, small(message_bytes_max=5000), threads=False).close()
    with timerstore.open_shards(root, threads=False) as store:
        assert store.config == small(message_bytes_max=5000)
    with pytest.raises(ConfigError, match=r"message_bytes_max: .*5000, got 4999"):
        timerstore.open_shards(root, 1, small(message_bytes_max=4999), threads=False)
    timerstore.open_shards(root, 1, small(message_bytes_max=5001), threads=False).close()


def test_open_creates_nothing_when_arguments_are_invalid(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="config"):
        timerstore.open_shards(tmp_path / "s", 2, {})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="clock"):
        timerstore.open_shards(tmp_path / "s", 2, clock=5)  # type: ignore[arg-type]
    assert not (tmp_path / "s").exists()
    assert ManualClock(NOW).now_ms == NOW
