"""Read our own closed store with the second reader."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import timerstore
from tests.interop.our_store import CONFIG, Made, make
from tests.support import disk_reader as disk
from tests.support.inside import failpoints
from timerstore import CancelResult, StoreConfig
from timerstore._engine.timer.timer_retention import ExpiredSegments
from timerstore.testing import ManualClock, Stepper


@pytest.fixture(scope="module", autouse=True)
def _whole_timer_log() -> Iterator[None]:
    """Old files of the timer log are kept, because the tests read their units."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ExpiredSegments, "retire", lambda _self: False)
        yield


@pytest.fixture(scope="module", params=["small files", "default geometry"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    is_small = request.param == "small files"
    root = tmp_path_factory.mktemp("ours") / "store"
    return make(root, CONFIG if is_small else StoreConfig(flush="async"))


@pytest.fixture(scope="module")
def log(made: Made) -> dict[int, disk.Record]:
    return {record.position: record for record in disk.records(made.root)}


@pytest.fixture(scope="module")
def config(made: Made) -> StoreConfig:
    return timerstore_config(made)


def timerstore_config(made: Made) -> StoreConfig:
    is_small = (made.root / "timerlog" / "00000000000000000000").stat().st_size == 4096
    return CONFIG if is_small else StoreConfig()


# --- sizes ---


def test_every_file_has_its_length(made: Made, config: StoreConfig) -> None:
    sizes = {
        "commitlog": config.commit_log_segment_bytes,
        "timerlog": config.timer_log_segment_bytes,
        "consumequeue": config.queue_segment_bytes,
    }
    for folder, size in sizes.items():
        files = [path for path in (made.root / folder).rglob("*") if path.is_file()]
        assert files
        for directory in {path.parent for path in files}:
            offsets = sorted(int(path.name) for path in directory.iterdir())
            assert offsets == list(range(0, size * len(offsets), size)), directory
        assert {path.stat().st_size for path in files} == {size}
        assert {len(path.name) for path in files} == {20}
    assert (made.root / "timerwheel").stat().st_size == config.wheel_slot_count * 32
    assert (made.root / "config" / "timercheck").stat().st_size == 4096
    assert (made.root / "checkpoint").stat().st_size == 4096
    assert (made.root / "lock").read_bytes() == b"lock"
    assert not disk.is_unclean(made.root)


# --- records ---


def test_records_are_valid_and_queues_have_no_gaps(made: Made, log: dict[int, disk.Record]) -> None:
    assert disk.log_end(made.root).reason == "zeros"
    for record in log.values():
        assert record.log_offset == record.position
        assert record.body_crc_holds
        assert record.property_crc_holds
        assert record.properties_text.endswith(b"\x02")
    units = 0
    for topic, queue_id in disk.queues(made.root):
        for place, unit in enumerate(disk.iter_queue(made.root, topic, queue_id)):
            record = log[unit.log_offset]
            assert (record.topic, record.queue_id) == (topic, queue_id)
            assert (record.queue_offset, record.size) == (place, unit.size)
            assert unit.tags_code == disk.java_hash(record.properties.get("TAGS", ""))
            units += 1
    assert units == len(log)


def test_stored_messages_match_the_puts(made: Made, log: dict[int, disk.Record]) -> None:
    real = Counter(
        (record.topic, record.properties["UNIQ_KEY"])
        for record in log.values()
        if record.topic != disk.TIMER_TOPIC
    )
    assert real == Counter((one.topic, key) for key, one in made.delivered.items())


# --- zeros after the end ---


def zeros_behind(folder: Path, end: int) -> None:
    for start, path in disk.segments(folder):
        with path.open("rb") as file:
            file.seek(max(0, min(end - start, path.stat().st_size)))
            rest = file.read(1 << 20)
            assert not rest.strip(b"\0"), path


def test_files_hold_zeros_after_their_ends(made: Made) -> None:
    zeros_behind(made.root / "commitlog", disk.log_end(made.root).position)
    zeros_behind(
        made.root / "timerlog", [unit.pos + 52 for unit in disk.timer_units(made.root)][-1]
    )
    for topic, queue_id in disk.queues(made.root):
        count = sum(1 for _ in disk.iter_queue(made.root, topic, queue_id))
        zeros_behind(made.root / "consumequeue" / topic / str(queue_id), 20 * count)


# --- blanks ---


def test_every_full_file_ends_with_a_blank(made: Made, config: StoreConfig) -> None:
    size = config.commit_log_segment_bytes
    blanks = [one for one in disk.iter_log(made.root) if isinstance(one, disk.Blank)]
    last = disk.log_end(made.root).position // size
    assert [blank.position // size for blank in blanks] == list(range(last))
    assert all((blank.position + blank.size) % size == 0 for blank in blanks)
    assert all(blank.size >= 8 for blank in blanks)
    size = config.timer_log_segment_bytes
    found = list(disk.iter_timer_log(made.root))
    units_a_file = (size - 16) // 52
    for at, one in enumerate(found):
        if isinstance(one, disk.Blank):
            assert at % (units_a_file + 1) == units_a_file  # a file is full before its blank
            assert (one.position + one.size) % size == 0
    if size == 4096:
        assert sum(isinstance(one, disk.Blank) for one in found) > 1


# --- the timer ---


def test_every_timer_record_has_a_unit_and_its_last_copy_counts(
    made: Made, log: dict[int, disk.Record]
) -> None:
    units = list(disk.timer_units(made.root))
    queue = list(disk.iter_queue(made.root, disk.TIMER_TOPIC, 0))
    assert [unit.log_offset for unit in units] == [unit.log_offset for unit in queue]
    for unit in units:
        record = log[unit.log_offset]
        assert unit.store_size == record.size
        assert unit.topic_hash == disk.java_hash(record.properties["REAL_TOPIC"])
        assert bool(unit.magic & disk.TIMER_DELETE) == ("TIMER_DEL_UNIQKEY" in record.properties)
        assert unit.magic & disk.TIMER_DEFAULT
        assert unit.slot_ms % 1000 == unit.write_ms % 1000 == 0
        assert unit.is_sealed


def test_slots_match_their_chains(made: Made, config: StoreConfig) -> None:
    check = disk.read_timer_check(made.root)
    assert check is not None
    for slot in disk.iter_slots(made.root):
        assert slot.number == slot.time % config.wheel_slot_count
        if slot.slot_ms(1000) < check.read_ms:
            continue
        chain = disk.chain(made.root, slot)
        assert (chain[0].pos, chain[-1].pos) == (slot.last_pos, slot.first_pos)
        assert {unit.slot_ms for unit in chain} == {slot.slot_ms(1000)}
        assert slot.unit_count == len(chain)
        assert slot.magic == 0


def test_pending_messages_are_linked_to_the_slot_that_reads_them(
    made: Made, log: dict[int, disk.Record]
) -> None:
    check = disk.read_timer_check(made.root)
    assert check is not None
    linked: Counter[str] = Counter()
    for slot in disk.iter_slots(made.root):
        if slot.slot_ms(1000) >= check.read_ms:
            for unit in disk.chain(made.root, slot):
                record = log[unit.log_offset]
                out_ms = int(record.properties["TIMER_OUT_MS"])
                assert slot.slot_ms(1000) <= out_ms
                assert bool(unit.magic & disk.TIMER_ROLL) == (slot.slot_ms(1000) < out_ms)
                linked[record.properties["UNIQ_KEY"]] += 1
    assert linked == Counter(made.waiting.keys())


def relinked(root: Path, config: StoreConfig) -> dict[int, disk.Slot]:
    """Return the slots by index as a broker has them after loading.

    It links the units of the timer log's last two files again, each into the slot that it names.
    """
    check = disk.read_timer_check(root)
    assert check is not None
    size = config.timer_log_segment_bytes
    slots = {slot.number: slot for slot in disk.iter_slots(root)}
    for unit in disk.timer_units(root):
        if unit.pos < max(0, check.flushed_pos - size) // size * size:
            continue
        time = unit.slot_ms // 1000
        old = slots.get(time % config.wheel_slot_count)
        first = old.first_pos if old is not None and old.time == time else unit.pos
        number = time % config.wheel_slot_count
        slots[number] = disk.Slot(number, time, first, unit.pos, 0, 0)
    return slots


def found_by_a_broker(root: Path, config: StoreConfig, log: dict[int, disk.Record]) -> Counter[str]:
    """Return the ids of the messages that a broker would deliver."""
    check = disk.read_timer_check(root)
    assert check is not None
    found: Counter[str] = Counter()
    for slot in relinked(root, config).values():
        if slot.slot_ms(1000) >= check.read_ms:
            for unit in disk.chain(root, slot):
                assert unit.slot_ms == slot.slot_ms(1000)
                assert not unit.magic & disk.TIMER_DELETE
                found[log[unit.log_offset].properties["UNIQ_KEY"]] += 1
    return found


def test_broker_finds_exactly_the_pending_messages(
    made: Made, config: StoreConfig, log: dict[int, disk.Record]
) -> None:
    assert found_by_a_broker(made.root, config, log) == Counter(made.waiting.keys())


def test_timer_check_matches(made: Made) -> None:
    check = disk.read_timer_check(made.root)
    assert check is not None
    count = sum(1 for _ in disk.iter_queue(made.root, disk.TIMER_TOPIC, 0))
    assert check.queue_offset == check.master_queue_offset == count
    assert check.flushed_pos == [unit.pos + 52 for unit in disk.timer_units(made.root)][-1]
    assert made.closed_ms - 2000 < check.read_ms <= made.closed_ms + 1000
    assert check.read_ms % 1000 == 0
    assert check.version_ms == made.closed_ms
    assert check.counter > 0


CLOSING = ("close_checkpointed", "close_relinked", "close_buried", "close_written_for_brokers")


@pytest.mark.more
def test_kill_while_closing_loses_and_doubles_no_message(
    made: Made, config: StoreConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copy the store at each fail point of closing.

    Pending messages are the same, and delivered once.
    """
    if config is not CONFIG:
        pytest.skip("one geometry is enough")
    copies: list[Path] = []

    def copy(point: str) -> None:
        if point in CLOSING:
            copies.append(shutil.copytree(root, tmp_path / point))

    clock = ManualClock(made.closed_ms)
    root = shutil.copytree(made.root, tmp_path / "store")
    store = timerstore.open(root, config, clock=clock, threads=False)
    stepper = Stepper(store)
    cancelled = list(made.waiting)[::5]
    for key in cancelled:
        assert store.cancel(made.waiting[key]) is CancelResult.CANCELLED
    clock.advance(3_300)
    stepper.settle()
    waiting = {one.message_id for one in store.pending()}
    assert 0 < len(waiting) < len(made.waiting) - len(cancelled)
    # no slot is assigned to it any more
    for receipt in [made.waiting[key] for key in list(waiting)[::7]]:
        assert store.cancel(receipt) is CancelResult.CANCELLED
        waiting.remove(receipt.message_id)
    monkeypatch.setattr(failpoints, "hook", copy)
    store.close()
    monkeypatch.setattr(failpoints, "hook", None)
    assert [path.name for path in copies] == list(CLOSING)
    for path in [*copies, root]:
        timerstore.open(path, config, clock=clock, threads=False).close()
        records = {record.log_offset: record for record in disk.records(path)}
        assert found_by_a_broker(path, config, records) == Counter(waiting)
        with timerstore.open(path, config, clock=clock, threads=False) as store:
            assert {one.message_id for one in store.pending()} == waiting
            assert store.verify().problems == ()
            before = {topic: out_counts(store, topic) for topic in ("orders", "reminders")}
            clock.advance(200_000)
            Stepper(store).settle()
            after = {topic: out_counts(store, topic) for topic in ("orders", "reminders")}
            new = [key for topic in after for key in (after[topic] - before[topic]).elements()]
            assert Counter(new) == Counter(waiting)
            clock.set(clock.now_ms - 200_000)


def out_counts(store: timerstore.TimerStore, topic: str) -> Counter[str]:
    return Counter(
        message.message_id
        for queue_id in (0, 1)
        for message in store.pull_batch(topic, queue_id, 0)
    )


# --- the small files ---


def test_checkpoint_matches(made: Made, log: dict[int, disk.Record]) -> None:
    check = disk.read_checkpoint(made.root)
    assert check is not None
    newest_ms = max(record.store_ms for record in log.values())
    assert check.log_ms == check.queues_ms == newest_ms


def test_timer_metrics_match(made: Made) -> None:
    wanted = Counter(one.topic for one in made.waiting.values())
    assert disk.read_timer_metrics(made.root) == wanted


def test_topics_match(made: Made) -> None:
    raw = json.loads((made.root / "config" / "topics.json").read_text("utf-8"))
    assert raw.keys() == {"dataVersion", "topicConfigTable"}
    topics = disk.read_topics(made.root)
    for topic, queue_id in disk.queues(made.root):
        if topic == disk.TIMER_TOPIC:  # a broker creates its system topics itself
            continue
        one = topics[topic]
        assert one["topicName"] == topic
        assert one["readQueueNums"] == one["writeQueueNums"] > queue_id
        assert one["perm"] == 6
        assert one["topicFilterType"] == "SINGLE_TAG"


# --- queue units ---


def queue_units(root: Path) -> Iterator[tuple[bytes, disk.Record]]:
    """Return the raw units of our queues, with the record of each."""
    for topic, queue_id in disk.queues(root):
        folder = root / "consumequeue" / topic / str(queue_id)
        for unit in disk.iter_queue(root, topic, queue_id):
            raw = disk.read_at(folder, unit.queue_offset * 20, 20)
            yield raw, disk.read_record(root, unit.log_offset, unit.size)


def test_queue_unit_and_blank_vectors_are_written(made: Made) -> None:
    codes = {"TagA": "000000000027a807", "TopicTest": "ffffffff8e987641"}
    seen = set()
    for raw, record in queue_units(made.root):
        tag = record.properties.get("TAGS", "")
        if tag in codes:
            seen.add(tag)
            assert raw.hex() == f"{record.position:016x}{record.size:08x}{codes[tag]}"
    assert seen == codes.keys()
    for one in disk.iter_log(made.root):
        if isinstance(one, disk.Blank):
            raw = disk.read_at(made.root / "commitlog", one.position, 8)
            assert raw.hex() == f"{one.size:08x}cbd43194"
