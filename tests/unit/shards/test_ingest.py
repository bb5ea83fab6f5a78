"""Committed rows are ingested into their shards once, also after crashes."""

from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")


import timerstore  # noqa: E402
from tests.support.bench import NOW, small  # noqa: E402
from tests.support.shards import ShardBench, bodies_of  # noqa: E402
from tests.support.staging import batch_of, make_root, staged_names, write_rows  # noqa: E402  # noqa: E402
from timerstore import (  # noqa: E402
    ConfigError,
    CorruptError,
    LockedError,
    MessageError,
)
from timerstore._engine.base import failpoints  # noqa: E402
from timerstore.shards import (  # noqa: E402
    commit,
    ingest,
    janitor,
    prune,
    stage,
)
from timerstore.testing import ManualClock  # noqa: E402


def test_ingest_stores_rows_once_and_removes_files(shards: ShardBench) -> None:
    write_rows(shards.root, [batch_of(200)])
    done = shards.store.ingest()
    assert sorted((one.shard, one.source, one.version) for one in done) == [
        (0, "s", 0), (1, "s", 0), (2, "s", 0),
    ]  # fmt: skip
    assert sum(one.row_count for one in done) == 200
    assert staged_names(shards.root) == []
    assert not (shards.root / "_ingest/staging/s").exists()
    assert shards.store.ingest() == []
    shards.turn(100_000)
    assert shards.counted() == {b"body-%d" % k: 1 for k in range(100)}
    shards.turn(100_000)
    shards.reopen()
    assert shards.store.ingest() == []
    assert shards.counted() == {b"body-%d" % k: 1 for k in range(200)}
    for shard, bodies in enumerate(shards.bodies()):
        assert {shards.store.shard_of(f"key-{body[5:].decode()}") for body in bodies} == {shard}


def test_message_has_all_columns_of_row(shards: ShardBench) -> None:
    pairs = pa.map_(pa.string(), pa.string())
    write_rows(
        shards.root,
        [
            batch_of(
                3,
                key=[],
                keys=pa.array([["a", "b"], [], None], pa.list_(pa.string())),
                tags=["red", None, "blue"],
                message_id=["id-0", "id-1", None],
                properties=pa.array([[("x", "1")], None, [("x", "2"), ("y", "é")]], pairs),
                deliver_at=pa.array([0, NOW + 500, NOW - 10]),
            )
        ],
    )
    shards.store.ingest()
    shards.turn()
    (waiting,) = shards.store.pending()
    assert (waiting.message_id, waiting.due_ms) == ("id-1", NOW + 500)
    shards.turn(500)
    with shards.store.consumer("t", "g", wait=0) as consumer:
        found = {one.body: one for one in consumer}
    first, second, third = (found[b"body-%d" % k] for k in range(3))
    assert (first.keys, first.tags, first.message_id) == (("a", "b"), "red", "id-0")
    assert first.properties["x"] == "1"
    assert (second.keys, second.tags, second.message_id) == ((), None, "id-1")
    assert (third.properties["x"], third.properties["y"], third.tags) == ("2", "é", "blue")
    assert second.due_ms == second.delivered_ms == NOW + 500


def test_versions_are_ingested_in_order_for_each_source(shards: ShardBench) -> None:
    for version in (2, 0, 1):
        rows = batch_of(1, version, key=["same"], deliver_at=pa.array([0]))
        write_rows(shards.root, [rows], version)
    write_rows(shards.root, [batch_of(1, 7, key=["same"], deliver_at=pa.array([0]))], 0, "other/1")
    shards.store.ingest()
    shards.turn()
    assert [one for one in shards.bodies() if one] == [[b"body-7", b"body-0", b"body-1", b"body-2"]]


def test_version_without_rows_for_shard_is_complete_there(shards: ShardBench) -> None:
    write_rows(shards.root, [batch_of(1)])
    write_rows(shards.root, [], 1)
    assert len(shards.store.ingest()) == 6
    assert shards.store.ingest() == []
    for store in shards.store.stores:
        assert list(store.ingested("s")) == [0, 1]


def test_ingest_skips_shards_that_are_open_elsewhere(tmp_path: Path) -> None:
    root = make_root(tmp_path / "s")
    write_rows(root, [batch_of(60, deliver_at=pa.array([0] * 60))])
    with timerstore.open(root / "shard-00001", small(), threads=False):
        report = ingest(root)
    assert report.locked == (1,)
    assert sorted(one.shard for one in report.ingested) == [0, 2]
    assert staged_names(root) == ["00001.arrow"]
    again = ingest(root)
    assert (again.locked, [one.shard for one in again.ingested]) == ((), [1])
    assert report.row_count + again.row_count == 60
    assert ingest(root, shards=[0, 2]).ingested == ()
    for wrong in ([3], [-1], ["0"]):
        with pytest.raises(MessageError, match="shards: wanted some of 0 to 2"):
            ingest(root, shards=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"no cluster\.json"):
        ingest(tmp_path)


def test_ingest_does_not_recreate_lost_shard(tmp_path: Path) -> None:
    root = make_root(tmp_path / "s")
    write_rows(root, [batch_of(60)])
    (root / "shard-00001").rename(tmp_path / "lost")
    for some in (None, [1], [0, 1]):
        with pytest.raises(CorruptError, match=r"shard 1 of 3 is lost.*shard-00001"):
            ingest(root, shards=some)
    assert not (root / "shard-00001").exists()
    assert [one.shard for one in ingest(root, shards=[0, 2]).ingested] == [0, 2]
    (tmp_path / "lost").rename(root / "shard-00001")
    assert [one.shard for one in ingest(root).ingested] == [1]


def test_ingest_stores_and_owner_delivers(tmp_path: Path) -> None:
    root = make_root(tmp_path / "s", 1)
    write_rows(root, [batch_of(5, deliver_at=pa.array([NOW + 1] * 5))])
    clock = ManualClock(NOW)
    ingest(root, clock=clock)
    clock.advance(1000)
    ingest(root, clock=clock)
    with timerstore.open(root / "shard-00000", small(), clock=clock, threads=False) as store:
        assert store.stats()["pending_messages"] == 5
        timerstore.testing.Stepper(store).settle()
        assert len(bodies_of(store, "t")) == 5


def test_damaged_file_stops_only_its_source_and_shard(shards: ShardBench) -> None:
    done = write_rows(shards.root, [batch_of(90, deliver_at=pa.array([0] * 90))])
    write_rows(shards.root, [batch_of(90, 90, deliver_at=pa.array([0] * 90))], 1)
    write_rows(shards.root, [batch_of(9, 1000, deliver_at=pa.array([0] * 9))], 0, "z")
    path = shards.root / done.manifest.of_shard(1)[0].path
    good = path.read_bytes()
    path.write_bytes(good[:-9] + b"\0" + good[-8:])
    for _ in range(2):
        with pytest.raises(CorruptError, match=r"shard 1: .*CRC-32.*00001\.arrow"):
            shards.store.ingest()
    by_shard = [list(store.ingested("s")) for store in shards.store.stores]
    assert by_shard == [[0, 1], [], [0, 1]]
    assert [list(store.ingested("z")) for store in shards.store.stores] == [[0]] * 3
    path.write_bytes(good)
    assert [(one.shard, one.version) for one in shards.store.ingest()] == [(1, 0), (1, 1)]
    shards.turn()
    wanted = [*range(180), *range(1000, 1009)]
    assert shards.counted() == {b"body-%d" % k: 1 for k in wanted}


@pytest.mark.parametrize("point", ["shard_ingest_durable", "ingest_chunk_appended"])
def test_next_pass_completes_pass_that_died(
    shards: ShardBench, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    write_rows(shards.root, [batch_of(90, deliver_at=pa.array([0] * 90))])

    def die(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    monkeypatch.setattr(failpoints, "hook", die)
    with pytest.raises(KeyboardInterrupt):
        shards.store.ingest()
    monkeypatch.setattr(failpoints, "hook", None)
    shards.reopen()
    shards.store.ingest()
    assert staged_names(shards.root) == []
    shards.turn()
    assert shards.counted() == {b"body-%d" % k: 1 for k in range(90)}


def test_open_shards_ingest_committed_rows_periodically(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with timerstore.open_shards(root, 2, small(), ingest_every=0.05) as store:
        with store.consumer("t", "g", wait=60) as consumer:
            write_rows(root, [batch_of(40, deliver_at=pa.array([0] * 40))])
            found = {next(consumer).body for _ in range(40)}
        assert found == {b"body-%d" % k for k in range(40)}
        assert store.stats()["ingest_error"] == ""
        done = write_rows(root, [batch_of(40, 40)], 1)
        with pytest.raises(LockedError):
            timerstore.open_shards(root)
        assert done.manifest.row_count == 40
    with timerstore.open_shards(root, threads=False) as store:
        store.ingest()
        assert store.stats()["pending_messages"] <= 40


@pytest.mark.parametrize("every", [0, -1, 0.009, 86_401, float("nan")])
def test_open_rejects_ingest_every_out_of_range(tmp_path: Path, every: float) -> None:
    with pytest.raises(ConfigError, match="ingest_every"):
        timerstore.open_shards(tmp_path / "s", 1, ingest_every=every)


def test_empty_path_is_rejected(shards: ShardBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shards.root)
    part = stage(shards.root, "s", 0, "a", [batch_of(2)])
    for act in (
        lambda: stage("", "s", 0, "a", [batch_of(2)]),
        lambda: commit("", "s", 0, [part]),
        lambda: ingest(""),
        lambda: janitor.clean(""),
        lambda: prune("", lambda *_: True),
    ):
        with pytest.raises(ConfigError, match="wanted a folder, got ''"):
            act()
    commit(".", "s", 0, [part])
