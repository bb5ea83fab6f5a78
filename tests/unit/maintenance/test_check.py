"""verify: clean while services stand at any step, and each file's damage is named."""

import dataclasses
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import timerstore
from tests.support.driver import START_MS, abandon, tiny
from tests.support.inside import inside
from timerstore import CancelResult, Report
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format import timer_unit
from timerstore._engine.log.scanned_records import SCAN_DTYPE
from timerstore._engine.maintenance.id_states import IdStates, LogFold, differing, waiting
from timerstore.errors import CorruptError
from timerstore.testing import ManualClock, Stepper

CONFIG = tiny(1000, "async")


class Bench:
    """A store with some of everything: delivered, cancelled, waiting, rolled, not linked yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock(START_MS)
        self.open()
        self.fill()

    def open(self) -> None:
        self.store = timerstore.open(self.root, CONFIG, clock=self.clock, threads=False)
        self.stepper = Stepper(self.store)

    def fill(self) -> None:
        store, now_ms = self.store, self.clock.now_ms
        for k in range(60):
            store.put(f"topic-{k % 3}", b"%d" % k * 20, deliver_ms=now_ms + 700 * k, tags=f"t{k}")
        store.put_many("topic-2", [b"%d" % k for k in range(20)], delay=30)
        far = [store.put("topic-0", b"far", delay=1000.0 * k) for k in range(1, 8)]
        self.stepper.settle()
        assert store.cancel(far[0]) is CancelResult.CANCELLED
        self.clock.advance(20_000)
        self.stepper.settle()
        store.put_many("topic-1", [b"late"] * 5, delay=np.arange(5) / 10)

    def reopen(self) -> None:
        self.store.close()
        self.open()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(tmp_path / "store")
    yield one
    abandon(one.store)


def flip(path: Path, offset: int, bits: int = 0xFF) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        one = file.read(1)
        file.seek(offset)
        file.write(bytes([one[0] ^ bits]))


def named(report: Report, what: str, *where: object) -> None:
    """Some problem is of this kind, and at this place."""
    hits = [p for p in report.problems if what in p.what and all(str(w) in p.where for w in where)]
    assert hits, f"{what} at {where}:\n{report}"


def segment(root: Path, name: str, number: int, size: int) -> Path:
    return root / name / f"{number * size:020d}"


# --- clean ----------------------------------------------------------------------------------------


def test_an_empty_store_is_clean(tmp_path: Path) -> None:
    with timerstore.open(tmp_path, CONFIG, clock=ManualClock(START_MS), threads=False) as store:
        report = store.verify()
        assert report.clean, report
        assert report.counts["records"] == 0


def test_counts_say_how_much_was_looked_at(bench: Bench) -> None:
    bench.stepper.settle()
    report = bench.store.verify()
    assert report.clean, report
    timer_records = bench.store.pull("rmq_sys_wheel_timer", 0, 10**6).max_offset
    assert report.counts["timer units"] == timer_records
    assert report.counts["records"] == report.counts["queue units"]
    assert report.counts["waiting"] == bench.store.stats()["pending_messages"] > 0


def test_clean_after_every_single_step(bench: Bench) -> None:
    for turn in range(4):
        bench.clock.advance(7777)
        bench.store.put("topic-2", b"more", delay=turn / 3)
        moved = True
        while moved:
            moved = False
            for name in bench.stepper.names:
                moved = bench.stepper.step(name) or moved
                report = bench.store.verify()
                assert report.clean, (name, report)


def test_clean_after_reopening_and_after_a_kill(bench: Bench) -> None:
    for _ in range(2):
        bench.reopen()
        assert bench.store.verify().clean, bench.store.verify()
        bench.clock.advance(3333)
        bench.stepper.settle()
        copy = bench.root.with_name(f"copy-{bench.clock.now_ms}")
        shutil.copytree(bench.root, copy)
        with timerstore.open(copy, CONFIG, clock=bench.clock, threads=False) as other:
            assert other.verify().clean, other.verify()
            Stepper(other).settle()
            assert other.verify().clean, other.verify()


def test_clean_beside_a_later_lap_of_the_wheel(bench: Bench) -> None:
    for _ in range(6):
        bench.clock.advance(100_000)  # a lap of the tiny wheel is 128 s
        bench.stepper.settle()
        bench.store.put("topic-0", b"again", delay=50)
        assert bench.store.verify().clean, bench.store.verify()


@pytest.mark.more
def test_clean_while_threads_work(tmp_path: Path) -> None:
    store = timerstore.open(tmp_path / "store", tiny(100, "async"))
    stop = threading.Event()

    def work() -> None:
        k = 0
        while not stop.is_set():
            batch = store.put_many("busy", [b"x" * 40] * 20, delay=np.arange(20) / 100)
            store.cancel(batch[19])
            k += 1

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(15):
            report = store.verify()
            assert report.clean, report
    finally:
        stop.set()
        worker.join()
        store.close()


# --- the log --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "what"),
    [
        (4, "magic number"),
        (0, "length"),
        (35, "stored position"),
        (89, "CRC"),
        (110, "CRC"),
    ],
)
def test_a_record_that_changed_is_named(bench: Bench, at: int, what: str) -> None:
    bench.stepper.settle()
    receipt = bench.store.put("topic-0", b"the one")
    bench.stepper.settle()
    size = CONFIG.commit_log_segment_bytes
    number, offset = divmod(receipt.log_offset, size)
    path = segment(bench.root, "commitlog", number, size)
    flip(path, offset + at)
    named(bench.store.verify(), what, path, f"offset {offset}")
    flip(path, offset + at)
    assert bench.store.verify().clean


def test_bytes_behind_the_end_of_the_log(bench: Bench) -> None:
    bench.stepper.settle()
    size = CONFIG.commit_log_segment_bytes
    number, offset = divmod(bench.store.stats()["log_end_bytes"], size)
    path = segment(bench.root, "commitlog", number, size)
    flip(path, offset + 777)
    named(bench.store.verify(), "behind the end", path, f"offset {offset + 777}")


def test_a_record_of_a_waiting_timer_is_gone(bench: Bench) -> None:
    bench.stepper.settle()
    one = next(iter(bench.store.pending(topic="topic-1")))
    size = CONFIG.commit_log_segment_bytes
    path = segment(bench.root, "commitlog", one.log_offset // size, size)
    flip(path, one.log_offset % size + 7)
    report = bench.store.verify()
    named(report, "magic number", path, f"offset {one.log_offset % size}")


@pytest.mark.parametrize("folder", ["commitlog", "timerlog"])
def test_a_file_that_is_short_or_gone(bench: Bench, folder: str) -> None:
    bench.stepper.settle()
    path = min((bench.root / folder).iterdir())
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(100)
    named(bench.store.verify(), "size", path)
    path.write_bytes(whole)
    path.rename(bench.root / "aside")
    named(bench.store.verify(), "size", path)
    (bench.root / "aside").rename(path)
    assert bench.store.verify().clean


# --- queues ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["topic-0", "rmq_sys_wheel_timer"])
@pytest.mark.parametrize("at", [7, 11, 19])  # position, size, tags code
def test_a_queue_unit_that_changed_is_named(bench: Bench, topic: str, at: int) -> None:
    bench.stepper.settle()
    path = bench.root / "consumequeue" / topic / "0" / f"{0:020d}"
    flip(path, 40 + at, 1)
    named(bench.store.verify(), "queue unit", path, "offset 40")
    flip(path, 40 + at, 1)
    assert bench.store.verify().clean


def test_a_queue_unit_behind_the_end_is_named(bench: Bench) -> None:
    bench.stepper.settle()
    count = bench.store.pull("topic-0", 0, 10**6).max_offset
    if count % 10 == 0:
        bench.store.put("topic-0", b"so that it does not end with its file")
        bench.stepper.settle()
        count += 1
    at = count * 20 % CONFIG.queue_segment_bytes
    path = bench.root / "consumequeue/topic-0/0" / f"{count * 20 - at:020d}"
    flip(path, at + 3)
    named(bench.store.verify(), "behind the end", path, f"offset {at + 3}")


def test_a_queue_file_that_is_gone_is_named(bench: Bench) -> None:
    bench.stepper.settle()
    path = bench.root / "consumequeue/topic-0/0" / f"{0:020d}"
    path.unlink()
    named(bench.store.verify(), "size", path)


def test_a_queue_that_lost_its_last_unit_is_named(bench: Bench) -> None:
    bench.stepper.settle()
    route = inside(bench.store).routes.get("topic-0", 0)
    assert route is not None
    route.queue.count -= 1
    named(bench.store.verify(), "ends too soon")
    route.queue.count += 1


# --- timer log and wheel --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "what"),
    [
        (3, "timer unit: size"),
        (11, "timer unit: previous position"),
        (15, "timer unit"),
        (23, "timer unit"),
        (27, "timer unit"),
        (35, "timer unit does not stand for its record"),
        (39, "timer unit does not stand for its record"),
        (43, "timer unit does not stand for its record"),
        (51, "timer unit: seal"),
    ],
)
def test_a_timer_unit_that_changed_is_named(bench: Bench, at: int, what: str) -> None:
    bench.stepper.settle()
    path = segment(bench.root, "timerlog", 0, CONFIG.timer_log_segment_bytes)
    flip(path, 52 * 30 + at, 0x55)
    named(bench.store.verify(), what, path, f"offset {52 * 30}")
    flip(path, 52 * 30 + at, 0x55)
    assert bench.store.verify().clean


def test_a_blank_and_what_lies_behind_the_timer_log(bench: Bench) -> None:
    bench.stepper.settle()
    size = CONFIG.timer_log_segment_bytes
    end = bench.store.stats()["timer_log_end_bytes"]
    assert end > size
    blank = timer_unit.units_per_segment(size) * 52
    first = segment(bench.root, "timerlog", 0, size)
    flip(first, blank + 12)
    named(bench.store.verify(), "no blank", first, f"offset {blank}")
    flip(first, blank + 12)
    last = segment(bench.root, "timerlog", end // size, size)
    flip(last, end % size + 60)
    named(bench.store.verify(), "behind the end", last, f"offset {end % size + 60}")


def slot_of_a_waiting_one(bench: Bench) -> int:
    """Byte offset of a slot that still has to be read and holds something."""
    wheel = inside(bench.store).wheel
    slot = wheel.next_used(wheel.frontier, wheel.frontier + wheel.slot_count)
    assert slot is not None
    return slot % wheel.slot_count * 32


def flip_memory(bench: Bench, at: int, bits: int) -> None:
    wheel = inside(bench.store).wheel
    wheel.native.slots[at] ^= bits
    wheel.native.dirty_pages[at // 4096] = 1


@pytest.mark.parametrize(
    ("at", "bits", "what"),
    [
        (7, 1, "its time does not belong here"),
        (15, 1, "first position"),
        (8, 0x80, "first position"),
        (23, 1, "last position"),
        (16, 0x80, "last position"),
        (24, 0x80, "count"),
        (26, 1, "count"),
        (31, 1, "magic"),
    ],
)
def test_a_slot_that_changed_in_memory_is_named(
    bench: Bench, at: int, bits: int, what: str
) -> None:
    bench.stepper.settle()
    slot = slot_of_a_waiting_one(bench)
    flip_memory(bench, slot + at, bits)
    named(bench.store.verify(), what, bench.root / "timerwheel", f"offset {slot}")
    flip_memory(bench, slot + at, bits)
    assert bench.store.verify().clean


def test_a_slot_that_is_gone_leaves_its_ids_unreached(bench: Bench) -> None:
    bench.stepper.settle()
    wheel = inside(bench.store).wheel
    slot = wheel.next_used(wheel.frontier, wheel.frontier + wheel.slot_count)
    at = slot % wheel.slot_count * 32
    ffi.buffer(wheel.native.slots + at, 32)[:] = bytes(32)
    named(bench.store.verify(), "waits, but nothing leads to it", bench.root / "timerwheel")


def test_a_chain_into_another_slot_is_named(bench: Bench) -> None:
    bench.stepper.settle()
    wheel = inside(bench.store).wheel
    slot = slot_of_a_waiting_one(bench)
    last = int.from_bytes(bytes(wheel.native.slots[slot + 16 : slot + 24]), "big")
    other = last - 52
    for k, byte in enumerate(other.to_bytes(8, "big")):
        wheel.native.slots[slot + 16 + k] = byte
    assert not bench.store.verify().clean


def test_the_wheels_file_is_compared_with_memory(bench: Bench) -> None:
    bench.stepper.settle()
    bench.store.flush()
    path = bench.root / "timerwheel"
    assert bench.store.verify().clean
    at = slot_of_a_waiting_one(bench) + 20
    wheel = inside(bench.store).wheel
    for page in range(0, wheel.slot_count * 32, 4096):  # a page of its own, as a used one is
        wheel.native.slots[page] ^= 0
    flip(path, at)
    named(bench.store.verify(), "the file is not what the memory is", path, f"offset {at}")


# --- states and side files ------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["HANDED", "CANCELLED", "NONE"])
def test_a_state_that_changed_in_memory_is_named(bench: Bench, state: str) -> None:
    bench.stepper.settle()
    one = next(iter(bench.store.pending()))
    states = inside(bench.store).states
    lib.ts_state_set(states.native, one.timer_id, getattr(lib, f"TS_{state}"))
    named(bench.store.verify(), f"state of timer id {one.timer_id}")


def test_a_count_that_changed_is_named(bench: Bench) -> None:
    bench.stepper.settle()
    parts = inside(bench.store)
    parts.states.native.waiting += 1
    named(bench.store.verify(), "how many wait")
    parts.states.native.waiting -= 1
    route = parts.routes.get("topic-1", 0)
    assert route is not None
    route.native.pending -= 1
    named(bench.store.verify(), "pending of topic topic-1 queue 0")


def test_a_sector_of_the_states_file_that_changed_is_named(bench: Bench) -> None:
    bench.stepper.settle()
    bench.store.flush()
    path = bench.root / "timerstore" / "state"
    for sector in range(path.stat().st_size // 512):
        flip(path, 512 * sector + 40)
    named(bench.store.verify(), "no sector that counts", path)


def test_states_that_are_not_those_of_the_log_are_named_after_a_checkpoint(bench: Bench) -> None:
    """A wrong state that was written with a right CRC."""
    bench.stepper.settle()
    one = next(iter(bench.store.pending()))
    parts = inside(bench.store)
    lib.ts_state_set(parts.states.native, one.timer_id, lib.TS_HANDED)
    bench.store.flush()
    report = bench.store.verify()
    named(report, f"states: timer id {one.timer_id} ", bench.root / "timerstore" / "state")
    named(report, f"state of timer id {one.timer_id}")


def test_watermark_and_counts_that_changed_are_named(bench: Bench) -> None:
    bench.stepper.settle()
    bench.store.flush()
    side = bench.root / "timerstore"
    for slot in (0, 512):
        flip(side / "watermark", slot + 20)
    counts = (side / "counts").read_bytes()
    (side / "counts").write_bytes(counts.replace(b'"topic-1": {"0": ', b'"topic-1": {"0": 1'))
    report = bench.store.verify()
    named(report, "watermark", side / "watermark")
    named(report, "counts", side / "counts")


def test_damage_is_still_named_after_reopening(bench: Bench) -> None:
    """What an opening trusts unread: a unit of the timer log, a queue unit far from the end."""
    bench.stepper.settle()
    bench.store.close()
    timer_log = segment(bench.root, "timerlog", 0, CONFIG.timer_log_segment_bytes)
    queue = bench.root / "consumequeue/topic-2/0" / f"{0:020d}"
    flip(timer_log, 52 * 9 + 42)
    flip(queue, 20 * 2 + 10)
    bench.open()
    report = bench.store.verify()
    named(report, "timer unit does not stand for its record", timer_log, f"offset {52 * 9}")
    named(report, "queue unit", queue, "offset 40")


def test_a_delivery_beyond_its_source_is_named(bench: Bench) -> None:
    """Handed twice, because its state was set back."""
    bench.stepper.settle()
    one = next(iter(bench.store.pending()))
    parts = inside(bench.store)
    again = [e for e in inside(bench.store).pending.entries() if e["id"] == one.timer_id]
    bench.clock.set(max(bench.clock.now_ms, one.due_ms))
    bench.stepper.settle()
    lib.ts_state_set(parts.states.native, one.timer_id, lib.TS_WAITING)
    parts.open_slot.expect_and_push(np.array(again, again[0].dtype))
    bench.stepper.settle()
    report = bench.store.verify()
    named(report, "a delivery beyond its source", bench.root / "commitlog")


@pytest.mark.parametrize("is_source", [True, False])
def test_a_timer_id_that_none_can_have_had(tmp_path: Path, *, is_source: bool) -> None:
    """It is taken for a client's, who may name any: on a source it does no harm; a delivery with it
    is named, as no source waited for it. Folding it would take memory for all ids up to it.
    """
    config = dataclasses.replace(CONFIG, property_crc=False)
    clock = ManualClock(START_MS)
    store = timerstore.open(tmp_path / "s", config, clock=clock, threads=False)
    stepper = Stepper(store)
    store.put("t", b"x", delay=50, queue_id=0)
    stepper.settle()
    store.flush()
    path = segment(tmp_path / "s", "commitlog", 0, config.commit_log_segment_bytes)
    source = path.read_bytes().index(b"TS_ID\x01") + 12
    if is_source:
        flip(path, source, ord("A") ^ ord("B"))
    clock.advance(50_000)
    stepper.settle()
    [came] = store.pull("t", 0, 0).messages
    assert store.verify().clean
    store.flush()
    flip(path, path.read_bytes().index(b"TS_ID\x01", source) + 12, ord("A") ^ ord("B"))
    if is_source:
        assert store.verify().clean
    else:
        named(store.verify(), "a delivery without a source before it", f"offset {came.log_offset}")
    store.close()


def test_a_failed_store_says_so(bench: Bench) -> None:
    inside(bench.store).log.fail(CorruptError("made by a test"))
    with pytest.raises(timerstore.FailedError, match="made by a test"):
        bench.store.verify()


# --- the fold -------------------------------------------------------------------------------------


def test_packed_states_keep_what_they_are_given() -> None:
    states = IdStates()
    ids = np.array([0, 3, 5, 4 * 5000 + 1], np.int64)
    states.put(ids, np.array([1, 2, 3, 1], np.uint8))
    assert states.get(np.arange(6)).tolist() == [1, 0, 0, 2, 0, 3]
    assert np.concatenate(list(waiting(states.copy()))).tolist() == [0, 20_001]
    other = IdStates()
    other.put(ids, np.array([1, 2, 2, 0], np.uint8))
    assert list(differing(states.copy(), other.copy(), only_known=False)) == [
        (5, 3, 2),
        (20_001, 1, 0),
    ]
    assert list(differing(other.copy(), states.copy(), only_known=True)) == [(5, 2, 3)]


def test_an_empty_batch_folds() -> None:
    one = LogFold(7)
    one.add(np.zeros(0, SCAN_DTYPE))
    assert not one.foreign
    assert not one.pending
