"""Retention: what is old goes by whole files; what waits is moved before, what is unread told."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import timerstore
from tests.support.bench import NOW
from tests.support.inside import (
    doubt_header,
    inside,
    keep_log_from,
    old_watermark_slot,
    segment_pointer,
)
from tests.support.retaining import HOUR_MS, KIB, config
from timerstore import CancelResult, ConfigError, RowBatch, StoreConfig, TimerStore
from timerstore._engine.base import failpoints
from timerstore._engine.base.service import Service
from timerstore._engine.format import watermark
from timerstore._engine.format.handle import decode, encode
from timerstore._engine.storage.disk import Disk, File
from timerstore._engine.storage.segments import Segments
from timerstore.errors import FullError, GoneError
from timerstore.testing import ManualClock, Stepper

DAY_MS = 24 * HOUR_MS


def run(service: Service) -> None:
    """Step it until it has no work."""
    while service.step():
        pass


class Bench:
    """One directory on one clock."""

    def __init__(self, root: Path, given: StoreConfig | None = None) -> None:
        self.root = root
        self.config = given or config()
        self.clock = ManualClock(NOW)
        self.open()

    def open(self) -> None:
        self.store: TimerStore = timerstore.open(
            self.root, self.config, clock=self.clock, threads=False
        )
        self.stepper = Stepper(self.store)

    def reopen(self) -> None:
        self.store.close()
        self.open()

    def fill(self, count: int = 24, topic: str = "t") -> None:
        """Two files and a bit of messages that are due at once."""
        for _ in range(count):
            self.store.put(topic, bytes(1200))
        self.stepper.settle()

    def age(self, ms: int = HOUR_MS) -> None:
        """Time goes by, and something more is put: so the file before it is whole."""
        self.clock.advance(ms)
        self.stepper.settle()

    def stat(self, name: str) -> int:
        return int(self.store.stats()[name])

    @property
    def log_files(self) -> list[int]:
        return [int(path.name) for path in sorted((self.root / "commitlog").iterdir())]

    def bodies(self, topic: str = "t") -> list[bytes]:
        """Everything that can be pulled."""
        found: list[bytes] = []
        offset = self.store.pull(topic, 0, 2**62).min_offset
        while True:
            result = self.store.pull(topic, 0, offset)
            found += [message.body for message in result.messages]
            if result.next_offset <= offset:
                return found
            offset = result.next_offset

    def check(self) -> None:
        report = self.store.verify()
        assert report.clean, report


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(tmp_path / "store")
    yield one
    one.check()
    one.store.close()


# --- by age ---------------------------------------------------------------------------------------


def test_files_go_when_what_follows_them_is_old_and_the_last_stays(bench: Bench) -> None:
    bench.fill()
    assert bench.log_files == [0, 16 * KIB]
    bench.age(HOUR_MS - 1)
    assert bench.log_files == [0, 16 * KIB]
    bench.age(1)
    assert bench.log_files == [16 * KIB]
    bench.age(100 * DAY_MS)
    assert bench.log_files == [16 * KIB]
    assert bench.stat("retention_log_files") == 1
    assert bench.stat("log_begin_bytes") == 16 * KIB


def test_zero_keeps_everything_for_ever(tmp_path: Path) -> None:
    bench = Bench(tmp_path, config(retention_ms=0))
    bench.fill(60)
    bench.age(100 * 365 * DAY_MS)
    assert bench.log_files[0] == 0
    assert len(bench.bodies()) == 60
    assert bench.store.services()["retention"].idle_s() is None  # there is nothing to look for
    bench.store.close()


def test_queues_index_and_timer_log_follow(bench: Bench) -> None:
    for _ in range(10):
        for _ in range(20):
            bench.store.put("t", bytes(700), delay=1)
        bench.age(HOUR_MS // 2)
    for folder in ("consumequeue/t/0", "consumequeue/rmq_sys_wheel_timer/0", "index", "timerlog"):
        names = sorted((bench.root / folder).iterdir())
        assert 0 < len(names) <= 14, f"{folder}: {len(names)}"
        assert folder == "index" or int(names[0].name) > 0, folder
    bench.check()
    bench.reopen()
    assert len(bench.bodies()) < 120


def test_pulls_below_the_minimum_are_told_where_to_go_on(bench: Bench) -> None:
    bench.fill()
    bench.age()
    first = bench.store.pull("t", 0, 0)
    assert (first.status, first.messages) == ("OFFSET_TOO_SMALL", ())
    assert first.next_offset == first.min_offset > 0
    at = bench.store.pull("t", 0, first.next_offset)
    assert at.status == "FOUND"
    assert at.messages[0].queue_offset == first.min_offset
    assert bench.store.pull_batch("t", 0, 0).next_offset == first.next_offset
    assert bench.store.offset_at("t", 0, 0) == first.min_offset


def test_between_retiring_and_dropping_a_pull_says_that_messages_are_going(bench: Bench) -> None:
    bench.fill()
    bench.clock.advance(HOUR_MS)
    found = []

    def hook(name: str) -> None:
        if name == "retention_log_unlinked":
            found.append(bench.store.pull("t", 0, 0))

    failpoints.hook = hook
    try:
        bench.stepper.settle()
    finally:
        failpoints.hook = None
    assert [one.status for one in found] == ["MESSAGE_WAS_REMOVING"]
    assert found[0].next_offset == bench.store.pull("t", 0, 0).min_offset


def test_queries_pass_over_what_is_gone(bench: Bench) -> None:
    gone = bench.store.put("t", bytes(100), keys="k")
    bench.fill()
    kept = bench.store.put("t", bytes(100), keys="k")
    bench.stepper.settle()
    assert len(bench.store.query("t", "k")) == 2
    bench.age()
    assert [m.log_offset for m in bench.store.query("t", "k")] == [kept.log_offset]
    assert bench.store.query("t", gone.message_id) == []


# --- what waits -----------------------------------------------------------------------------------


def test_what_waits_is_moved_and_comes_once_at_its_time_in_order(bench: Bench) -> None:
    receipts = [bench.store.put("t", b"%d" % k, delay=86_400) for k in range(5)]
    handle = receipts[4].handle
    bench.fill()
    bench.age()
    assert bench.stat("retention_moved_messages") == 5
    assert bench.log_files[0] > 0
    assert [one.handle for one in bench.store.pending()] == [one.handle for one in receipts]
    assert bench.store.cancel(receipts[0]) is CancelResult.CANCELLED
    broker = encode(decode(receipts[1].handle)._replace(timer_id=None))
    assert bench.store.cancel(broker) is CancelResult.CANCELLED
    moved = bench.store.reschedule(handle, delay=43_200)
    bench.check()
    bench.reopen()
    for _ in range(3):
        bench.fill(12, "other")
        bench.age(2 * HOUR_MS)
    bench.clock.set(moved.due_ms)
    bench.stepper.settle()
    assert b"4" in bench.bodies()
    bench.clock.set(receipts[3].due_ms - 1)
    bench.stepper.settle()
    assert not {b"2", b"3"} & set(bench.bodies())
    bench.clock.advance(1)
    bench.stepper.settle()
    late = [body for body in bench.bodies() if len(body) == 1]
    assert late[-2:] == [b"2", b"3"]
    assert bench.stat("pending_messages") == 0


def test_what_is_handed_or_cancelled_is_not_moved(bench: Bench) -> None:
    bench.store.put("t", b"soon", delay=1)
    cancelled = bench.store.put("t", b"never", delay=86_400)
    bench.store.cancel(cancelled)
    bench.fill()
    bench.age()
    assert bench.stat("retention_moved_messages") == 0
    assert bench.store.cancel(cancelled) is CancelResult.UNKNOWN  # its source is gone


def test_what_rolled_on_is_not_moved_from_where_it_was(tmp_path: Path) -> None:
    bench = Bench(tmp_path, config(wheel_slot_count=16))  # 8 minutes ahead, then it rolls
    bench.store.put("t", b"far", delay=2 * 3600)
    bench.fill()
    bench.age(HOUR_MS)
    assert bench.log_files[0] > 0
    assert bench.stat("dequeue_put_rolled_messages") > 0
    assert bench.stat("retention_moved_messages") == 0
    bench.age(HOUR_MS)
    assert b"far" in bench.bodies()
    bench.check()
    bench.store.close()


def test_moved_twice_it_still_comes_once(bench: Bench) -> None:
    bench.store.put("t", b"far", delay=20 * 3600)
    for _ in range(6):
        bench.fill(14)
        bench.age(2 * HOUR_MS)
    assert bench.stat("retention_moved_messages") >= 3
    assert len(list(bench.store.pending())) == 1
    bench.age(DAY_MS)
    assert bench.bodies().count(b"far") == 1


def test_a_level_message_that_waits_keeps_its_file(bench: Bench) -> None:
    bench.store.put("t", b"level", level=2)
    bench.fill(40)
    bench.age(HOUR_MS)
    assert bench.log_files[0] == 0
    bench.age(HOUR_MS)
    assert bench.log_files[0] > 0
    assert b"level" in bench.bodies()


def test_records_that_the_wheel_has_not_taken_in_keep_their_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path, config(stop_enqueue=True))
    bench.store.cancel(bench.store.put("t", b"never", delay=60))
    bench.fill(40)
    bench.store.put("t", b"late", delay=60)
    bench.age(2 * HOUR_MS)
    bench.store.flush()
    bench.age()
    assert bench.log_files[0] == 0
    bench.store.close()
    bench.config = config()
    bench.open()
    bench.stepper.settle()
    assert bench.log_files[0] > 0
    assert b"late" in bench.bodies()
    bench.store.close()


def test_with_all_side_files_lost_moved_copies_count_once(bench: Bench) -> None:
    bench.store.put("t", b"a", delay=30 * 3600)
    bench.store.put("t", b"b", delay=30 * 3600)
    for _ in range(2):
        bench.fill(14)
        bench.age(2 * HOUR_MS)
    assert bench.stat("log_begin_bytes") > 0
    handles = [one.handle for one in bench.store.pending()]
    bench.store.close()
    for name in ("timerstore", "consumequeue", "index", "timerlog"):
        shutil.rmtree(bench.root / name)
    (bench.root / "timerwheel").unlink()
    bench.open()
    assert [one.handle for one in bench.store.pending()] == handles
    bench.check()
    bench.age(2 * DAY_MS)
    assert [body for body in bench.bodies() if len(body) == 1] == [b"a", b"b"]


def test_new_ids_are_not_those_that_deliveries_name(bench: Bench) -> None:
    """All sources removed and the side files lost: an id used again would be known as handed."""
    bench.store.put("t", b"old", delay=3600)
    bench.fill(14)
    bench.age(HOUR_MS)
    bench.store.flush()
    bench.age()
    assert (bench.log_files[0] > 0, bench.bodies()[-1]) == (True, b"old")
    bench.store.close()
    shutil.rmtree(bench.root / "timerstore")
    shutil.rmtree(bench.root / "consumequeue" / "rmq_sys_wheel_timer")
    bench.open()
    bench.store.put("t", b"new", delay=60)
    bench.age(120_000)
    assert b"new" in bench.bodies()


# --- by size --------------------------------------------------------------------------------------


def test_a_log_beyond_its_limit_loses_its_oldest_whatever_their_age(tmp_path: Path) -> None:
    bench = Bench(tmp_path, config(retention_ms=0, retention_log_bytes=40 * KIB))
    for _ in range(20):
        bench.fill(5)
        assert bench.stat("log_end_bytes") - bench.stat("log_begin_bytes") <= 40 * KIB + 7000
    bench.check()
    bench.store.close()


def test_a_full_file_system_counts_as_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, config(retention_ms=0, retention_disk_percent=80))
    bench.fill(60)
    monkeypatch.setattr(Disk, "used_percent", lambda *_: 80.0)
    bench.stepper.settle()
    assert bench.log_files[0] == 0
    monkeypatch.setattr(Disk, "used_percent", lambda *_: 80.1)
    bench.stepper.settle()
    assert len(bench.log_files) == 1
    bench.store.close()


def test_what_waits_beyond_the_limit_is_gone_through_once_and_again_when_it_doubled(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, config(retention_ms=0, retention_log_bytes=20 * KIB))
    for k in range(60):
        bench.store.put("t", bytes(1200), delay=80_000 + k)
    bench.stepper.settle()
    moved = bench.stat("retention_moved_messages")
    assert 30 <= moved <= 60
    for _ in range(5):
        bench.stepper.settle()
    assert bench.stat("retention_moved_messages") == moved
    for k in range(90):
        bench.store.put("t", bytes(1200), delay=80_000 + k)
    bench.stepper.settle()
    assert moved < bench.stat("retention_moved_messages") <= 3 * 150
    assert len(list(bench.store.pending())) == 150
    bench.check()
    bench.store.close()


def test_a_steady_load_keeps_the_disk_bounded(tmp_path: Path) -> None:
    """The soak's unit version: an hour's messages, each due within ten minutes, for two days."""
    bench = Bench(tmp_path)
    sizes = []
    for turn in range(96):
        for k in range(12):
            bench.store.put("t", bytes(500), delay=1 + 50 * k)
        bench.age(HOUR_MS // 2)
        files = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
        sizes.append((len(files), sum(files)))
        if turn == 48:
            bench.check()
    assert max(count for count, _ in sizes[48:]) <= max(count for count, _ in sizes[6:24]) + 3
    assert max(size for _, size in sizes[48:]) <= max(size for _, size in sizes[6:24]) + 50 * KIB
    bench.check()
    bench.store.close()


# --- what groups have not read --------------------------------------------------------------------


def test_what_a_group_has_not_read_is_kept_by_age(bench: Bench) -> None:
    bench.store.put("t", b"first")
    bench.stepper.settle()
    with bench.store.consumer("t", "g") as reader:
        assert [m.body for m in reader.poll()] == [b"first"]
        reader.commit()
    bench.fill(40)
    bench.age(10 * DAY_MS)
    assert bench.log_files[0] == 0
    with bench.store.consumer("t", "g") as reader:
        while reader.poll(1000):
            reader.commit()
        assert reader.removed_count == 0
    bench.age()
    assert len(bench.log_files) == 1


def test_a_group_that_only_joined_counts_too_until_it_leaves(bench: Bench) -> None:
    reader = bench.store.consumer("t", "g")
    bench.fill(40)
    bench.age(10 * DAY_MS)
    assert bench.log_files[0] == 0
    reader.close()
    bench.age()
    assert len(bench.log_files) == 1


def test_at_the_limit_unread_messages_go_counted_logged_and_the_reader_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path, config(retention_log_bytes=40 * KIB))
    bench.fill(1)
    with bench.store.consumer("t", "g") as reader:
        assert len(reader.poll()) == 1
        reader.commit()
        with caplog.at_level(logging.WARNING, "timerstore.read"):
            bench.fill(60)
        low = bench.store.pull("t", 0, 2**62).min_offset
        assert low > 20
        assert bench.stat("retention_unconsumed_messages") == low - 1
        assert "group=g" in caplog.text
        found = reader.poll(1)
        assert [m.queue_offset for m in found] == [low]
        assert reader.removed_count == low - 1
        assert reader.commit() == {0: low + 1}
    with bench.store.consumer("t", "new") as stranger:
        assert [m.queue_offset for m in stranger.poll(1)] == [low]
        assert stranger.removed_count == 0  # it never began before
    bench.store.close()


def test_a_logging_handler_may_ask_the_consumer_that_is_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, config(retention_log_bytes=40 * KIB))
    bench.fill(1)
    reader = bench.store.consumer("t", "g")
    assert len(reader.poll()) == 1
    asked: list[tuple[int, ...]] = []

    class Asking(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            asked.append(reader.queues)

    bench.fill(60)
    handler, logger = Asking(), logging.getLogger("timerstore.read")
    logger.addHandler(handler)
    try:
        reading = Thread(target=reader.poll, daemon=True)
        reading.start()
        reading.join(30)
    finally:
        logger.removeHandler(handler)
    assert not reading.is_alive(), "it waits for a lock that it has itself"
    assert asked == [(0,)]
    bench.store.close()


@pytest.mark.parametrize(
    ("waiting", "told"), [(0, "removed_unread="), (60, "retention='full of what waits")]
)
def test_a_logging_handler_may_verify_the_store(tmp_path: Path, waiting: int, told: str) -> None:
    bench = Bench(tmp_path, config(retention_log_bytes=40 * KIB))
    bench.fill(1)
    reader = bench.store.consumer("t", "g")
    found: list[str] = []

    class Verifying(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert bench.store.verify().clean
            found.append(record.getMessage())

    for _ in range(waiting):
        bench.store.put("t", bytes(1200), delay=DAY_MS / 1000)
    handler, logger = Verifying(), logging.getLogger("timerstore")
    logger.addHandler(handler)
    try:
        filling = Thread(target=bench.fill, args=(60,), daemon=True)
        filling.start()
        filling.join(60)
    finally:
        logger.removeHandler(handler)
    assert not filling.is_alive(), "it waits for a lock that it has itself"
    assert any(one.startswith(told) for one in found)
    reader.close()
    bench.store.close()


# --- what was ingested ----------------------------------------------------------------------------


def rows(*bodies: bytes) -> list[RowBatch]:
    offsets = np.cumsum([0, *map(len, bodies)])
    return [RowBatch("t", b"".join(bodies), offsets, np.zeros(len(bodies), np.int64))]


def test_the_ledger_outlives_the_files_of_its_headers(bench: Bench) -> None:
    bench.store.ingest("s", 1, rows(b"a", b"b"))
    bench.store.ingest("s", 2, rows(b"c"))
    for _ in range(4):
        bench.fill(14)
        bench.age(2 * HOUR_MS)
    assert bench.stat("log_begin_bytes") > 48 * KIB
    bench.reopen()
    assert bench.store.ingested("s").ranges == (range(1, 3),)
    assert bench.store.ingest("s", 2, rows(b"c")).is_replay
    bench.store.close()
    shutil.rmtree(bench.root / "timerstore")
    bench.open()
    assert bench.store.ingested("s").ranges == (range(1, 3),)
    assert bench.store.ingest("s", 1, rows(b"a", b"b")).is_replay
    assert not bench.store.ingest("s", 3, rows(b"d")).is_replay


def test_a_header_that_is_not_noted_yet_keeps_its_file(bench: Bench) -> None:
    bench.store.ingest("s", 1, rows(b"a"))
    ingester = inside(bench.store).ingester
    doubt_header(ingester, "s")
    with ingester.ledger.turn("s"):  # an ingest amid its append
        bench.fill(40)
        bench.age(2 * HOUR_MS)
        assert bench.log_files[0] == 0
    bench.age()
    assert bench.log_files[0] > 0
    assert bench.store.ingested("s").ranges == (range(1, 2),)


def test_while_a_backup_is_made_nothing_goes(bench: Bench, tmp_path: Path) -> None:
    bench.fill(40)
    bench.clock.advance(2 * HOUR_MS)

    def progress(_done: int, _of: int) -> None:
        bench.stepper.settle()
        assert bench.log_files[0] == 0

    bench.store.backup(tmp_path / "backup", progress=progress)
    bench.stepper.settle()
    assert bench.log_files[0] > 0
    bench.store.backup(tmp_path / "backup")
    timerstore.restore(tmp_path / "backup", tmp_path / "restored")
    with timerstore.open(tmp_path / "restored", bench.config, clock=bench.clock) as restored:
        assert restored.verify().clean


# --- guards and readers ---------------------------------------------------------------------------


def test_nothing_goes_that_a_guard_needs(bench: Bench) -> None:
    need = [16 * KIB - 1]
    keep_log_from(inside(bench.store).retention, lambda: need[0])
    bench.fill()
    bench.age()
    assert bench.log_files[0] == 0
    need[0] += 1
    bench.stepper.settle()
    assert bench.log_files[0] == 16 * KIB


def test_a_file_stays_while_somebody_reads_it(bench: Bench) -> None:
    segments = inside(bench.store).log.segments
    bench.fill()
    bench.clock.advance(HOUR_MS)
    with segments.view(16 * KIB) as view:
        bench.stepper.settle()
        assert segments.begin == 16 * KIB
        assert bench.log_files[0] == 0
        assert view.begin == 0
        with segments.view(20 * KIB) as later:
            assert later.begin == 16 * KIB
    assert bench.log_files[0] == 0
    bench.stepper.settle()
    assert bench.log_files[0] == 16 * KIB


def test_reading_what_is_gone_is_no_damage(bench: Bench) -> None:
    bench.fill()
    bench.age()
    with pytest.raises(GoneError, match="retention removed it"):
        inside(bench.store).log.segments.read(0, 10)


# --- ends -----------------------------------------------------------------------------------------


@contextmanager
def kept_aside(path: Path) -> Iterator[None]:
    """A file is there again afterwards, as after a power cut that undid its unlinking."""
    data = path.read_bytes()
    yield
    path.write_bytes(data)


@pytest.mark.parametrize("is_doubted", [False, True])
@pytest.mark.parametrize("lost", [[], ["timerstore/state"]])
def test_what_a_power_cut_brings_back_is_removed(
    bench: Bench, lost: list[str], is_doubted: bool
) -> None:
    """`is_doubted`: it looks as if a broker had been there."""
    bench.fill()
    before = bench.root / "commitlog" / f"{0:020d}"
    with kept_aside(before):
        bench.age()
        bench.store.close()
        for name in lost:
            (bench.root / name).unlink()
        if is_doubted:
            (bench.root / "abort").write_text("1")
    bench.open()
    assert bench.log_files == [16 * KIB]
    assert len(bench.bodies()) < 24


def test_the_watermark_of_the_first_version_is_read() -> None:
    mark = watermark.Watermark(*range(1, 14))
    assert (mark.timer_log_begin, mark.far_number) == (0, 0)
    assert watermark.read(old_watermark_slot(b"TSMARK01", mark[:13])) == mark
    assert watermark.read(watermark.write(mark._replace(timer_log_begin=7))) == mark._replace(
        timer_log_begin=7
    )


def test_a_full_disk_does_not_stop_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """No space for a checkpoint, a new file or the index's note: files go all the same."""
    bench.fill(60)
    bench.store.flush()

    def full(*_given: object, **_named: object) -> None:
        raise FullError("no space")

    bench.clock.advance(HOUR_MS)
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "write_small", full)
        patch.setattr(File, "reserve", full)
        run(bench.store.services()["retention"])
        assert len(bench.log_files) == 1
    bench.stepper.settle()


def test_a_full_disk_keeps_what_waits_where_it_is(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = bench.store.put("t", b"far", delay=86_400)
    bench.fill()
    bench.store.flush()

    def full(*_given: object, **_named: object) -> int:
        raise FullError("no space")

    bench.clock.advance(HOUR_MS)
    service = bench.store.services()["retention"]
    with monkeypatch.context() as patch:
        patch.setattr(inside(bench.store).log, "make_room", full)
        inside(bench.store).log.native.append_limit = 0
        with pytest.raises(FullError):
            run(service)
        assert bench.log_files[0] == 0
    bench.stepper.settle()
    assert bench.log_files[0] > 0
    assert bench.stat("retention_moved_messages") == 1
    assert [one.handle for one in bench.store.pending()] == [receipt.handle]


def test_damage_stops_retention_and_not_the_store(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.fill()
    path = bench.root / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    bench.age()
    assert bench.log_files[0] == 0
    assert "stopped" in caplog.text
    bench.store.put("t", b"goes on")
    path.write_bytes(data)
    bench.age()


# --- knobs ----------------------------------------------------------------------------------------


def test_limits_are_checked_at_their_edges() -> None:
    for good in (0, 1000, 2**35):
        StoreConfig(retention_ms=good)
    for name, bad in (
        ("retention_ms", 999), ("retention_ms", -1), ("retention_log_bytes", -1),
        ("retention_disk_percent", 100), ("retention_disk_percent", -1),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=name):
            StoreConfig(**{name: bad})  # type: ignore[arg-type]


def test_the_file_where_a_space_begins_is_not_cut_away(tmp_path: Path) -> None:
    """Found by the simulator (seed 399): without files a space began at 0 again."""
    segments = Segments(Disk(), tmp_path / "space", 4096, 0)
    for number in range(3):
        segments.create(number)
    segments.write(2 * 4096, b"behind the end")
    segments.remove_below(2 * 4096)
    segments.cut(2 * 4096)
    assert (segments.numbers, segments.begin) == ([2], 2 * 4096)
    assert segments.read(2 * 4096, 20) == bytes(20)
    again = Segments(Disk(), tmp_path / "space", 4096, 0)
    again.load()
    assert again.begin == 2 * 4096


@pytest.mark.parametrize("amid", ["hold", "with"])
def test_a_view_cut_short_keeps_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amid: str
) -> None:
    """No memory, or an error from outside as a time limit's, before `with` knows of the view."""
    segments = Segments(Disk(), tmp_path / "space", 4096, 0)
    for number in range(3):
        segments.create(number)
    if amid == "hold":
        monkeypatch.setattr(*segment_pointer(segments), lambda _view: int("no memory"))
        with pytest.raises(ValueError, match="no memory"), segments.view(0):
            raise AssertionError("held")
    else:
        cut_short = segments.view(0)
        cut_short.__enter__()
        del cut_short
    monkeypatch.undo()
    segments.retire(4096)
    assert segments.unlink_retired()
    with segments.view(0):
        segments.retire(2 * 4096)
        assert not segments.unlink_retired()
    assert segments.unlink_retired()


def test_a_late_unit_in_a_slot_whose_chain_is_removed_is_read(tmp_path: Path) -> None:
    """Found by the simulator (seed 103): the clock is set back, and an old slot takes more."""
    bench = Bench(tmp_path, config(wheel_slot_count=128, timer_log_segment_bytes=200))
    for _ in range(12):
        bench.store.put("t", b"early", delay=30)
    bench.age(120_000)
    for _ in range(24):
        bench.store.put("t", b"later", delay=60)
        bench.age(120_000)
    assert inside(bench.store).timer_log.segments.begin > 0
    bench.clock.set(NOW)
    bench.store.put("t", b"late", delay=30)
    bench.stepper.settle()
    assert len(list(bench.store.pending())) == 1
    bench.check()
    bench.reopen()
    bench.age(120_000)
    assert bench.bodies().count(b"late") == 1
    bench.check()
    bench.store.close()
