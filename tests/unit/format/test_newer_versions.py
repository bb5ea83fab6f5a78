"""Every file of a newer version raises FormatVersionError, and no byte below its folder changes.

Files that are made again from the log (`timerstore/state`, `wheel`, `far-0`, `far-1`) are read as
absent: opening a store of a newer version makes them in this version.
"""

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import NamedTuple

import pytest

import timerstore
from tests.support.bench import NOW, Bench, file_bytes, small
from tests.support.driver import abandon
from tests.support.far_bench import far_bench, go
from tests.support.inside import staging_head, watermark_magic
from tests.support.recurring import RECURRING_FILE, every
from timerstore import FormatVersionError
from timerstore._engine.format import ledger_json, watermark
from timerstore._engine.format.json_text import with_checksum
from timerstore._engine.format.store_paths import INGEST_TOPIC
from timerstore._engine.storage.disk import Disk
from timerstore.shards import manifest
from timerstore.shards.cluster import sealed
from timerstore.shards.shard_paths import ShardsTree
from timerstore.spark.jobs.lake import LakeFile, open_lake
from timerstore.testing import ManualClock

DAY = date(2026, 11, 21)
NAMES = {"0.3.0", "1.0rc1"}
"""Names of releases; anything else is not shown."""


class Newer(NamedTuple):
    """A file of a newer version. `where`: what the error names."""

    where: object
    wanted: object
    got: object
    reads: list[Callable[[], object]]


def opened(root: Path, **more: bool) -> Callable[[], object]:
    """Return a call that opens a store."""
    clock = ManualClock(NOW)
    return lambda: timerstore.open(root, small(), clock=clock, threads=False, **more)


def closed_store(root: Path) -> Path:
    """Return a closed store with a pending and a recurring message."""
    bench = Bench(root)
    bench.store.put("t", b"pending", delay=60)
    every(bench)
    bench.close()
    return root


def newer_watermark(root: Path, size_bytes: int, slots: tuple[int, ...]) -> Newer:
    """Write some slots with a newer magic and this many bytes before their CRC-32."""
    path = closed_store(root) / "timerstore" / "watermark"
    raw = bytearray(path.read_bytes().ljust(2 * watermark.SLOT_BYTES, b"\0"))
    for slot in slots:
        head = b"TSMARK06".ljust(size_bytes, b"\1")
        data = (head + struct.pack("<I", zlib.crc32(head))).ljust(watermark.SLOT_BYTES, b"\0")
        raw[slot * watermark.SLOT_BYTES : (slot + 1) * watermark.SLOT_BYTES] = data
    path.write_bytes(raw)
    reads = [opened(root), lambda: timerstore.open(root, read_only=True)]
    return Newer(path, watermark_magic(), b"TSMARK06", reads)


def newer_recurring(root: Path) -> Newer:
    path = closed_store(root) / RECURRING_FILE
    path.write_bytes(with_checksum(b'{"format":2,"recurring":{}}'))
    return Newer(path, 1, 2, [opened(root)])


def newer_staging(root: Path, *, with_watermark: bool) -> Newer:
    bench = Bench(root.with_name("running"))
    bench.store.put("t", b"only staged")
    shutil.copytree(bench.root, root)
    abandon(bench.store)
    path = root / "timerstore" / "staging"
    raw = path.read_bytes()
    path.write_bytes(b"TSSTAGE4" + raw[8:])
    if not with_watermark:
        (root / "timerstore" / "watermark").unlink()
    repair = lambda: timerstore.repair(root, root.with_name("repaired"))  # noqa: E731
    return Newer(path, staging_head()[0], b"TSSTAGE4", [opened(root), repair])


def newer_backup(root: Path) -> Newer:
    with timerstore.open(closed_store(root.with_name("store")), small(), threads=False) as store:
        store.backup(root)
    path = root / "backup.json"
    path.write_bytes(b'{"format": 3, "parts": []}')
    reads: list[Callable[[], object]] = [
        lambda: timerstore.check_backup(root),
        lambda: timerstore.restore(root, root.with_name("restored")),
    ]
    return Newer(path, 2, 3, reads)


def newer_cluster(root: Path) -> Newer:
    timerstore.open_shards(root, 2, small(), clock=ManualClock(NOW), threads=False).close()
    path = root / "cluster.json"
    path.write_bytes(sealed({"format": 2}))
    return Newer(path, 1, 2, [lambda: timerstore.open_shards(root, threads=False)])


def newer_manifest(root: Path) -> Newer:
    path = ShardsTree(root).manifest("s", 0)
    path.parent.mkdir(parents=True)
    path.write_bytes(sealed({"format": 2}))
    return Newer(path, 1, 2, [lambda: manifest.load(Disk(), ShardsTree(root), "s", 0)])


def newer_lake(root: Path, name: str) -> Newer:
    lake = open_lake(root, create=True)
    lake.commit_run("r", [LakeFile(DAY, "r-00000.parquet", 1, 100)])
    lake.claim(DAY, lake.files())
    path = root / name
    path.write_text('{"format": 2, "parts": []}')

    def read() -> None:
        found = open_lake(root)
        found.claims(DAY)
        found.run("r")

    return Newer(path, 1, 2, [read])


CASES: dict[str, Callable[[Path], Newer]] = {
    "watermark of the same length": lambda root: newer_watermark(root, 136, (0, 1)),
    "longer watermark": lambda root: newer_watermark(root, 144, (0, 1)),
    "shorter watermark": lambda root: newer_watermark(root, 96, (0, 1)),
    "longest watermark": lambda root: newer_watermark(root, 508, (0, 1)),
    "longer watermark in the first slot": lambda root: newer_watermark(root, 144, (0,)),
    "longer watermark in the second slot": lambda root: newer_watermark(root, 144, (1,)),
    "recurring": newer_recurring,
    "staging": lambda root: newer_staging(root, with_watermark=True),
    "staging, without a watermark": lambda root: newer_staging(root, with_watermark=False),
    "backup": newer_backup,
    "cluster": newer_cluster,
    "manifest": newer_manifest,
    "lake": lambda root: newer_lake(root, "_lake.json"),
    "run of a lake": lambda root: newer_lake(root, "_runs/r.json"),
    "claim of a lake": lambda root: newer_lake(root, f"_promotions/{DAY}/0000000000.json"),
}


@pytest.mark.parametrize("name", CASES)
def test_file_of_a_newer_version_changes_nothing(tmp_path: Path, name: str) -> None:
    root = tmp_path / "it"
    newer = CASES[name](root)
    before = file_bytes(root)
    for read in newer.reads:
        with pytest.raises(FormatVersionError) as error:
            read()
        for part in (f"at {newer.where}", f"wanted {newer.wanted}", f"got {newer.got}"):
            assert part in str(error.value)
        assert file_bytes(root) == before


@pytest.mark.parametrize("name", ["watermark of the same length", "longer watermark"])
@pytest.mark.parametrize("said", ["0.3.0", "1.0rc1", "", "x" * 32, "0.3\n"])
def test_error_names_the_release_that_wrote_a_watermark(
    tmp_path: Path, name: str, said: str
) -> None:
    newer = CASES[name](tmp_path / "it")
    path = tmp_path / "it" / "timerstore" / "watermark"
    raw = bytearray(path.read_bytes())
    for begin in range(480, len(raw), watermark.SLOT_BYTES):
        raw[begin : begin + 32] = said.encode().ljust(32, b"\0")
    path.write_bytes(raw)
    expected = f"timerstore {said} wrote it: install that or" if said in NAMES else "install"
    for read in newer.reads:
        with pytest.raises(FormatVersionError, match=f"^watermark: {expected} a newer release; at"):
            read()


@pytest.mark.parametrize("name", ["backup", "cluster", "manifest", "lake", "recurring"])
def test_error_names_the_release_that_json_names(tmp_path: Path, name: str) -> None:
    newer = CASES[name](tmp_path / "it")
    [path] = [one for one in (tmp_path / "it").rglob("*.json") if b'"format"' in one.read_bytes()
              and json.loads(one.read_bytes())["format"] == newer.got]  # fmt: skip
    table = json.loads(path.read_bytes()) | {"release": "0.3.0"}
    table.pop("crc", None)
    if name == "recurring":
        path.write_bytes(with_checksum(json.dumps(table).encode()))
    else:
        path.write_bytes(sealed(table))
    for read in newer.reads:
        with pytest.raises(FormatVersionError, match=r": timerstore 0\.3\.0 wrote it: install"):
            read()


def test_watermark_names_this_release(tmp_path: Path) -> None:
    raw = (closed_store(tmp_path / "s") / "timerstore" / "watermark").read_bytes()
    assert [raw[at : at + 32].rstrip(b"\0").decode() for at in (480, 992)] == [
        timerstore.__version__
    ] * 2


@pytest.mark.parametrize("bit", range(8))
def test_damaged_magic_of_a_watermark_is_no_newer_version(tmp_path: Path, bit: int) -> None:
    root = closed_store(tmp_path / "s")
    path = root / "timerstore" / "watermark"
    raw = bytearray(path.read_bytes())
    for begin in range(0, len(raw), watermark.SLOT_BYTES):
        raw[begin + 7] ^= 1 << bit
    path.write_bytes(raw)
    bench = Bench(root, small())
    bench.turn(60_000)
    assert b"pending" in bench.bodies()
    bench.close()


def test_staging_of_a_newer_version_does_not_count_after_a_close(tmp_path: Path) -> None:
    root = closed_store(tmp_path / "s")
    path = root / "timerstore" / "staging"
    path.write_bytes(b"TSSTAGE4" + path.read_bytes()[8:])
    bench = Bench(root)
    bench.turn(60_000)
    assert b"pending" in bench.bodies()
    bench.close()


@pytest.mark.parametrize(
    ("name", "magic"),
    [("state", b"TSS1"), ("wheel", b"TSWHEEL1"), ("far-*", b"TSFAR002")],
)
def test_derived_file_of_a_newer_version_is_made_again(
    tmp_path: Path, name: str, magic: bytes
) -> None:
    bench = far_bench(tmp_path / "s")
    for delay in (10, 1000):
        bench.store.put("t", b"%d" % delay, delay=delay)
        bench.turn()
    bench.close()
    files = list((bench.root / "timerstore").glob(name))
    assert any(magic in path.read_bytes() for path in files)
    for path in files:
        path.write_bytes(path.read_bytes().replace(magic, magic[:-1] + b"9"))
    bench.open()
    go(bench, 999_000)
    assert bench.bodies() == [b"10"]
    go(bench, 2000)
    assert bench.bodies() == [b"10", b"1000"]
    bench.close()


def test_record_of_a_newer_ledger_stops_the_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "s")
    with monkeypatch.context() as newer:
        newer.setattr(ledger_json, "FORMAT", 2)
        bench.store.ingest("source", 0, [])
        bench.close()
    (bench.root / "timerstore" / "ingest").unlink()  # a cache of the records
    log = file_bytes(bench.root / "commitlog")
    for _ in range(2):
        with pytest.raises(FormatVersionError, match=f"at {INGEST_TOPIC}; wanted 1; got 2"):
            bench.open()
        assert file_bytes(bench.root / "commitlog") == log
    with monkeypatch.context() as newer:
        newer.setattr(ledger_json, "FORMAT", 2)
        bench.open()
        assert list(bench.store.ingested("source")) == [0]
        bench.close()
