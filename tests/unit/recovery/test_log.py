"""Recovery of the commit log: which bytes are trusted, rewritten, reported."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import Bench, small
from tests.support.driver import abandon
from tests.support.inside import inside
from timerstore import CorruptError
from timerstore._engine.base import failpoints
from timerstore._engine.log.staging import read_staged
from timerstore._engine.storage.disk import Disk, File

SEGMENT = 16 * 1024
PAGE = 4096


def copied(bench: Bench, name: str = "killed") -> Path:
    """Return a copy of the store as a kill leaves it: the page cache is intact."""
    target = bench.root.with_name(name)
    shutil.copytree(bench.root, target)
    return target


def reopened(root: Path, bench: Bench, **sizes: Any) -> Bench:
    other = Bench(root, small(**sizes), bench.clock.now_ms)
    other.turn()
    return other


def damage(root: Path, log_offset: int, segment_bytes: int = SEGMENT) -> None:
    """Overwrite 20 bytes of the log at an offset."""
    number, at = divmod(log_offset, segment_bytes)
    with (root / "commitlog" / f"{number * segment_bytes:020}").open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 20)


# --- staged bytes ---------------------------------------------------------------------------------


def staging_pages(root: Path) -> list[bytes]:
    raw = (root / "timerstore" / "staging").read_bytes()
    return [raw[at : at + PAGE] for at in range(0, len(raw), PAGE)]


@pytest.mark.parametrize("lost", ["", "timerstore/state"])
@pytest.mark.parametrize("seed", range(6))
def test_durable_messages_survive_when_staging_pages_are_of_any_age(
    tmp_path: Path, seed: int, lost: str
) -> None:
    """As after a file system was shut down and mounted again within one boot of the machine."""
    bench = Bench(tmp_path / "s", small(flush="sync"))
    ages = [staging_pages(bench.root)]
    for k in range(60):
        bench.store.put("t", b"%02d" % k + bytes(200 * (k % 7)))
        if k % 9 == seed:
            ages.append(staging_pages(bench.root))
    root = copied(bench)
    abandon(bench.store)
    mixed = b"".join(ages[(7 * at + seed) % len(ages)][at] for at in range(len(ages[0])))
    (root / "timerstore" / "staging").write_bytes(mixed)
    if lost:
        (root / lost).unlink()
    other = reopened(root, bench)
    assert [body[:2] for body in other.bodies()] == [b"%02d" % k for k in range(60)]
    other.close()


def test_async_messages_survive_a_kill_and_an_orderly_reboot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orderly reboot writes the staging file back; nothing else of the old boot is needed."""
    bench = Bench(tmp_path / "s")
    for k in range(50):
        bench.store.put("t", b"%d" % k, flush="async")
    root = copied(bench)
    abandon(bench.store)
    real = Path.read_text

    def other_boot(path: Path, *given: Any, **named: Any) -> str:
        assert path.name != "boot_id", "recovery must not depend on the boot"
        return real(path, *given, **named)

    monkeypatch.setattr(Path, "read_text", other_boot)
    other = reopened(root, bench)
    assert len(other.bodies()) == 50
    other.close()


def test_a_staged_piece_that_differs_from_the_log_is_ignored(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s")
    bench.store.put("t", b"first", flush="sync")
    before = (bench.root / "timerstore" / "staging").read_bytes()
    bench.store.put("t", b"second", flush="sync")
    root = copied(bench)
    abandon(bench.store)
    raw = bytearray(before)
    piece = raw.index(b"first")
    raw[piece : piece + 5] = b"other"
    (root / "timerstore" / "staging").write_bytes(raw)
    other = reopened(root, bench)
    assert other.bodies() == [b"first", b"second"]
    other.close()


def test_a_staged_piece_with_a_torn_record_gives_the_records_before_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s")
    for k in range(5):
        bench.store.put("t", b"body-%d" % k)
    root = copied(bench)
    abandon(bench.store)
    path = root / "timerstore" / "staging"
    raw = bytearray(path.read_bytes())
    at = raw.index(b"body-3")
    raw[at + 6 : at + 60] = bytes(54)
    path.write_bytes(raw)
    other = reopened(root, bench)
    assert other.bodies() == [b"body-0", b"body-1", b"body-2"]
    other.store.put("t", b"next")
    other.turn()
    assert other.bodies()[-1] == b"next"
    other.close()


def test_opening_syncs_an_empty_staging_file_before_anything_is_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut could bring back records of an earlier owner at the same offsets."""
    bench = Bench(tmp_path / "s")
    bench.store.put("t", b"of the first owner")
    root = copied(bench)
    abandon(bench.store)
    synced: list[bytes] = []
    real = File.sync

    def sync(file: File) -> None:
        real(file)
        if file.path.name == "staging":
            synced.append(file.path.read_bytes())

    monkeypatch.setattr(File, "sync", sync)
    other = reopened(root, bench)
    assert [raw.strip(b"\0") for raw in synced] == [b""]
    other.close()


# --- bytes that a failed sync left in the page cache ----------------------------------------------


def written_pages(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[], None]
) -> set[int]:
    """Return the pages of a file that are written and then synced in a call."""
    found: set[int] = set()
    synced: set[int] = set()
    write, sync = File.write, File.sync

    def noted(file: File, data: Any, offset: int) -> None:
        write(file, data, offset)
        if file.path == path:
            size = len(memoryview(data).cast("B"))
            found.update(range(offset // PAGE, (offset + size + PAGE - 1) // PAGE))

    def noted_sync(file: File) -> None:
        sync(file)
        if file.path == path:
            synced.update(found)

    with monkeypatch.context() as patched:
        patched.setattr(File, "write", noted)
        patched.setattr(File, "sync", noted_sync)
        call()
    return synced


@pytest.mark.parametrize(
    "lost", ["", "timerstore/state", "timerstore/counts", "timerstore/watermark", "timerwheel"]
)
def test_recovery_writes_and_syncs_again_what_is_past_the_durable_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    bench = Bench(tmp_path / "s", small(staging_bytes=4096))
    bench.store.put("t", b"durable")
    bench.store.flush()
    for _ in range(20):
        bench.store.put("t", bytes(1000))
    inside(bench.store).log.write_out()  # in the page cache only
    end = inside(bench.store).log.end
    root = copied(bench)
    abandon(bench.store)
    if lost:
        (root / lost).unlink()

    def open_it() -> None:
        bench.store = reopened(root, bench).store

    pages = written_pages(root / "commitlog" / f"{0:020}", monkeypatch, open_it)
    assert pages >= set(range(1, (end + PAGE - 1) // PAGE))
    bench.store.close()


def test_recovery_writes_and_syncs_the_watermark_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "s")
    bench.store.put("t", b"x")
    bench.store.flush()
    root = copied(bench)
    abandon(bench.store)
    path = root / "timerstore" / "watermark"
    at_points: dict[str, int] = {}
    pages: list[int] = []
    write = File.write

    def noted(file: File, data: Any, offset: int) -> None:
        write(file, data, offset)
        if file.path == path:
            pages.append(offset)

    with monkeypatch.context() as patched:
        patched.setattr(File, "write", noted)
        patched.setattr(failpoints, "hook", lambda name: at_points.setdefault(name, len(pages)))
        other = reopened(root, bench)
    assert at_points["recover_marked_open"] == 1
    other.close()


# --- damage ---------------------------------------------------------------------------------------


def filled(tmp_path: Path, count: int = 40) -> tuple[Bench, list[int]]:
    """Return a store without a checkpoint since its opening, and where its records are."""
    bench = Bench(tmp_path / "s", small(commit_log_segment_bytes=SEGMENT, flush="sync"))
    receipts = [bench.store.put("t", b"%03d" % k + b"z" * 1500) for k in range(count)]
    return bench, [one.log_offset for one in receipts]


@pytest.mark.parametrize("which", [0, 1, 17, 30, 38])
@pytest.mark.parametrize("lost", ["", "timerstore/state", "timerstore/watermark"])
def test_damage_below_the_synced_end_is_corrupt_error_after_a_kill(
    tmp_path: Path, which: int, lost: str
) -> None:
    bench, offsets = filled(tmp_path)
    root = copied(bench)
    abandon(bench.store)
    if lost:
        (root / lost).unlink()
    damage(root, offsets[which] + 200)
    names = sorted(path.name for path in (root / "commitlog").iterdir())
    file = f"{offsets[which] // SEGMENT * SEGMENT:020} offset {offsets[which]}"
    with pytest.raises(CorruptError, match=f"damaged.*{file}.*durable"):
        Bench(root, small(commit_log_segment_bytes=SEGMENT), bench.clock.now_ms)
    assert sorted(path.name for path in (root / "commitlog").iterdir()) == names
    report = timerstore.verify_directory(root)
    assert not report.clean
    timerstore.repair(root, tmp_path / "repaired")
    other = reopened(tmp_path / "repaired", bench, commit_log_segment_bytes=SEGMENT)
    kept = [body[:3] for body in other.bodies() if body.strip(b"\0")]
    assert kept == [b"%03d" % k for k in range(40) if k != which]
    other.close()


def test_damage_in_the_last_record_is_a_torn_tail_without_a_staging_file(tmp_path: Path) -> None:
    """Then nothing says that the record was durable."""
    bench, offsets = filled(tmp_path, 3)
    root = copied(bench)
    staged = read_staged(Disk(), root / "timerstore" / "staging")
    assert staged.durable_end == inside(bench.store).log.end
    abandon(bench.store)
    (root / "timerstore" / "staging").unlink()
    damage(root, offsets[2] + 200)
    other = reopened(root, bench, commit_log_segment_bytes=SEGMENT)
    assert len(other.bodies()) == 2
    other.close()


def test_a_staging_head_with_damage_claims_no_durable_end(tmp_path: Path) -> None:
    bench, _ = filled(tmp_path, 3)
    root = copied(bench)
    abandon(bench.store)
    path = root / "timerstore" / "staging"
    raw = bytearray(path.read_bytes())
    raw[69] ^= 0x10
    path.write_bytes(raw)
    assert read_staged(Disk(), path).durable_end == 0
    other = reopened(root, bench, commit_log_segment_bytes=SEGMENT)
    assert len(other.bodies()) == 3
    other.close()


def test_opening_warns_when_readable_records_follow_the_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench, offsets = filled(tmp_path)
    root = copied(bench)
    abandon(bench.store)
    (root / "timerstore" / "staging").unlink()  # as after a power cut that lost all of it
    damage(root, offsets[30] + 200)
    with caplog.at_level(logging.WARNING, "timerstore.recovery"):
        other = reopened(root, bench, commit_log_segment_bytes=SEGMENT)
    assert len(other.bodies()) == 30
    [record] = caplog.records
    assert f"offset {offsets[30]}" in record.getMessage()
    assert f"log offset {offsets[31]}" in record.getMessage()
    other.close()


def test_opening_does_not_warn_when_zeros_follow_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench, _ = filled(tmp_path)
    root = copied(bench)
    abandon(bench.store)
    with caplog.at_level(logging.WARNING, "timerstore.recovery"):
        reopened(root, bench, commit_log_segment_bytes=SEGMENT).close()
    assert not caplog.records
