"""A relative path means what it means when it is given, wherever the process goes later."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")

import timerstore  # noqa: E402
import timerstore.aio  # noqa: E402
from tests.support.bench import NOW, Bench, small  # noqa: E402
from tests.support.shards import ShardBench  # noqa: E402
from tests.support.staging import batch_of, make_root  # noqa: E402
from timerstore import ConfigError, shards, tables  # noqa: E402
from timerstore._engine.storage.anchor import absolute_path  # noqa: E402
from timerstore.shards import Stager  # noqa: E402
from timerstore.spark.jobs.lake import open_lake  # noqa: E402
from timerstore.spark.read_options import parse  # noqa: E402
from timerstore.testing import ManualClock  # noqa: E402


class Places:
    """The working directory at the time of a call, and a later one."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self._elsewhere = tmp_path / "home", tmp_path / "elsewhere"
        self.home.mkdir()
        self._elsewhere.mkdir()
        self._monkeypatch = monkeypatch
        monkeypatch.chdir(self.home)

    def leave(self) -> None:
        """Change to another directory, as a daemon does."""
        self._monkeypatch.chdir(self._elsewhere)

    def check(self) -> None:
        """Check that nothing was made in the later directory."""
        assert list(self._elsewhere.iterdir()) == []


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    one = Places(tmp_path, monkeypatch)
    yield one
    one.check()


def test_store_keeps_its_path_when_working_directory_changes(places: Places) -> None:
    bench = Bench(Path("store"))
    assert bench.store.path == places.home / "store"
    places.leave()
    bench.store.put_many("new", [bytes(50_000)] * 40, delay=5)  # more than one segment
    bench.store.put_every("t", b"x", every=1, name="x")
    bench.turn(5000)
    assert len(bench.bodies("new")) == 40
    assert bench.store.verify().clean
    bench.store.backup(places.home / "backup")
    bench.store.flush()
    bench.store.close()
    assert timerstore.verify_directory(places.home / "store").clean


def test_read_only_store_keeps_its_path_when_working_directory_changes(places: Places) -> None:
    bench = Bench(Path("store"))
    bench.store.put("t", b"a")
    bench.turn()
    bench.store.flush()
    with timerstore.open("store", read_only=True) as reader:
        places.leave()
        bench.store.put("t", b"b")
        bench.turn()
        bench.store.flush()
        assert [one.body for one in reader.pull("t", 0, 0).messages] == [b"a", b"b"]
        assert reader.verify().clean
    bench.close()


@pytest.mark.parametrize("path", ["shards", "./shards", "deep/../shards"])
def test_shards_keep_their_path_when_working_directory_changes(places: Places, path: str) -> None:
    Path("deep").mkdir()
    bench = ShardBench(Path(path), 2)
    root = places.home / "shards"
    places.leave()
    staged = shards.stage(root, "s", 0, "a", [batch_of(20)], clock=ManualClock(NOW))
    shards.commit(root, "s", 0, [staged])
    assert sum(one.row_count for one in bench.store.ingest()) == 20
    assert all(one.path.parent.resolve() == root for one in bench.store.stores)
    bench.turn(21_000)
    assert bench.counted() == {b"body-%d" % k: 1 for k in range(20)}
    bench.close()


def test_shards_of_another_directory_are_not_opened(places: Places, tmp_path: Path) -> None:
    """The later directory may have shards of the same name."""
    bench = ShardBench(Path("shards"), 2)
    other = make_root(tmp_path / "other" / "shards", 2)
    part = shards.stage(other, "s", 0, "a", [batch_of(20)], clock=ManualClock(NOW))
    shards.commit(other, "s", 0, [part])
    os.chdir(tmp_path / "other")
    assert bench.store.ingest() == []
    places.leave()
    assert shards.ingest(other, clock=ManualClock(NOW)).row_count == 20
    bench.close()


def test_stager_keeps_its_path_when_working_directory_changes(places: Places) -> None:
    make_root(Path("shards"))
    stager = Stager("shards", "s", 0, "a", clock=ManualClock(NOW))
    places.leave()
    stager.add(batch_of(20))
    part = stager.finish()
    assert shards.commit(places.home / "shards", "s", 0, [part]).manifest.row_count == 20


def test_aio_open_uses_the_working_directory_of_the_call(places: Places) -> None:
    async def work() -> None:
        opening = timerstore.aio.open("store", small())
        places.leave()
        async with opening as store:
            await store.put("t", b"x")

    asyncio.run(work())
    assert (places.home / "store" / "commitlog").is_dir()


def test_readers_keep_their_path_when_working_directory_changes(places: Places) -> None:
    bench = Bench(Path("store"))
    bench.store.put("t", b"a")
    bench.turn()
    bench.close()
    batches = tables.read("store")
    lake = open_lake(Path("lake"), create=True)
    options = parse({"paths": '["store"]'}).absolute_path()
    places.leave()
    assert sum(map(len, batches)) == 1
    assert lake.root == places.home / "lake"
    assert options.paths == (places.home / "store",)


def test_relative_path_is_resolved_within_one_call(places: Places) -> None:
    bench = Bench(Path("store"))
    bench.store.put("t", b"a")
    bench.store.backup("backup")
    bench.close()
    assert timerstore.check_backup("backup").clean
    timerstore.restore("backup", "restored")
    assert timerstore.verify_directory("restored").clean
    assert timerstore.repair("restored", "repaired").clean
    assert timerstore.convert("repaired", "timerstore", small()).pending == 0
    make_root(Path("shards"))
    part = shards.stage("shards", "s", 0, "a", [batch_of(3)], clock=ManualClock(NOW))
    shards.abort("shards", [part])
    assert list(shards.clean("shards")) == []
    places.leave()


def test_anchored_keeps_links_and_raises_when_working_directory_is_removed(
    places: Places, tmp_path: Path
) -> None:
    (places.home / "link").symlink_to(tmp_path)
    assert absolute_path("path", "link/../x") == places.home / "link" / ".." / "x"
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match="working directory is gone"):
        absolute_path("path", "x")
    assert absolute_path("path", "/x") == Path("/x")
    places.leave()
