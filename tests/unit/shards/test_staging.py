"""Staged rows: routing to files, digests, damage."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

import timerstore  # noqa: E402
from tests.support.bench import NOW, small  # noqa: E402
from tests.support.inside import staging_gather_rows  # noqa: E402
from tests.support.staging import (  # noqa: E402  # noqa: E402
    batch_of,
    counted,
    flipped,
    rows_of,
    stage,
    staged_rows,
)
from timerstore import (  # noqa: E402
    ConfigError,
    CorruptError,
    FailedError,
    MessageError,
    shards,
    tables,
)
from timerstore._engine.storage.disk import Disk  # noqa: E402
from timerstore.shards import (  # noqa: E402
    Stager,
    commit,
    committing,
    manifest,
)
from timerstore.shards.shard_paths import ShardsTree  # noqa: E402
from timerstore.shards.staged_files import QUARANTINE, open_staged, read_staged  # noqa: E402
from timerstore.testing import ManualClock  # noqa: E402


def test_rows_are_staged_by_key_in_order(root: Path) -> None:
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


def test_shard_by_other_column_or_message_id(root: Path) -> None:
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


def test_rows_without_key_are_staged_by_message_id_or_round_robin(root: Path) -> None:
    ids = [f"id-{k}" if k % 2 else None for k in range(60)]
    staged = stage(root, [batch_of(60, key=pa.array([None] * 60, pa.string()), message_id=ids)])
    for shard in range(3):
        rows = staged_rows(root, staged.files, shard)
        with_id = [row[5] for row in rows if row[5]]
        assert with_id == [
            f"id-{k}" for k in range(1, 60, 2) if zlib.crc32(b"id-%d" % k) % 3 == shard
        ]
        assert len(rows) - len(with_id) == 10


def test_staged_rows_are_equal_for_any_batch_size(
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


def test_digest_depends_on_rows_and_not_on_order(root: Path) -> None:
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


def test_quarantined_rows_are_committed(root: Path) -> None:
    keys = [f"key-{k}" if k % 3 else "two words" for k in range(30)]
    staged = stage(root, [batch_of(30, key=keys)], on_invalid="quarantine")
    assert staged.row_count == 20
    done = commit(root, "s", 0, [staged])
    assert done.manifest.row_count == 20
    (aside,) = committing.quarantined(root, "s", 0)
    assert (aside.shard, aside.rows) == (QUARANTINE, 10)
    table = open_staged(Disk(), root, aside).read_all().to_pydict()
    assert table["body"] == [b"body-%d" % k for k in range(0, 30, 3)]
    assert all("key: wanted text without spaces" in why for why in table["_reason"])


def test_stage_rejects_directory_without_cluster(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match=r"no cluster\.json"):
        stage(tmp_path / "other", [batch_of()])
    assert not list((tmp_path / "other").iterdir())


def test_empty_version_is_committed(root: Path) -> None:
    assert stage(root, []).files == ()
    assert stage(root, [batch_of().slice(0, 0)]).files == ()
    assert commit(root, "s", 0, []).manifest.files == ()
    assert manifest.versions(Disk(), ShardsTree(root), "s") == [0]


@pytest.mark.parametrize("attempt", ["", ".", "..", "a/b", "a.b", "x" * 201, "\n"])
def test_stage_rejects_attempt_name(root: Path, attempt: str) -> None:
    with pytest.raises(MessageError, match="attempt"):
        Stager(root, "s", 0, attempt)


def test_read_staged_reports_damage_before_first_row(root: Path) -> None:
    staged = stage(root, [batch_of(300)])
    last = staged.files[-1]
    path = root / last.path
    good = path.read_bytes()
    wrong = [good[:-1], good + b"x", b"", *(flipped(good, k) for k in range(0, len(good), 997))]
    for data in wrong:
        path.write_bytes(data)
        with pytest.raises(CorruptError, match=r"staged file.*00002\.arrow"):
            next(read_staged(Disk(), root, staged.files))
    path.unlink()
    with pytest.raises(FailedError, match=r"00002\.arrow"):
        next(read_staged(Disk(), root, staged.files))


def test_open_staged_rejects_other_file(root: Path) -> None:
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


def test_read_staged_keeps_order(root: Path) -> None:
    parts = [stage(root, [batch_of(40, 40 * k)]) for k in range(5)]
    commit(root, "s", 0, reversed(parts))
    found = manifest.load(Disk(), ShardsTree(root), "s", 0)
    assert found is not None
    for shard in range(3):
        one, two = (rows_of(read_staged(Disk(), root, found.of_shard(shard))) for _ in range(2))
        assert one == two


@pytest.mark.parametrize("wrong", ["", "/mnt/staging", "file:///mnt/staging", "http://x/y"])
def test_ingest_from_wants_a_bucket(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ConfigError, match="ingest_from: wanted"):
        timerstore.open_shards(tmp_path / "s", 1, small(), threads=False, ingest_from=wrong)


@pytest.mark.parametrize(
    "call",
    [
        lambda root, given: shards.stage(
            str(root), "s", 0, "a", [batch_of(20)], clock=ManualClock(NOW), **given
        ),
        lambda root, given: timerstore.open_shards(root, 3, small(), threads=False, **given),
        lambda root, given: shards.ingest(root, clock=ManualClock(NOW), **given),
        lambda root, given: list(tables.read(root, **given)),
    ],
    ids=["stage", "open_shards", "ingest", "read"],
)
def test_storage_options_want_a_bucket(
    root: Path, call: Callable[[Path, dict[str, Any]], object]
) -> None:
    with pytest.raises(ConfigError, match="wanted none for a local path, got region and"):
        call(root, {"storage_options": {"region": "hunter2"}})
