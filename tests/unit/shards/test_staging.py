"""Staging, manifests, the janitor: what is committed once, and what is not committed."""

import json
import multiprocessing
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from tests.support.bench import NOW  # noqa: E402
from tests.support.inside import staging_gather_rows  # noqa: E402
from tests.support.staging import (  # noqa: E402
    batch_of,
    counted,
    make_root,
    rows_of,
    staged_rows,
)
from timerstore import (  # noqa: E402
    ConfigError,
    CorruptError,
    FailedError,
    MessageError,
    TimerStoreError,
)
from timerstore._engine.storage.disk import Disk  # noqa: E402
from timerstore.clock import SystemClock  # noqa: E402
from timerstore.errors import FormatVersionError  # noqa: E402
from timerstore.shards import (  # noqa: E402
    Staged,
    Stager,
    WriteOptions,
    abort,
    clean,
    commit,
    manifest,
    row_staging,
)
from timerstore.shards.cluster import sealed  # noqa: E402
from timerstore.shards.shard_paths import ShardsTree, source_component, source_of  # noqa: E402
from timerstore.shards.staged_files import QUARANTINE, open_staged, read_staged  # noqa: E402
from timerstore.testing import ManualClock  # noqa: E402

_attempts = iter(range(1_000_000))


def stage(
    root: Path, batches: list[Any], version: int = 0, source: str = "s", **options: Any
) -> Staged:
    attempt = f"a{next(_attempts)}"
    given = WriteOptions(**options)
    return row_staging.stage(root, source, version, attempt, batches, given, clock=ManualClock(NOW))


def names_in(folder: Path) -> list[str]:
    return Disk().list(folder)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "s")


def test_rows_go_to_the_shard_of_their_key_in_order(root: Path) -> None:
    staged = stage(root, [batch_of(300), batch_of(200, 300)])
    assert staged.row_count == 500
    for shard in range(3):
        rows = staged_rows(root, staged.files, shard)
        wanted = [k for k in range(500) if zlib.crc32(b"key-%d" % k) % 3 == shard]
        assert [row[1] for row in rows] == [b"body-%d" % k for k in wanted]
        one = next(file for file in staged.files if file.shard == shard)
        assert one.rows == len(wanted)
        assert (one.due_min_ms, one.due_max_ms) == (
            NOW + 1000 * (wanted[0] + 1), NOW + 1000 * (wanted[-1] + 1),
        )  # fmt: skip
        data = (root / one.path).read_bytes()
        assert (len(data), zlib.crc32(data)) == (one.bytes, one.crc32)


def test_shard_by_another_column_or_the_message_id(root: Path) -> None:
    ids = [f"id-{k}" for k in range(60)]
    batch = batch_of(60, message_id=ids, customer=[k % 7 for k in range(60)])
    staged = stage(root, [batch], shard_by="customer")
    for shard in range(3):
        got = {int(row[1][5:]) % 7 for row in staged_rows(root, staged.files, shard)}
        assert got == {c for c in range(7) if zlib.crc32(b"%d" % c) % 3 == shard}
    staged = stage(root, [batch_of(60, message_id=ids)], shard_by="msg_id")
    for shard in range(3):
        got = [row[5] for row in staged_rows(root, staged.files, shard)]
        assert got == [one for one in ids if zlib.crc32(one.encode()) % 3 == shard]


def test_without_a_key_the_message_id_decides_then_the_turn(root: Path) -> None:
    ids = [f"id-{k}" if k % 2 else None for k in range(60)]
    staged = stage(root, [batch_of(60, key=pa.array([None] * 60, pa.string()), message_id=ids)])
    for shard in range(3):
        rows = staged_rows(root, staged.files, shard)
        with_id = [row[5] for row in rows if row[5]]
        assert with_id == [
            f"id-{k}" for k in range(1, 60, 2) if zlib.crc32(b"id-%d" % k) % 3 == shard
        ]
        assert len(rows) - len(with_id) == 10


def test_small_and_large_gathers_stage_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [
        batch_of(37, first=37 * k, topic=["t", "u", "v"][k % 3 :][:1] * 37) for k in range(30)
    ]
    once = stage(root, batches)
    monkeypatch.setattr(*staging_gather_rows(), 50)
    again = stage(root, batches)
    for shard in range(3):
        one, two = (sorted(staged_rows(root, part.files, shard)) for part in (once, again))
        assert one == two
    assert sum(f.digest for f in once.files) % 2**64 == sum(f.digest for f in again.files) % 2**64
    assert counted(staged_rows(root, once.files)) == {b"body-%d" % k: 1 for k in range(1110)}


def _digest(root: Path, *batches: Any) -> int:
    return sum(one.digest for one in stage(root, list(batches)).files) % 2**64


def test_a_digest_tells_rows_apart_and_not_their_order(root: Path) -> None:
    base = batch_of(40)
    wanted = _digest(root, base)
    turned = base.take(pa.array(list(range(40))[::-1]))
    assert _digest(root, turned.slice(0, 7), turned.slice(7)) == wanted
    pairs = pa.map_(pa.string(), pa.string())
    due = base.column("deliver_at").to_pylist()
    others = [
        batch_of(41),
        batch_of(39),
        batch_of(40, body=[b"body-1"] * 40),
        batch_of(40, topic=["u"] + ["t"] * 39),
        batch_of(40, deliver_at=pa.array([due[1], due[0], *due[2:]], base.schema.field(2).type)),
        batch_of(40, tags=["x"] + [None] * 39),
        batch_of(40, message_id=["x"] + [None] * 39),
        batch_of(40, properties=pa.array([[("a", "b")]] + [None] * 39, pairs)),
        batch_of(40, key=["key-1", "key-0", *(f"key-{k}" for k in range(2, 40))]),
    ]
    digests = {_digest(root, one) for one in others}
    assert len(digests) == len(others)
    assert wanted not in digests
    # The end of one column and the begin of the next are not taken for one another.
    tag_x = batch_of(1, tags=["xy"], message_id=pa.array([None], pa.string()))
    id_y = batch_of(1, tags=["x"], message_id=["y"])
    assert _digest(root, tag_x) != _digest(root, id_y)


def test_quarantine_sets_wrong_rows_aside_and_they_are_committed_too(root: Path) -> None:
    keys = [f"key-{k}" if k % 3 else "two words" for k in range(30)]
    staged = stage(root, [batch_of(30, key=keys)], on_invalid="quarantine")
    assert staged.row_count == 20
    done = commit(root, "s", 0, [staged])
    assert done.manifest.row_count == 20
    (aside,) = manifest.quarantined(root, "s", 0)
    assert (aside.shard, aside.rows) == (QUARANTINE, 10)
    table = open_staged(Disk(), root, aside).read_all().to_pydict()
    assert table["body"] == [b"body-%d" % k for k in range(0, 30, 3)]
    assert all("key: wanted text without spaces" in why for why in table["_reason"])


def test_nothing_is_staged_without_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match=r"no cluster\.json"):
        stage(tmp_path / "other", [batch_of()])
    assert not list((tmp_path / "other").iterdir())


def test_an_empty_part_stages_nothing_and_an_empty_version_is_committed(root: Path) -> None:
    assert stage(root, []).files == ()
    assert stage(root, [batch_of().slice(0, 0)]).files == ()
    assert commit(root, "s", 0, []).manifest.files == ()
    assert manifest.versions(Disk(), ShardsTree(root), "s") == [0]


@pytest.mark.parametrize("attempt", ["", ".", "..", "a/b", "a.b", "x" * 201, "\n"])
def test_an_attempt_is_a_plain_name(root: Path, attempt: str) -> None:
    with pytest.raises(MessageError, match="attempt"):
        Stager(root, "s", 0, attempt)


# --- staged files that are damaged ---


def test_damaged_files_are_found_before_any_row_is_given(root: Path) -> None:
    staged = stage(root, [batch_of(300)])
    last = staged.files[-1]
    path = root / last.path
    good = path.read_bytes()
    wrong = [good[:-1], good + b"x", b"", *(_flipped(good, k) for k in range(0, len(good), 997))]
    for data in wrong:
        path.write_bytes(data)
        with pytest.raises(CorruptError, match=r"staged file.*00002\.arrow"):
            next(read_staged(Disk(), root, staged.files))
    path.unlink()
    with pytest.raises(FailedError, match=r"00002\.arrow"):
        next(read_staged(Disk(), root, staged.files))


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def test_a_file_of_another_kind_is_refused(root: Path) -> None:
    staged = stage(root, [batch_of(3)])
    one = staged.files[0]
    path = root / one.path
    for data, why in (
        (b"no arrow file", "staged file"),
        (_arrow(batch_of(3)), "not of this release"),
    ):
        path.write_bytes(data)
        said = one._replace(bytes=len(data), crc32=zlib.crc32(data))
        with pytest.raises(CorruptError, match=why):
            open_staged(Disk(), root, said)


def _arrow(batch: Any) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue().to_pybytes()


# --- committing ---


def test_the_first_commit_stays_and_a_replay_drops_its_own(root: Path) -> None:
    first = stage(root, [batch_of(50)])
    second = stage(root, [batch_of(50).slice(0, 20), batch_of(50).slice(20)])
    done = commit(root, "s", 0, [first], same_rows=True)
    assert (done.is_replay, done.manifest.row_count) == (False, 50)
    again = commit(root, "s", 0, [second], same_rows=True)
    assert again.is_replay
    assert again.manifest == done.manifest
    assert not any((root / one.path).exists() for one in second.files)
    assert counted(staged_rows(root, again.manifest.files)) == {
        b"body-%d" % k: 1 for k in range(50)
    }
    once_more = commit(root, "s", 0, [first])  # the very same files: its own commit asked again
    assert once_more.is_replay
    assert all((root / one.path).exists() for one in first.files)


def test_other_rows_under_one_name_are_refused_where_that_is_asked(root: Path) -> None:
    commit(root, "s", 0, [stage(root, [batch_of(50)])], same_rows=True)
    for other in (batch_of(49), batch_of(50, body=[b"x"] * 50)):
        with pytest.raises(MessageError, match=r"committed with other rows.*another write_id"):
            commit(root, "s", 0, [stage(root, [other])], same_rows=True)
    assert commit(root, "s", 0, [stage(root, [batch_of(49)])]).is_replay
    assert not commit(root, "s", 1, [stage(root, [batch_of(49)], 1)]).is_replay


def test_abort_never_undoes_a_commit(root: Path) -> None:
    staged = stage(root, [batch_of(50)])
    late = stage(root, [batch_of(50)])
    commit(root, "s", 0, [staged])
    abort(root, [staged, None, late])
    assert all((root / one.path).exists() for one in staged.files)
    assert not any((root / one.path).exists() for one in late.files)
    other = stage(root, [batch_of(50)], 1)
    abort(root, [other])
    assert not (root / other.files[0].path).parent.exists()
    assert manifest.versions(Disk(), ShardsTree(root), "s") == [0]


def test_a_zombie_after_the_commit_changes_nothing(root: Path) -> None:
    staged = stage(root, [batch_of(50)])
    zombie = Stager(root, "s", 0, "zombie", clock=ManualClock(NOW))
    zombie.add(batch_of(50))
    commit(root, "s", 0, [staged])
    late = zombie.finish()
    done = commit(root, "s", 0, [late])
    assert done.is_replay
    assert done.manifest.files == tuple(sorted(staged.files))


def test_files_that_are_gone_or_short_are_not_committed(root: Path) -> None:
    staged = stage(root, [batch_of(50)])
    path = root / staged.files[1].path
    data = path.read_bytes()
    for damage in (lambda: path.write_bytes(data[:-1]), path.unlink):
        damage()
        with pytest.raises(CorruptError, match="to be committed"):
            commit(root, "s", 0, [staged])
    assert manifest.load(Disk(), ShardsTree(root), "s", 0) is None
    path.write_bytes(data)
    assert not commit(root, "s", 0, [staged]).is_replay


def _race(root: str, staged: Any, gate: Any, answers: Any) -> None:
    gate.wait()
    answers.put((os.getpid(), commit(Path(root), "s", 0, [staged]).is_replay))


@pytest.mark.more
def test_of_many_commits_at_once_one_wins(root: Path) -> None:
    context = multiprocessing.get_context("spawn")
    gate, answers = context.Barrier(4), context.Queue()
    parts = [stage(root, [batch_of(50)]) for _ in range(4)]
    children = [
        context.Process(target=_race, args=(str(root), part, gate, answers)) for part in parts
    ]
    for child in children:
        child.start()
    replays = [answers.get(timeout=60)[1] for _ in children]
    for child in children:
        child.join(60)
    assert sorted(replays) == [False, True, True, True]
    found = manifest.load(Disk(), ShardsTree(root), "s", 0)
    assert found is not None
    assert counted(staged_rows(root, found.files)) == {b"body-%d" % k: 1 for k in range(50)}
    left = [str(one.relative_to(root)) for one in (root / "_ingest/staging").rglob("*.arrow")]
    assert sorted(left) == sorted(one.path for one in found.files)
    assert names_in(ShardsTree(root).source_manifests("s")) == [
        "00000000000000000000.json"
    ]  # no temporary file is left


@pytest.mark.parametrize("version", [-1, 2**63, 1.0, "1", True, None])
def test_a_version_is_a_whole_number(root: Path, version: Any) -> None:
    with pytest.raises(MessageError, match="version"):
        commit(root, "s", version, [])


def test_sources_become_names_and_back(root: Path) -> None:
    sources = ["s", "query/7", "..", ".", "a.b", "é" * 40, "%2E", "x" * 240, "a b\n"]
    for k, source in enumerate(sources):
        name = source_component(source)
        assert "/" not in name
        assert not name.startswith(".")
        assert source_of(name) == source
        commit(root, source, k, [])
    assert sorted(manifest.sources(Disk(), ShardsTree(root))) == sorted(sources)
    for wrong in ("", "x" * 241, "é" * 41, "\ud800", 5, None):
        with pytest.raises(MessageError, match="source"):
            source_component(wrong)
    for stray in ("a.b", "%2", "a%2eb", "%41"):
        with pytest.raises(CorruptError, match="stray"):
            source_of(stray)


def test_a_damaged_manifest_is_said(root: Path) -> None:
    commit(root, "s", 0, [stage(root, [batch_of(5)])])
    tree = ShardsTree(root)
    path = tree.manifest("s", 0)
    good = path.read_bytes()
    for k in range(0, len(good), 3):
        path.write_bytes(_flipped(good, k))
        if path.read_text("latin-1").split() != good.decode("latin-1").split():
            with pytest.raises(TimerStoreError, match=r"00000\.json"):
                manifest.load(Disk(), tree, "s", 0)
    path.write_bytes(sealed({"format": 2}))
    with pytest.raises(FormatVersionError):
        manifest.load(Disk(), tree, "s", 0)
    table = json.loads(good)
    del table["crc"]
    for wrong in ("/etc/passwd", "../x", "a/../../b"):
        table["files"][0]["path"] = wrong
        path.write_bytes(sealed(table))
        with pytest.raises(CorruptError, match="below the root"):
            manifest.load(Disk(), tree, "s", 0)
    path.write_bytes(good)
    path.rename(tree.manifest("s", 1))
    with pytest.raises(CorruptError, match="another version"):
        manifest.load(Disk(), tree, "s", 1)


# --- the janitor ---


def _age(root: Path, hours: float) -> None:
    then = SystemClock().now_ms / 1000 - 3600 * hours
    for folder in ("staging", "manifests"):
        for path in sorted((root / "_ingest" / folder).rglob("*"), reverse=True):
            os.utime(path, (then, then))


def test_the_janitor_takes_what_is_old_and_not_committed(root: Path) -> None:
    kept = stage(root, [batch_of(5)])
    commit(root, "s", 0, [kept])
    lost = stage(root, [batch_of(5)])
    other = stage(root, [batch_of(5)], 3, "query/1")
    _age(root, 23.9)
    assert clean(root) == []
    _age(root, 24.1)
    young = stage(root, [batch_of(5)])
    removed = clean(root)
    assert sorted(removed) == sorted(
        Path(one.files[0].path).parent.as_posix() for one in (lost, other)
    )
    for one in (kept, young):
        assert all((root / file.path).exists() for file in one.files)
    assert names_in(root / "_ingest/trash") == []
    assert clean(root) == []


def test_one_new_file_keeps_an_old_attempt(root: Path) -> None:
    staged = stage(root, [batch_of(50)])
    _age(root, 30)
    os.utime(root / staged.files[0].path)
    assert clean(root) == []


def test_the_janitor_keeps_what_an_unreadable_manifest_may_name(root: Path) -> None:
    staged = stage(root, [batch_of(5)])
    commit(root, "s", 0, [staged])
    ShardsTree(root).manifest("s", 0).write_bytes(b"{")
    _age(root, 30)
    assert clean(root) == []


def test_temporary_files_of_commits_that_died_go(root: Path) -> None:
    commit(root, "s", 0, [])
    left = ShardsTree(root).source_manifests("s") / ".00000000000000000001.json.7.ab.tmp"
    left.write_bytes(b"{")
    clean(root)
    assert left.exists()
    _age(root, 30)
    clean(root)
    assert names_in(left.parent) == ["00000000000000000000.json"]


def test_rows_come_in_the_same_order_each_time(root: Path) -> None:
    parts = [stage(root, [batch_of(40, 40 * k)]) for k in range(5)]
    commit(root, "s", 0, reversed(parts))
    found = manifest.load(Disk(), ShardsTree(root), "s", 0)
    assert found is not None
    for shard in range(3):
        one, two = (rows_of(read_staged(Disk(), root, found.of_shard(shard))) for _ in range(2))
        assert one == two
