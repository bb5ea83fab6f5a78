"""How far a store is read, and that visible messages stay visible."""

import gc
import shutil
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import NOW, Bench, small
from tests.support.broker import resent as sent_on
from tests.support.inside import (
    SNAPSHOT_LIMITS,
    SYNC_INTERVAL_NS,
    TAIL_UNITS_MAX,
    distrusted_version,
    followed_position_of,
    is_time_to_sync,
    log_at_position,
    position_steps,
    queue_files,
    units_in_memory,
    view_of,
)
from tests.support.reader_and_owner import fill, same, trace
from timerstore import (
    CorruptError,
    FailedError,
    ReadOnlyStore,
)
from timerstore._engine.storage.disk import File
from timerstore.testing import ManualClock


def _killed(bench: Bench, copy: Path) -> None:
    """Copy a store as a kill would leave it, without `lock`, which no process holds then."""
    shutil.copytree(bench.root, copy)


def test_position_reaches_log_end_when_owner_was_killed(bench: Bench, tmp_path: Path) -> None:
    fill(bench)
    bench.store.put("t", b"behind the checkpoint", flush="sync")
    waits = bench.store.put("t", b"waits behind it", delay=100, keys=("late",), flush="sync")
    bench.store.cancel(waits)
    bench.store.put("new", b"of a new topic", flush="sync")
    _killed(bench, tmp_path / "killed")
    before = trace(tmp_path / "killed")
    with timerstore.open(
        tmp_path / "killed", bench.config, clock=bench.clock, read_only=True
    ) as one:
        assert one.stats()["log_end_bytes"] > 0
        bodies = [message.body for message in one.pull("t", 0, 0).messages]
        assert bodies[-1] == b"behind the checkpoint"
        assert [message.body for message in one.pull("new", 0, 0).messages] == [b"of a new topic"]
        assert one.query("t", "late") == []
        assert list(one.pending()) == list(bench.store.pending())
        assert one.explain(waits).state == "cancelled"
    assert trace(tmp_path / "killed") == before


def test_ingested_has_versions_past_checkpoint_when_owner_was_killed(
    bench: Bench, tmp_path: Path
) -> None:
    for version in (0, 1):
        bench.store.ingest("source", version, [timerstore.RowBatch("t", b"ab", [0, 1, 2], [0, 0])])
        bench.turn()
        if version == 0:
            bench.store.flush()
    _killed(bench, tmp_path / "killed")
    with timerstore.open(tmp_path / "killed", bench.config, read_only=True) as one:
        assert one.ingested("source").ranges == bench.store.ingested("source").ranges


def test_position_excludes_half_a_group(bench: Bench, tmp_path: Path) -> None:
    bench.store.put("t", b"first", flush="sync")
    bench.turn()
    bench.store.flush()
    end = bench.store.stats()["log_end_bytes"]
    bench.store.put_many("t", [b"a" * 100, b"b" * 100], atomic=True, flush="sync")
    whole = bench.store.stats()["log_end_bytes"]
    _killed(bench, tmp_path / "killed")
    log = tmp_path / "killed" / "commitlog" / ("0" * 20)
    with timerstore.open(tmp_path / "killed", bench.config, read_only=True) as one:
        assert one.stats()["log_end_bytes"] == whole
        assert len(one.pull("t", 0, 0).messages) == 3
    data = log.read_bytes()
    log.write_bytes(data.replace(b"b" * 100, b"b" * 99 + b"c"))
    with timerstore.open(tmp_path / "killed", bench.config, read_only=True) as one:
        assert one.stats()["log_end_bytes"] == end
        assert [message.body for message in one.pull("t", 0, 0).messages] == [b"first"]


def test_position_ends_at_checkpoint_when_owner_is_live(bench: Bench, read: ReadOnlyStore) -> None:
    known = len(read.pull("t", 0, 0).messages)
    bench.store.put("t", b"more", flush="sync")
    bench.stepper.step("dispatch")
    assert len(read.pull("t", 0, 0).messages) == known
    bench.store.flush()
    assert len(read.pull("t", 0, 0).messages) == known + 1


@pytest.mark.parametrize("is_same_folder", [True, False])
def test_position_fails_when_another_store_has_the_name(bench: Bench, is_same_folder: bool) -> None:
    fill(bench)
    bench.close()
    with timerstore.open(bench.root, bench.config, read_only=True) as one:
        shutil.rmtree(bench.root, onerror=lambda *_: None) if not is_same_folder else None
        for path in bench.root.iterdir() if is_same_folder else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        bench.open()
        bench.store.put("t", b"other")
        bench.store.flush()
        with pytest.raises(timerstore.FailedError, match="another"):
            one.pull("t", 0, 0)


@pytest.mark.parametrize("is_held", [True, False])
def test_position_follows_broker(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    """A broker appended records to a clean store and left no watermark: the log decides."""
    if is_held:
        monkeypatch.setattr("timerstore._engine.snapshot.position.owner_pid", lambda *_: 1)
    copy, log = tmp_path / "copy", "commitlog/" + "0" * 20
    fill(bench)
    bench.close()
    shutil.copytree(bench.root, copy)
    with timerstore.open(copy, bench.config, clock=bench.clock, read_only=True) as one:
        known = one.stats()["log_end_bytes"]
        bench.open()
        more = bench.store.put("t", b"more", keys=("more",))
        late = bench.store.put("u", b"late", delay=100)
        bench.turn(63_000)
        told = [list(bench.store.pending()), bench.out("t")]
        bench.close()
        (copy / log).write_bytes((bench.root / log).read_bytes())
        assert [list(one.pending()), list(one.pull("t", 0, 0).messages)] == told
        assert one.stats()["log_end_bytes"] > known
        assert [each.body for each in one.query("t", "more")] == [b"more"]
        assert (one.explain(more).state, one.explain(late).state) == ("delivered", "pending")
        bench.open()


def test_position_syncs_open_log_of_broker_at_intervals(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bench)
    for name in ("watermark", "counts", "state"):
        (bench.root / "timerstore" / name).rename(bench.root.parent / name)
    with timerstore.open(bench.root, bench.config, read_only=True) as one:
        monkeypatch.setattr("timerstore._engine.snapshot.position.owner_pid", lambda *_: 1)
        followed = followed_position_of(view_of(one))
        assert followed.last.mark is None
        assert is_time_to_sync(followed)
        assert not is_time_to_sync(followed)
        monkeypatch.setattr(*SYNC_INTERVAL_NS, 0)
        assert is_time_to_sync(followed)
    for name in ("watermark", "counts", "state"):
        (bench.root.parent / name).rename(bench.root / "timerstore" / name)


@pytest.mark.parametrize("old_limits", [1, 4, 5])
def test_open_reads_again_when_the_owner_removes_files_during_it(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old_limits: int
) -> None:
    fill(bench)
    _killed(bench, tmp_path / "s")
    (tmp_path / "s" / "timerstore" / "watermark").unlink()  # an owner rebuilds the timer log
    limits = SNAPSHOT_LIMITS.value
    timer_logs = []

    def limits_then_remove(root: Path, config: Any, log: Any, timer_log: Any) -> Any:
        timer_logs.append(timer_log)
        for file in (root / "timerlog").iterdir():
            file.unlink()
        return limits(root, config, log, timer_logs[0 if len(timer_logs) <= old_limits else -1])

    monkeypatch.setattr(*SNAPSHOT_LIMITS, limits_then_remove)
    if old_limits == 5:
        with pytest.raises(CorruptError, match="a segment is missing"):
            timerstore.open(tmp_path / "s", bench.config, read_only=True)
    else:
        with timerstore.open(tmp_path / "s", bench.config, read_only=True) as one:
            assert one.pull("t", 0, 0) == bench.store.pull("t", 0, 0)
    assert len(timer_logs) == min(old_limits + 1, 5)


def test_read_only_store_does_not_lock_out_owner(bench: Bench) -> None:
    with timerstore.open(bench.root, bench.config, read_only=True) as one:
        bench.close()
        bench.open()
        bench.store.put("t", b"x")
        bench.turn()
        bench.store.flush()
        assert [message.body for message in one.follow("t")] == [b"x"]


def test_position_excludes_records_that_cannot_be_synced(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.store.put("t", b"first")
    bench.turn()
    bench.store.flush()
    bench.store.put("t", b"behind", flush="sync")
    _killed(bench, tmp_path / "killed")
    synced: list[str] = []

    def failing(file: File) -> None:
        synced.append(file.path.name)
        raise FailedError("sync", where=file.path)

    with timerstore.open(tmp_path / "killed", bench.config, read_only=True) as one:
        with monkeypatch.context() as patched:
            patched.setattr(File, "sync", failing)
            assert [message.body for message in one.follow("t")] == [b"first"]
        assert synced[0] == "0" * 20
        assert [message.body for message in one.follow("t")] == [b"first", b"behind"]


def test_position_fails_when_a_copy_has_the_name(bench: Bench, tmp_path: Path) -> None:
    fill(bench)
    bench.close()
    shutil.copytree(bench.root, tmp_path / "copy")
    with timerstore.open(bench.root, bench.config, read_only=True) as one:
        one.pull("t", 0, 0)
        bench.root.rename(tmp_path / "before")
        (tmp_path / "copy").rename(bench.root)
        with pytest.raises(FailedError, match=f"replaced.*{bench.root}"):
            one.pull("t", 0, 0)
    bench.open()


def _held(folder: Path) -> tuple[int, int]:
    """Descriptors and maps that this process has of a folder."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    files = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
    return sum(file.is_relative_to(folder) for file in files), sum(
        str(folder) in line and "/commitlog/" in line for line in maps
    )


def test_repeated_reads_keep_no_file_open(bench: Bench, tmp_path: Path) -> None:
    fill(bench)
    bench.store.put("t", b"behind", flush="sync")
    _killed(bench, tmp_path / "killed")
    before = _held(tmp_path)
    with timerstore.open(tmp_path / "killed", bench.config, read_only=True) as one:
        one.pull("t", 0, 0)
        list(one.pending())
        gc.disable()
        try:
            held = _held(tmp_path)
            for _ in range(100):
                one.pull("t", 0, 0)
                one.pull("t", 0, 100)
                list(one.pending())
            assert _held(tmp_path) == held
        finally:
            gc.enable()
    del one
    gc.collect()
    assert _held(tmp_path) == before


def test_position_follows_retention_of_broker(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(commit_log_segment_bytes=64 * 1024, message_bytes_max=9000))
    for k in range(30):
        bench.store.put("t", b"%02d" % k + bytes(8000), queue_id=0)
    bench.turn()
    bench.close()
    shutil.rmtree(bench.root / "timerstore")
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        view = view_of(one)
        assert one.pull("t", 0, 0).min_offset == 0
        for gone in (0, 1):
            view.log.segments.close()
            (bench.root / "commitlog" / f"{gone * 65536:020}").unlink()
            begin = one.pull("t", 0, 0).next_offset
            assert [message.body[:2] for message in one.follow("t")] == [
                b"%02d" % k for k in range(begin, 30)
            ]
            assert begin > 0
            assert one.stats()["log_begin_bytes"] == (gone + 1) * 65536
        assert distrusted_version(view) is None
        (bench.root / "commitlog" / f"{2 * 65536:020}").unlink()
        synced = log_at_position(view)
        synced.sync_range(0, view.position.log_end)  # a removed file needs none
        synced.close()


def test_open_fails_when_log_of_broker_cannot_be_synced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.store.put("t", b"first")
    bench.turn()
    bench.close()

    def failing(file: File) -> None:
        raise FailedError("sync", where=file.path)

    with timerstore.open(bench.root, bench.config, read_only=True) as one:
        sent_on.write(bench.root, "t", {"UNIQ_KEY": "K"}, store_ms=NOW)
        with monkeypatch.context() as patched:
            patched.setattr(File, "sync", failing)
            for _ in range(2):
                with pytest.raises(FailedError, match="sync"):
                    one.pull("t", 0, 0)
            with pytest.raises(FailedError, match="sync"):
                timerstore.open(bench.root, bench.config, read_only=True)
        assert [message.body for message in one.follow("t")] == [b"first", b"sent on"]


@pytest.mark.parametrize("where", ["counts", "show", "covered", "forget", "units"])
def test_view_repeats_step_when_interrupted(
    bench: Bench, read: ReadOnlyStore, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    same(read, bench.store)
    bench.store.put("t", b"next")
    bench.turn()
    bench.store.flush()
    view = view_of(read)
    step = position_steps(view)[where]
    if where in {"forget", "units"}:
        read.topics()
        view.distrust_queues()
    done = step.value

    def interrupt(*given: Any, **how: Any) -> None:
        done(*given, **how)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(*step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            view.start_over() if where == "forget" else read.pull("t", 0, 0)
    same(read, bench.store)
    assert [message.body for message in read.follow("t")][-1] == b"next"


@pytest.mark.parametrize("is_made", [True, False])
def test_view_adopts_sizes_of_first_files(tmp_path: Path, *, is_made: bool) -> None:
    config = small(precision_ms=100)
    if is_made:
        bench = Bench(tmp_path / "s", config)
    else:
        (tmp_path / "s" / "timerstore").mkdir(parents=True)
    clock = ManualClock(NOW)
    with timerstore.open(tmp_path / "s", clock=clock, read_only=True) as one:
        assert list(one.pending()) == list(one.follow("t")) == []
        if not is_made:
            bench = Bench(tmp_path / "s", config)
        known = fill(bench)
        clock.set(bench.clock.now_ms)
        same(one, bench.store)
        assert one.explain(known["short"]) == bench.store.explain(known["short"])
        assert one.explain(known["waits"][3]) == bench.store.explain(known["waits"][3])
        got = one.config
        assert (got.precision_ms, got.commit_log_segment_bytes) == (100, 1 << 20)
        assert (got.queue_segment_bytes, got.timer_log_segment_bytes) == (2000, 64 * 1024)
        assert not distrusted_version(view_of(one))
    bench.close()


def test_view_drops_units_when_broker_has_written_them(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*TAIL_UNITS_MAX, 8)
    copy = tmp_path / "copy"
    bench.store.put("t", b"first", queue_id=0)
    bench.turn()
    bench.close()
    shutil.copytree(bench.root, copy)
    shutil.rmtree(copy / "timerstore")
    with timerstore.open(copy, bench.config, clock=bench.clock, read_only=True) as one:
        assert len(one.pull("t", 0, 0).messages) == 1
        for turn in range(3):
            bench.open()
            for k in range(9):
                bench.store.put("t", b"%d %d" % (turn, k), queue_id=0)
            bench.turn()
            told = bench.out("t")
            bench.close()
            log = "commitlog/" + "0" * 20
            (copy / log).write_bytes((bench.root / log).read_bytes())
            assert list(one.pull("t", 0, 0).messages) == told
            shutil.copytree(bench.root / "consumequeue", copy / "consumequeue", dirs_exist_ok=True)
            assert list(one.pull("t", 0, 0).messages) == told
            assert units_in_memory(view_of(one)) == 0
            for queue in view_of(one).routes.queues():
                assert queue_files(queue).tail_begin is None
