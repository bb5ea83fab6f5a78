"""The ledger of complete versions, and its side file."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench, small
from tests.support.driver import abandon
from tests.support.ingesting import StopError, batch_of, numbered, stop_at
from tests.support.inside import INGEST_CHUNK_ROWS, LEDGER_BEHIND_MAX, inside, subscribe_first
from timerstore import MessageError
from timerstore._engine.base import failpoints
from timerstore._engine.format.ledger_json import ChunkHeader
from timerstore._engine.write.ledger import DONE_KEPT, Ledger
from timerstore.errors import FailedError


def test_old_version_counts_only_when_it_is_durable() -> None:
    ledger = Ledger()

    def complete(version: int, end: int) -> None:
        ledger.note(ChunkHeader("s", version, 0, 7, 7, 70, 1, True), end)

    for version in range(1, DONE_KEPT + 50):
        complete(version, version)
    complete(0, 1000)
    complete_before = ledger.ingested("s", 999)
    assert 0 not in complete_before
    assert complete_before.partial == {0: 7}
    assert all(version in complete_before for version in range(1, DONE_KEPT + 50))
    assert 0 in ledger.ingested("s", 1000)
    complete(DONE_KEPT + 50, 1001)
    assert len(ledger.state("s").done) == DONE_KEPT
    assert 0 in ledger.ingested("s", 1000)


def test_version_that_is_not_durable_is_not_complete(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = inside(bench.store).log
    monkeypatch.setattr(log.segments, "sync", lambda: (_ for _ in ()).throw(FailedError("no")))
    with pytest.raises(FailedError):
        bench.store.ingest("s", 0, [batch_of([b"a"])])
    found = bench.store.ingested("s")
    assert (found.ranges, found.partial) == ((), {0: 1})


@pytest.mark.usefixtures("chunks_of_five")
@pytest.mark.parametrize("damage", ["", "lost", "garbage", "older", "of another log", "flipped"])
def test_ledger_equals_the_log_when_its_file_is_damaged(bench: Bench, damage: str) -> None:
    path = bench.root / "timerstore" / "ingest"
    bench.store.ingest("a", 0, [batch_of(numbered(0, 12))])
    bench.store.ingest("b", 5, [batch_of(numbered(12, 14))])
    bench.reopen()
    older = path.read_bytes()
    bench.store.ingest("a", 2, [batch_of(numbered(14, 30))])
    stop_at("ingest_chunk_appended", 2)
    with pytest.raises(StopError):
        bench.store.ingest("a", 3, [batch_of(numbered(30, 47))])
    failpoints.hook = None
    bench.close()
    whole = path.read_bytes()
    assert whole != older
    if damage == "lost":
        path.unlink()
    elif damage == "garbage":
        path.write_bytes(b"{}")
    elif damage == "older":
        path.write_bytes(older)
    elif damage == "of another log":
        other = Bench(bench.root.with_name("other"))
        other.store.ingest("a", 77, [batch_of(numbered(0, 99))])
        other.close()
        path.write_bytes((other.root / "timerstore" / "ingest").read_bytes())
    elif damage == "flipped":
        path.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])
    bench.open()
    assert bench.store.ingested("a").ranges == (range(1), range(2, 3))
    assert bench.store.ingested("a").partial == {3: 10}
    assert bench.store.ingested("b").ranges == (range(5, 6),)
    for version, begin, end in ((0, 0, 12), (2, 14, 30)):
        with bench.refused(MessageError, "other rows"):
            bench.store.ingest("a", version, [batch_of(numbered(begin, end - 1))])
    assert bench.store.ingest("a", 3, [batch_of(numbered(30, 47))]) == ("a", 3, 17, False)
    bench.turn()
    assert bench.bodies() == numbered(0, 47)


def test_ledger_file_has_only_durable_chunks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a checkpoint during an ingest, the file has only the chunks below it."""
    monkeypatch.setattr(*LEDGER_BEHIND_MAX, 0)
    monkeypatch.setattr(*INGEST_CHUNK_ROWS, 5)
    path = bench.root / "timerstore" / "ingest"

    def batches() -> Any:
        yield batch_of(numbered(0, 5))
        yield batch_of(numbered(5, 10))
        inside(bench.store).checkpoint.run()
        yield batch_of(numbered(10, 15))
        found = json.loads(path.read_bytes().partition(b"\n")[2])
        assert [one[2] for one in found["sources"][0]["open"]] == [5], (
            "the last piece is appended only after the next one is known"
        )

    bench.store.ingest("s", 0, batches())


@pytest.mark.parametrize("visibility", ["durable", "written"])
def test_ledger_cache_names_only_durable_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visibility: str
) -> None:
    """A checkpoint completes while a version is appended but not synced.

    A power cut removes that version, and another version takes its place in queue and log.
    """
    monkeypatch.setattr(*LEDGER_BEHIND_MAX, 0)
    bench = Bench(tmp_path / "store", small(visibility=visibility))
    bench.store.ingest("a", 0, [batch_of(numbered(0, 3))])
    platter = tmp_path / "platter"

    def ingest_without_sync() -> None:
        shutil.copytree(bench.root, platter)
        stop_at("ingest_appended", 1)
        with pytest.raises(StopError):
            bench.store.ingest("a", 1, [batch_of(numbered(3, 6))])
        failpoints.hook = None
        bench.stepper.step("dispatch")

    checkpoint = inside(bench.store).checkpoint
    completed = inside(bench.store).signals.checkpoint_completed
    subscribe_first(completed, ingest_without_sync)  # before the ledger is saved
    checkpoint.run()
    saved = (bench.root / "timerstore" / "ingest").read_bytes()
    abandon(bench.store)

    (platter / "timerstore" / "ingest").write_bytes(saved)
    bench = Bench(platter, small(visibility=visibility))
    assert bench.store.ingested("a").ranges == (range(1),)
    assert not bench.store.ingest("b", 1, [batch_of(numbered(6, 9))]).is_replay
    bench.reopen()
    assert bench.store.ingested("a").ranges == (range(1),)
    assert bench.store.ingest("b", 1, [batch_of(numbered(6, 9))]).is_replay
    assert not bench.store.ingest("a", 1, [batch_of(numbered(3, 6))]).is_replay
    bench.turn()
    assert sorted(bench.bodies()) == numbered(0, 9)
    bench.close()


@pytest.mark.parametrize("visibility", ["durable", "written"])
def test_ledger_cache_is_removed_when_it_does_not_fit_the_queue(
    tmp_path: Path, visibility: str
) -> None:
    """A file that is ahead of the log must not fit when the log has grown to its place."""
    bench = Bench(tmp_path / "store", small(visibility=visibility))
    bench.store.ingest("a", 0, [batch_of(numbered(0, 3))])
    bench.close()
    older = tmp_path / "older"
    shutil.copytree(bench.root, older)
    bench.open()
    bench.store.ingest("a", 1, [batch_of(numbered(3, 6))])
    bench.close()
    path = older / "timerstore" / "ingest"
    path.write_bytes((bench.root / "timerstore" / "ingest").read_bytes())

    bench = Bench(older, small(visibility=visibility))
    assert not path.exists()
    bench.store.ingest("b", 1, [batch_of(numbered(6, 9))])
    bench.reopen()
    assert bench.store.ingested("a").ranges == (range(1),)
    assert bench.store.ingested("b").ranges == (range(1, 2),)
    assert path.exists()
    bench.close()


def test_interrupted_ingest_leaves_other_sources_versions_not_durable(bench: Bench) -> None:
    """The next ingest of a source reads the log after an interrupted append.

    A version of another source that is appended by then, but not synced, must not count as durable.
    """
    bench.store.close()
    bench.config = small(visibility="written")
    bench.open()
    stop_at("ingest_chunk_appended", 1)
    with pytest.raises(StopError):
        bench.store.ingest("a", 0, [batch_of(numbered(0, 3))])
    failpoints.hook = None
    log = inside(bench.store).log

    def other(name: str) -> None:
        if name == "log_synced":  # while the log is read
            stop_at("ingest_chunk_appended", 1)
            with pytest.raises(StopError):
                bench.store.ingest("b", 0, [batch_of(numbered(3, 6))])
            failpoints.hook = stop_at_append
            bench.stepper.step("dispatch")

    def stop_at_append(name: str) -> None:
        if name == "ingest_appended":
            raise StopError

    failpoints.hook = other
    with pytest.raises(StopError):
        bench.store.ingest("a", 1, [batch_of(numbered(6, 9))])
    failpoints.hook = None
    assert log.durable < log.end
    assert bench.store.ingested("b").ranges == ()
    assert bench.store.ingest("b", 0, [batch_of(numbered(3, 6))]).is_replay
    assert bench.store.ingested("b").ranges == (range(1),)


def test_old_versions_are_complete_without_details(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from timerstore._engine.write import ledger

    monkeypatch.setattr(ledger, "DONE_KEPT", 3)
    for version in range(8):
        bench.store.ingest("s", version, [batch_of(numbered(version, version + 1))])
    for _ in range(2):
        assert bench.store.ingested("s").ranges == (range(8),)
        with bench.refused(MessageError, "other rows"):
            bench.store.ingest("s", 5, [batch_of([b"x"])])
        # Of older versions only their completeness is known.
        assert bench.store.ingest("s", 4, [batch_of([b"x"])]) == ("s", 4, 1, True)
        bench.reopen()
    bench.turn()
    assert bench.bodies() == numbered(0, 8)
