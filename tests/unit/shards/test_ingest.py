"""What is committed comes into its shards, each row once, whoever dies in between."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

import numpy as np  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import timerstore  # noqa: E402
from tests.support.bench import NOW, small  # noqa: E402
from tests.support.inside import ingest_in_background, is_ingested  # noqa: E402
from tests.support.shards import ShardBench, bodies_of  # noqa: E402
from tests.support.staging import batch_of, make_root  # noqa: E402
from timerstore import (  # noqa: E402
    ConfigError,
    CorruptError,
    FailedError,
    LockedError,
    MessageError,
    RowBatch,
    shards,
)
from timerstore._engine.base import failpoints  # noqa: E402
from timerstore._engine.storage.disk import Disk  # noqa: E402
from timerstore.shards import (  # noqa: E402
    WriteOptions,
    background_ingest,
    commit,
    ingest,
    janitor,
    manifest,
    prune,
    stage,
)
from timerstore.shards.shard_paths import ShardsTree  # noqa: E402
from timerstore.shards.write_options import draw_name  # noqa: E402
from timerstore.testing import ManualClock  # noqa: E402

_attempts = iter(range(1_000_000))
UUID = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"


def write(
    root: Path, batches: list[Any], version: int = 0, source: str = "s", **options: Any
) -> shards.Committed:
    attempt = f"a{next(_attempts)}"
    staged = stage(
        root, source, version, attempt, batches, WriteOptions(**options), clock=ManualClock(NOW)
    )
    return commit(root, source, version, [staged], clock=ManualClock(NOW))


def files(root: Path) -> list[str]:
    return sorted(one.name for one in (root / "_ingest/staging").rglob("*.arrow"))


def test_rows_come_once_and_files_go(shards: ShardBench) -> None:
    write(shards.root, [batch_of(200)])
    done = shards.store.ingest()
    assert sorted((one.shard, one.source, one.version) for one in done) == [
        (0, "s", 0), (1, "s", 0), (2, "s", 0),
    ]  # fmt: skip
    assert sum(one.row_count for one in done) == 200
    assert files(shards.root) == []
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


def test_all_that_a_row_has_is_in_the_message(shards: ShardBench) -> None:
    pairs = pa.map_(pa.string(), pa.string())
    write(
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


def test_versions_come_in_order_and_sources_by_themselves(shards: ShardBench) -> None:
    for version in (2, 0, 1):
        rows = batch_of(1, version, key=["same"], deliver_at=pa.array([0]))
        write(shards.root, [rows], version)
    write(shards.root, [batch_of(1, 7, key=["same"], deliver_at=pa.array([0]))], 0, "other/1")
    shards.store.ingest()
    shards.turn()
    assert [one for one in shards.bodies() if one] == [[b"body-7", b"body-0", b"body-1", b"body-2"]]


def test_a_version_without_rows_for_a_shard_is_done_there_too(shards: ShardBench) -> None:
    write(shards.root, [batch_of(1)])
    write(shards.root, [], 1)
    assert len(shards.store.ingest()) == 6
    assert shards.store.ingest() == []
    for store in shards.store.stores:
        assert list(store.ingested("s")) == [0, 1]


def test_shards_that_others_have_open_are_left_to_them(tmp_path: Path) -> None:
    root = make_root(tmp_path / "s")
    write(root, [batch_of(60, deliver_at=pa.array([0] * 60))])
    with timerstore.open(root / "shard-00001", small(), threads=False):
        report = ingest(root)
    assert report.locked == (1,)
    assert sorted(one.shard for one in report.ingested) == [0, 2]
    assert files(root) == ["00001.arrow"]
    again = ingest(root)
    assert (again.locked, [one.shard for one in again.ingested]) == ((), [1])
    assert report.row_count + again.row_count == 60
    assert ingest(root, shards=[0, 2]).ingested == ()
    for wrong in ([3], [-1], ["0"]):
        with pytest.raises(MessageError, match="shards: wanted some of 0 to 2"):
            ingest(root, shards=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"no cluster\.json"):
        ingest(tmp_path)


def test_ingest_makes_no_shard_that_is_lost_anew(tmp_path: Path) -> None:
    root = make_root(tmp_path / "s")
    write(root, [batch_of(60)])
    (root / "shard-00001").rename(tmp_path / "lost")
    for some in (None, [1], [0, 1]):
        with pytest.raises(CorruptError, match=r"shard 1 of 3 is lost.*shard-00001"):
            ingest(root, shards=some)
    assert not (root / "shard-00001").exists()
    assert [one.shard for one in ingest(root, shards=[0, 2]).ingested] == [0, 2]
    (tmp_path / "lost").rename(root / "shard-00001")
    assert [one.shard for one in ingest(root).ingested] == [1]


def test_ingest_only_stores_and_the_owner_delivers(tmp_path: Path) -> None:
    root = make_root(tmp_path / "s", 1)
    write(root, [batch_of(5, deliver_at=pa.array([NOW + 1] * 5))])
    clock = ManualClock(NOW)
    ingest(root, clock=clock)
    clock.advance(1000)
    ingest(root, clock=clock)
    with timerstore.open(root / "shard-00000", small(), clock=clock, threads=False) as store:
        assert store.stats()["pending_messages"] == 5
        timerstore.testing.Stepper(store).settle()
        assert len(bodies_of(store, "t")) == 5


def test_a_damaged_file_stops_its_source_in_its_shard_alone(shards: ShardBench) -> None:
    done = write(shards.root, [batch_of(90, deliver_at=pa.array([0] * 90))])
    write(shards.root, [batch_of(90, 90, deliver_at=pa.array([0] * 90))], 1)
    write(shards.root, [batch_of(9, 1000, deliver_at=pa.array([0] * 9))], 0, "z")
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
def test_who_dies_amid_a_pass_is_followed_by_another(
    shards: ShardBench, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    write(shards.root, [batch_of(90, deliver_at=pa.array([0] * 90))])

    def die(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    monkeypatch.setattr(failpoints, "hook", die)
    with pytest.raises(KeyboardInterrupt):
        shards.store.ingest()
    monkeypatch.setattr(failpoints, "hook", None)
    shards.reopen()
    shards.store.ingest()
    assert files(shards.root) == []
    shards.turn()
    assert shards.counted() == {b"body-%d" % k: 1 for k in range(90)}


def test_a_live_store_takes_what_is_committed_by_itself(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with timerstore.open_shards(root, 2, small(), ingest_every=0.05) as store:
        with store.consumer("t", "g", wait=60) as consumer:
            write(root, [batch_of(40, deliver_at=pa.array([0] * 40))])
            found = {next(consumer).body for _ in range(40)}
        assert found == {b"body-%d" % k for k in range(40)}
        assert store.stats()["ingest_error"] == ""
        done = write(root, [batch_of(40, 40)], 1)
        with pytest.raises(LockedError):
            timerstore.open_shards(root)
        assert done.manifest.row_count == 40
    with timerstore.open_shards(root, threads=False) as store:
        store.ingest()
        assert store.stats()["pending_messages"] <= 40


def test_manifests_that_nobody_needs_go_and_a_late_replay_adds_nothing(
    shards: ShardBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "KEPT_COUNT", 2)
    for version in range(5):
        write(shards.root, [batch_of(20, 20 * version)], version)
    unnamed, aside = draw_name(), draw_name()
    write(shards.root, [batch_of(20, 100)], 0, unnamed)
    broken = batch_of(20, 120, key=["two words"] * 20)
    write(shards.root, [broken], 0, aside, on_invalid="quarantine")
    disk, tree = Disk(), ShardsTree(shards.root)

    def left() -> dict[str, list[int]]:
        return {s: manifest.versions(disk, tree, s) for s in manifest.sources(disk, tree)}

    everything = {"s": [0, 1, 2, 3, 4], unnamed: [0], aside: [0]}
    done = is_ingested(shards.store)
    assert prune(shards.root, done, old_ms=-60_000) == 0  # no shard has them yet
    assert left() == everything
    shards.store.ingest()
    assert prune(shards.root, done) == 0  # too young
    assert left() == everything
    assert prune(shards.root, done, old_ms=-60_000) == 4
    assert left() == {"s": [3, 4], aside: [0]}
    write(shards.root, [batch_of(20, 20)], 1)  # a driver that slept for days
    assert shards.store.ingest() == []
    assert files(shards.root) == ["quarantine.arrow"]
    shards.turn(1_000_000)
    assert shards.counted() == {b"body-%d" % k: 1 for k in range(120)}


def test_an_unreadable_manifest_stays_and_others_go(
    shards: ShardBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "KEPT_COUNT", 0)
    for source in ("a", "b"):
        write(shards.root, [batch_of(5)], source=source)
    shards.store.ingest()
    tree = ShardsTree(shards.root)
    tree.manifest("a", 0).write_bytes(b"{")
    assert prune(shards.root, is_ingested(shards.store), old_ms=-60_000) == 1
    assert tree.manifest("a", 0).exists()
    assert not tree.manifest("b", 0).exists()


@pytest.mark.parametrize(
    "name", ["batch-june", "batch-", "batch-1f2e3d4c", f"batch-{UUID}x", f"june-{UUID}"]
)
def test_a_name_that_looks_like_a_nameless_writes_keeps_its_manifest(
    shards: ShardBench, name: str
) -> None:
    WriteOptions(write_id=name)
    write(shards.root, [batch_of(20)], 0, name)
    shards.store.ingest()
    assert prune(shards.root, is_ingested(shards.store), old_ms=-60_000) == 0
    other = stage(shards.root, name, 0, "other", [batch_of(30)], clock=ManualClock(NOW))
    with pytest.raises(MessageError, match="committed with other rows"):
        commit(shards.root, name, 0, [other], same_rows=True)


def test_a_nameless_writes_name_is_given_to_no_other() -> None:
    assert draw_name() != draw_name()
    for name in (draw_name(), f"batch-{UUID}"):  # as older releases drew them
        with pytest.raises(ConfigError, match=r"write_id: wanted another form.*got 'batch-"):
            WriteOptions(write_id=name)


def test_an_error_of_the_background_is_in_the_stats(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with timerstore.open_shards(root, 1, small(), ingest_every=0.01) as store:
        (root / "_ingest/manifests/s").mkdir(parents=True)
        ShardsTree(root).manifest("s", 0).write_bytes(b"{")
        told = threading.Event()
        for _ in range(6000):
            if "unreadable" in store.stats()["ingest_error"]:
                break
            told.wait(0.01)
        assert "00000.json" in store.stats()["ingest_error"]
        store.put("t", b"x")  # the store goes on
        ShardsTree(root).manifest("s", 0).unlink()
        for _ in range(6000):
            if not store.stats()["ingest_error"]:
                break
            told.wait(0.01)
        assert store.stats()["ingest_error"] == ""


def test_a_source_that_no_shard_can_take_does_not_stop_the_janitor(shards: ShardBench) -> None:
    done = write(shards.root, [batch_of(20)], source="lost")
    for one in done.manifest.files:
        (shards.root / one.path).unlink()
    left = stage(shards.root, "s", 0, "a", [batch_of(20)])
    for path in (shards.root / "_ingest/staging").rglob("*"):
        os.utime(path, (0, 0))
    with pytest.raises(CorruptError, match="'lost' version 0 is lost"):
        ingest_in_background(shards.store)
    assert not (shards.root / left.files[0].path).exists()


def test_a_janitor_that_fails_hides_no_error_of_a_source(
    shards: ShardBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = write(shards.root, [batch_of(20)], source="lost")
    for one in done.manifest.files:
        (shards.root / one.path).unlink()

    def fails(*_: object) -> None:
        raise FailedError("cannot be removed", where="here")

    monkeypatch.setattr(background_ingest, "clean", fails)
    with pytest.raises(CorruptError, match="'lost' version 0 is lost") as caught:
        ingest_in_background(shards.store)
    assert "cannot be removed" in caught.value.__notes__[0]


@pytest.mark.parametrize("every", [0, -1, 0.009, 86_401, float("nan")])
def test_ingest_every_is_bounded(tmp_path: Path, every: float) -> None:
    with pytest.raises(ConfigError, match="ingest_every"):
        timerstore.open_shards(tmp_path / "s", 1, ingest_every=every)


def test_no_path_at_all_is_not_the_working_directory(
    shards: ShardBench, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_rows_at_every_limit_are_taken(tmp_path: Path) -> None:
    """What staging lets through no shard may refuse: it would be committed, and stuck."""
    config = small(commit_log_segment_bytes=65_536, properties_bytes_max=2000)
    root = tmp_path / "s"
    bench = ShardBench(root, 1, config)
    bench.close()
    low, high = 1, 65_536
    while low < high - 1:  # the largest body that passes
        size = (low + high) // 2
        try:
            stage(root, "probe", 0, f"b{size}", [batch_of(1, body=[b"x" * size])],
                  clock=bench.clock)  # fmt: skip
            low = size
        except MessageError:
            high = size
    assert low > 50_000
    far = NOW + config.delay_ms_max
    rows = [
        batch_of(1, 0, body=[b"x" * low]),
        batch_of(1, 1, deliver_at=pa.array([far])),
        batch_of(1, 2, topic=["t" * 127]),
        batch_of(1, 3, message_id=["i" * 128]),
        batch_of(1, 4, deliver_at=pa.array([-(2**63)])),
        batch_of(1, 5, tags=["x" * 1400]),
    ]
    for version, batch in enumerate(rows):
        write(root, [batch], version)
    bench.open()
    assert sum(one.row_count for one in bench.store.ingest()) == len(rows)
    bench.turn(10_000)
    assert bench.store.stats()["pending_messages"] == 1
    assert len(bench.bodies("t")[0]) == 4
    bench.close()


def test_rows_for_a_directory_without_timers_are_taken(tmp_path: Path) -> None:
    bench = ShardBench(tmp_path / "s", 1, small(timer_enabled=False))
    due = pa.array([NOW, NOW + 3_600_000])
    write(bench.root, [batch_of(2, deliver_at=due)], on_invalid="quarantine")
    bench.clock.set(NOW - 1000)  # the owner's clock is behind that of who staged
    assert [one.row_count for one in bench.store.ingest()] == [1]
    bench.turn()
    assert bench.bodies() == [[b"body-0"]]
    bench.close()


texts = st.one_of(
    st.none(), st.text(max_size=12), st.sampled_from(["k", "a b", "é", "\u3000", "TIMER_X"])
)
raw_texts = st.one_of(texts, st.sampled_from([b"\xff", b"a\xc3", b"\xed\xa0\x80"]))
rows = st.fixed_dictionaries(
    {
        "topic": st.one_of(st.sampled_from(["t", "u", "a.b"]), st.none()),
        "body": st.one_of(st.binary(max_size=30), st.none()),
        "deliver_at": st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(NOW, NOW + 9999)),
        "key": texts,
        "keys": st.one_of(st.none(), st.lists(raw_texts, max_size=3)),
        "tags": texts,
        "message_id": texts,
        "properties": st.one_of(
            st.none(),
            st.lists(st.tuples(st.text(min_size=1, max_size=8), raw_texts), max_size=3),
        ),
    }
)


@pytest.mark.more
@settings(max_examples=40)
@given(given_rows=st.lists(rows, min_size=1, max_size=25), has_lists=st.booleans())
def test_what_staging_lets_through_every_shard_takes(
    given_rows: list[dict[str, Any]], has_lists: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("limits") / "s"
    bench = ShardBench(root, 2)
    kinds = {
        "topic": pa.string(),
        "body": pa.binary(),
        "deliver_at": pa.int64(),
        "key": pa.string(),
        "keys": pa.list_(pa.binary()),
        "tags": pa.string(),
        "message_id": pa.string(),
        "properties": pa.map_(pa.string(), pa.binary()),
    }
    columns = {
        name: pa.array([row[name] for row in given_rows], kind) for name, kind in kinds.items()
    }
    # As a producer may have cast them, who did not look at the bytes.
    columns["keys"] = columns["keys"].cast(pa.list_(pa.string()), safe=False)
    columns["properties"] = columns["properties"].cast(
        pa.map_(pa.string(), pa.string()), safe=False
    )
    del columns["key" if has_lists else "keys"]
    done = write(root, [pa.record_batch(columns)], on_invalid="quarantine")
    aside = sum(one.rows for one in done.manifest.of_shard(-1))
    assert done.manifest.row_count + aside == len(given_rows)
    taken = bench.store.ingest()
    assert sum(one.row_count for one in taken) == done.manifest.row_count
    bench.turn(20_000)
    came = sum(len(part) for topic in ("t", "u") for part in bench.bodies(topic))
    assert came + bench.store.stats()["pending_messages"] == done.manifest.row_count
    bench.close()


@pytest.mark.parametrize("back_ms", [0, 50_000, 10 * 365 * 86_400_000])
@pytest.mark.parametrize("owner_has_timers", [True, False])
@pytest.mark.parametrize("is_open", [False, True])
def test_committed_rows_are_taken_whatever_the_clock_and_the_owners_settings_say(
    tmp_path: Path, back_ms: int, owner_has_timers: bool, is_open: bool
) -> None:
    """A row that was refused would hold up all later versions of its source."""
    root = make_root(tmp_path / "s", delay_ms_max=100_000)
    due_ms = [NOW + 99_000, NOW - 1, 0, NOW + 1]
    rows = batch_of(4, deliver_at=[], deliver_ms=pa.array(due_ms))
    write(root, [rows])
    write(root, [batch_of(4, 4, deliver_at=[], deliver_ms=pa.array([0] * 4))], version=1)
    config = small(delay_ms_max=100_000, timer_enabled=owner_has_timers)
    clock = ManualClock(NOW - back_ms)
    if not is_open:
        assert ingest(root, config, clock=clock).row_count == 8
    bench = ShardBench(root, 3, config)
    bench.close()
    bench.clock = clock
    bench.open()
    if is_open:
        assert sum(one.row_count for one in bench.store.ingest()) == 8
    bench.turn()
    assert sum(bench.counted().values()) == (6 if back_ms == 0 else 5)
    bench.turn(NOW + 98_999 - clock.now_ms)
    assert b"body-0" not in bench.counted()
    bench.turn(1)
    bench.turn(1000)
    assert bench.counted() == {b"body-%d" % k: 1 for k in range(8)}
    bench.close()


def test_rows_of_an_ingest_are_still_checked_against_the_clock(tmp_path: Path) -> None:
    bench = ShardBench(tmp_path / "s", 1, small(delay_ms_max=100_000))
    row = RowBatch("t", b"x", np.array([0, 1]), np.array([NOW + 100_001]))
    with pytest.raises(MessageError, match="at most"):
        bench.store.stores[0].ingest("s", 0, [row])
    bench.close()
