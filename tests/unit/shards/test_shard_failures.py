"""A failure in one shard or source affects no other."""

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

import timerstore  # noqa: E402
from tests.support.bench import NOW  # noqa: E402
from tests.support.inside import consumer_pull, ingesters_of, shard_consumers  # noqa: E402
from tests.support.shards import ShardBench  # noqa: E402
from tests.support.staging import batch_of, make_root  # noqa: E402
from timerstore import ConfigError, CorruptError, FailedError, MessageError  # noqa: E402
from timerstore._engine.storage.disk import Disk  # noqa: E402
from timerstore.errors import TimerStoreError  # noqa: E402
from timerstore.shards import (  # noqa: E402
    clean,
    commit,
    committing,
    ingest,
    manifest,
    parse_options,
    prune,
    stage,
)
from timerstore.shards.shard_ingest import IngestService  # noqa: E402
from timerstore.shards.staged_files import open_staged, read_staged  # noqa: E402
from timerstore.testing import ManualClock  # noqa: E402

FEATURES = Path(timerstore.__file__).parent / "docs" / "features.md"


def write(root: Path | str, version: int = 0, source: str = "s") -> Any:
    part = stage(root, source, version, f"a{version}", [batch_of(30)], clock=ManualClock(NOW))
    return commit(root, source, version, [part])


# --- reading --------------------------------------------------------------------------------------


def test_poll_loses_no_message_when_one_shard_fails(
    shards: ShardBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(30):
        shards.store.put("t", b"%d" % k, keys=f"k{k}")
    shards.turn()
    wanted = shards.counted()
    consumer = shards.store.consumer("t", "g")
    pulling = consumer_pull(shard_consumers(consumer)[1])

    def broken(*_: Any, **__: Any) -> Any:
        raise CorruptError("the disk said so")

    got: list[Any] = []
    errors = 0
    with monkeypatch.context() as patched:
        patched.setattr(*pulling, broken)
        for _ in range(6):
            try:
                got += consumer.poll(100)
            except CorruptError:
                errors += 1
        assert errors >= 1, "what is broken is said"
        assert {one.shard for one in got} == {0, 2}, "it does not keep the others waiting"
        consumer.commit()
    while more := consumer.poll(100):
        got += more
    assert sorted(one.body for one in got) == sorted(wanted.elements())
    consumer.close()


# --- ingest ---------------------------------------------------------------------------------------


def test_long_ingest_delays_no_other_call(
    shards: ShardBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Barrier(4), threading.Event()
    for one in ingesters_of(shards.store):

        def run(_now_ms: int, _committed: object) -> list[Any]:
            begun.wait(60)
            assert go_on.wait(60)
            return []

        monkeypatch.setattr(one, "run", run)
    ingesting = threading.Thread(target=shards.store.ingest)
    ingesting.start()
    begun.wait(60)
    asked = threading.Thread(target=shards.store.stats)
    asked.start()
    asked.join(10)
    is_stuck = asked.is_alive()
    go_on.set()
    ingesting.join()
    asked.join()
    assert not is_stuck


@pytest.mark.parametrize("error", [OSError(5, "I/O error"), MemoryError()])
def test_ingest_service_continues_after_any_error(error: Exception) -> None:
    outcomes: list[Exception | None] = [error, error, FailedError("known"), None]

    def look() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    service = IngestService(look, 1.0)
    waits = []
    for wanted in (repr(error), repr(error), "known", ""):
        service.step()
        assert wanted in service.error
        assert bool(wanted) == bool(service.error)
        waits.append(service.idle_s())
    assert waits == [2.0, 4.0, 1.0, 1.0]


def test_unexpected_error_delays_only_its_source(
    shards: ShardBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in ("a", "b", "c"):
        write(shards.root, source=source)
    original = manifest.load

    def load(disk: Any, tree: Any, source: str, version: int) -> Any:
        if source == "b":
            raise OSError(5, "I/O error")
        return original(disk, tree, source, version)

    monkeypatch.setattr(manifest, "load", load)
    with pytest.raises(OSError, match="I/O"):
        shards.store.ingest()
    for store in shards.store.stores:
        assert [0 in store.ingested(source) for source in "abc"] == [True, False, True]


def test_stray_names_are_logged_once_and_ignored(
    shards: ShardBench, caplog: pytest.LogCaptureFixture
) -> None:
    write(shards.root)
    manifests, staging = (shards.root / "_ingest" / name for name in ("manifests", "staging"))
    strays = [manifests / ".nfs0001", manifests / "notes"]
    for path in (*strays, staging / ".nfs0002", staging / "s" / "notes"):
        path.write_bytes(b"")
    (manifests / "no.source").mkdir()
    strays.append(manifests / "no.source")
    for _ in range(3):
        shards.store.ingest()
    assert all(0 in store.ingested("s") for store in shards.store.stores)
    for path in strays:
        told = [one for one in caplog.records if f"path={path}" in one.getMessage()]
        assert len(told) == shards.n  # each shard has its own ingester
    assert clean(shards.root, old_ms=0) == []
    assert prune(shards.root, lambda *_: True, old_ms=0) == 0


# --- folders that go while they are made ----------------------------------------------------------


@pytest.mark.parametrize("when", ["between two", "before the sync"])
def test_folder_removed_during_creation_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    made: list[Path] = []
    mkdir = os.mkdir

    def slow(name: str, mode: int, *, dir_fd: int | None = None) -> None:
        assert dir_fd is None
        path = Path(name)
        if when == "between two" and len(made) in (1, 3):
            made[-1].rmdir()  # as a process that finds it empty
        made.append(path)
        mkdir(path, mode)
        if when == "before the sync" and len(made) == 2:
            path.rmdir()
            path.parent.rmdir()

    monkeypatch.setattr(os, "mkdir", slow)
    Disk().make_directory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert len(made) > 3


def test_error_is_raised_when_folder_cannot_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(path: str, _mode: int, *, dir_fd: int | None = None) -> None:
        raise FileNotFoundError(2, f"No such file ({dir_fd})", path)

    monkeypatch.setattr(os, "mkdir", gone)
    with pytest.raises(FailedError, match="make directory"):
        Disk().make_directory(tmp_path / "a" / "b")


# --- staged files that change ---------------------------------------------------------------------


def test_read_staged_reports_file_cut_during_read(tmp_path: Path) -> None:
    root = make_root(tmp_path / "s", 1)
    big = [batch_of(2000, body=pa.array([b"x" * 1000] * 2000), topic=["t", "u"] * 1000)]
    part = stage(root, "s", 0, "a", big, clock=ManualClock(NOW))
    [file] = part.files
    reader = open_staged(Disk(), root, file)
    assert reader.num_record_batches == 2
    batches = read_staged(Disk(), root, part.files)
    first = next(batches)
    os.truncate(root / file.path, 4096)
    assert bytes(first.bodies[:1000]) == b"x" * 1000, "what was given stays"
    with pytest.raises(TimerStoreError, match=re.escape(file.path)):
        list(batches)
    with pytest.raises(TimerStoreError, match="staged file"):
        open_staged(Disk(), root, file)


# --- arguments ------------------------------------------------------------------------------------


def test_sharding_snippets_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = FEATURES.read_text().split("\n## Sharding\n")[1].split("\n## ")[0]
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) >= 2
    monkeypatch.chdir(tmp_path)
    given = {"timerstore": timerstore, "record_batches": [batch_of(7)]}
    for snippet in snippets:
        exec(compile(snippet, "features.md", "exec"), given)
    root = "orders.shards"
    part = stage(root, "import-8", 0, "part-0", [batch_of(7)])
    assert part.row_count == 7
    given["shards"].abort(root, [part])
    assert list(committing.quarantined(root, "import-7", 0)) == []
    with timerstore.open_shards(root) as store:
        assert sum(0 in one.ingested("import-7") for one in store.stores) == 4


_WRONG: list[tuple[str, Callable[[Path], Any]]] = [
    ("attempt: wanted", lambda root: stage(root, "s", 0, 5, [])),  # type: ignore[arg-type]
    ("RecordBatches, got a dict", lambda root: stage(root, "s", 0, "a", [{"topic": "t"}])),
    ("RecordBatches, got 5", lambda root: stage(root, "s", 0, "a", 5)),  # type: ignore[arg-type]
    (
        "columns: wanted those of the first batch, topic string.*got body binary",
        lambda root: stage(root, "s", 0, "a", [batch_of(2), batch_of(2, topic=[])]),
    ),
    ("ingest_every: wanted", lambda root: timerstore.open_shards(root, ingest_every="x")),  # type: ignore[arg-type]
    ("ingest_every: wanted", lambda root: timerstore.open_shards(root, ingest_every=True)),
    ("path: wanted", lambda _: timerstore.open_shards(None)),  # type: ignore[arg-type]
    ("path: wanted", lambda _: timerstore.open_shards(5, 2)),  # type: ignore[arg-type]
    ("old_ms: wanted", lambda root: clean(root, old_ms="x")),  # type: ignore[arg-type]
    ("old_ms: wanted", lambda root: clean(root, old_ms=True)),
    ("old_ms: wanted", lambda root: prune(root, lambda *_: True, old_ms=None)),  # type: ignore[arg-type]
    ("not a directory of shards", lambda root: clean(root / "nowhere")),
    ("not a directory of shards", lambda root: prune(root / "nowhere", lambda *_: True)),
    ("not a directory of shards", lambda root: ingest(root / "nowhere")),
    ("option topic: wanted text, got None", lambda _: parse_options({"topic": None})),
]


@pytest.mark.parametrize(("text", "call"), _WRONG)
def test_invalid_arguments_are_reported(
    tmp_path: Path, text: str, call: Callable[[Path], Any]
) -> None:
    root = make_root(tmp_path / "s")
    with pytest.raises((ConfigError, MessageError), match=text):
        call(root)


def test_shard_of_rejects_key_that_is_no_text(shards: ShardBench) -> None:
    with pytest.raises(MessageError, match="key: wanted text, got int"):
        shards.store.shard_of(5)  # type: ignore[arg-type]
