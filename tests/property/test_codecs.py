"""Test small files in both directions, and the files of a closed store against the tables.

C reads the files that `disk_reader` writes, and the reverse. `disk_reader` knows the formats only
from their tables. The stores are written by the engine itself, with plain calls.

See also: test_record_codecs.py, test_index_codecs.py
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.strategies import I64, NAT63
from tests.support import disk_reader as disk
from tests.support.driver import START_MS, tiny
from timerstore import PullStatus, StoreConfig, TimerStore
from timerstore._engine.base.native import ffi, lib
from timerstore.testing import ManualClock, Stepper

# --- small files ---


@given(st.tuples(*[I64] * 7))
def test_timer_check_round_trip(fields: tuple[int, ...]) -> None:
    out = ffi.new("uint8_t[56]")
    lib.ts_timer_check_pack(ffi.new("int64_t[]", fields), out)
    assert bytes(ffi.buffer(out)) == disk.encode_timer_check(disk.TimerCheck(*fields))
    back = ffi.new("int64_t[7]")
    assert lib.ts_timer_check_unpack(out, 56, back) == 0
    assert tuple(back) == fields
    assert lib.ts_timer_check_unpack(out, 32, back) == 0
    assert tuple(back) == (*fields[:4], 0, 0, 0)
    assert lib.ts_timer_check_unpack(out, 31, back) == lib.TS_CORRUPT


@given(st.tuples(*[I64] * 5))
def test_checkpoint_matches_the_table(fields: tuple[int, ...]) -> None:
    out = ffi.new("uint8_t[40]")
    lib.ts_store_checkpoint_pack(ffi.new("int64_t[]", fields), out)
    assert bytes(ffi.buffer(out)) == disk.encode_checkpoint(disk.Checkpoint(*fields))


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 2**20)), max_size=40), NAT63)
def test_units_below_counts_records_up_to_an_offset(
    rows: list[tuple[int, int]], limit: int
) -> None:
    rows = sorted(rows)
    ends = np.maximum.accumulate([at + size for at, size in rows]) if rows else []
    rows = [(int(end) - size, size) for end, (_, size) in zip(ends, rows, strict=True)]
    data = b"".join(disk.encode_queue_unit(at, size, 0) for at, size in rows)
    limit %= 2**41
    wanted = sum(at + size <= limit for at, size in rows)
    assert lib.ts_units_below(data, len(rows), limit) == wanted


# --- the files of a store ---

PUT = st.tuples(
    st.sampled_from(["orders", "mail"]),
    st.binary(min_size=1, max_size=400),
    st.one_of(st.just(0), st.integers(1, 200_000)),  # ms from now
    st.one_of(st.none(), st.text("abc", min_size=1, max_size=5)),
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@settings(max_examples=25)
@given(
    puts=st.lists(PUT, max_size=40), cancels=st.sets(st.integers(0, 39)), ms=st.integers(0, 90_000)
)
def test_files_of_a_closed_store_match_the_tables(
    folder: Path, puts: list[tuple[str, bytes, int, str | None]], cancels: set[int], ms: int
) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        check_store(Path(name), tiny(1000, "async"), puts, cancels, ms)


def check_store(
    root: Path,
    config: StoreConfig,
    puts: list[tuple[str, bytes, int, str | None]],
    cancels: set[int],
    ms: int,
) -> None:
    clock = ManualClock(START_MS)
    receipts = []
    with TimerStore(root, config, clock=clock, threads=False) as store:
        stepper = Stepper(store)
        for topic, body, delay_ms, tags in puts:
            due_ms = START_MS + delay_ms if delay_ms else None
            receipts.append(store.put(topic, body, deliver_ms=due_ms, tags=tags))
        stepper.settle()
        for n in cancels:
            if n < len(receipts):
                store.cancel(receipts[n])
        clock.advance(ms)
        stepper.settle()
        pending = {one.message_id: one for one in store.pending()}
        pulled = []
        for topic in {topic for topic, *_ in puts}:
            batch = store.pull_batch(topic, 0, 0)
            assert batch.status in (PullStatus.FOUND, PullStatus.NO_MESSAGE_IN_QUEUE)
            pulled += list(batch)
    records = {one.position: one for one in disk.records(root)}
    for one in records.values():
        assert one.body_crc_holds
        assert one.property_crc_holds
        assert one.log_offset == one.position
    for (topic, body, delay_ms, tags), receipt in zip(puts, receipts, strict=True):
        source = records[receipt.log_offset]
        assert (source.raw_body, source.properties["UNIQ_KEY"]) == (body, receipt.message_id)
        assert source.properties.get("TAGS") == tags
        assert (source.born_ms, source.store_ms) == (START_MS, START_MS)
        assert source.topic == (disk.TIMER_TOPIC if delay_ms else topic)
        if delay_ms:
            due_ms = START_MS + delay_ms
            assert source.properties["TIMER_DELIVER_MS"] == str(due_ms)
            assert source.properties["TIMER_OUT_MS"] == str((due_ms - 1) // 1000 * 1000)
            assert (source.properties["REAL_TOPIC"], source.properties["REAL_QID"]) == (topic, "0")
            assert source.timer_id is not None
            assert source.timer_id[1] == source.queue_offset
    check_pulled(records, pulled)
    check_queues(root, records)
    check_timer(root, records, set(pending), START_MS + ms)


def check_pulled(records: dict[int, disk.Record], pulled: list[Any]) -> None:
    for message in pulled:
        one = records[message.log_offset]
        assert (one.topic, one.raw_body, one.queue_offset) == (
            message.topic, message.body, message.queue_offset,
        )  # fmt: skip
        assert one.properties == message.properties
        assert one.store_ms == message.delivered_ms >= message.due_ms


def check_queues(root: Path, records: dict[int, disk.Record]) -> None:
    expected: dict[tuple[str, int], list[disk.Record]] = {}
    for one in records.values():
        expected.setdefault((one.topic, one.queue_id), []).append(one)
    for (topic, queue_id), wanted in expected.items():
        units = list(disk.iter_queue(root, topic, queue_id))
        found = [(u.queue_offset, u.log_offset, u.size, u.tags_code) for u in units]
        assert found == [
            (
                one.queue_offset,
                one.position,
                one.size,
                disk.java_hash(one.properties.get("TAGS", "")),
            )
            for one in wanted
        ]


def check_timer(
    root: Path, records: dict[int, disk.Record], pending: set[str], now_ms: int
) -> None:
    queued = [one for one in records.values() if one.topic == disk.TIMER_TOPIC]
    units = list(disk.timer_units(root))
    assert [unit.log_offset for unit in units] == [one.position for one in queued]
    for unit, one in zip(units, queued, strict=True):
        assert unit.store_size == one.size
        assert unit.is_sealed
        assert unit.topic_hash == disk.java_hash(one.properties["REAL_TOPIC"])
        assert unit.prev_pos < unit.pos
    check = disk.read_timer_check(root)
    assert check is not None
    assert check.queue_offset == len(queued)
    waiting = set()
    for slot in disk.iter_slots(root):
        for unit in disk.chain(root, slot):
            assert unit.slot_ms == slot.slot_ms(1000)
            one = records[unit.log_offset]
            if slot.slot_ms(1000) >= check.read_ms and not unit.magic & disk.TIMER_DELETE:
                waiting.add(one.properties["UNIQ_KEY"])
    assert pending <= waiting, "a broker would not find what waits"
    stored = disk.read_checkpoint(root)
    assert stored is not None
    assert stored.log_ms == max((one.store_ms for one in records.values()), default=0)
    assert not disk.is_unclean(root)
    counts = disk.read_timer_metrics(root)
    assert sum(counts.values()) == len(pending)
