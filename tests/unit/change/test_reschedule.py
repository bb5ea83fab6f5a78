"""reschedule: a message is pending at one time, and both records are in the log or neither."""

import base64
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support import disk_reader as disk
from tests.support.bench import DAY, NOW, YEAR, Bench, small
from tests.support.driver import abandon
from tests.support.inside import inside
from timerstore import CancelResult, NotPendingError, PutReceipt
from timerstore._engine.base import failpoints
from timerstore._engine.format.handle import decode, encode
from timerstore.testing import ManualClock


def brokers_form(receipt: PutReceipt) -> str:
    """The handle as a broker would have given it: without the sixth field."""
    return encode(decode(receipt.handle)._replace(timer_id=None))


@pytest.mark.parametrize("how", ["receipt", "handle", "json", "broker"])
@pytest.mark.parametrize("settled", [False, True])
def test_reschedule_to_later_and_to_earlier(bench: Bench, how: str, settled: bool) -> None:
    put = [bench.store.put("t", b"%d" % k, delay=10) for k in range(3)]
    if settled:
        bench.turn()

    def named(receipt: PutReceipt) -> Any:
        forms = {"receipt": receipt, "handle": receipt.handle, "broker": brokers_form(receipt)}
        return forms.get(how) or json.loads(json.dumps(receipt.handle))

    later = bench.store.reschedule(named(put[0]), delay=20)
    sooner = bench.store.reschedule(named(put[1]), delay=5)
    assert (later.due_ms, sooner.due_ms) == (NOW + 20_000, NOW + 5000)
    assert later.message_id == put[0].message_id
    assert (later.topic, later.queue_id, later.queue_offset) == ("t", 0, None)
    assert later.timer_id > put[2].timer_id
    handles = {one.message_id: one.handle for one in bench.store.pending()}
    assert handles == {r.message_id: r.handle for r in (later, sooner, put[2])}
    bench.turn(4999)
    assert bench.bodies() == []
    bench.turn(1)
    assert bench.bodies() == [b"1"]
    bench.turn(5000)
    assert bench.bodies() == [b"1", b"2"]
    bench.turn(9999)
    assert bench.bodies() == [b"1", b"2"]
    bench.turn(1)
    assert bench.bodies() == [b"1", b"2", b"0"]
    out = bench.out()
    assert [m.message_id for m in out] == [r.message_id for r in (put[1], put[2], put[0])]
    assert [m.due_ms for m in out] == [NOW + 5000, NOW + 10_000, NOW + 20_000]
    assert [m.delivered_ms for m in out] == [m.due_ms for m in out]
    assert "TS_GROUP" not in out[0].properties
    assert bench.store.stats()["rescheduled_messages"] == 2


@pytest.mark.parametrize(
    "given",
    [{"delay": 0}, {"delay": timedelta(0)}, {"deliver_ms": NOW}, {"deliver_ms": NOW - YEAR},
     {"deliver_ms": 0}, {"deliver_at": datetime(2001, 1, 1, tzinfo=UTC)}],
)  # fmt: skip
def test_reschedule_to_now_delivers_the_message(bench: Bench, given: dict[str, Any]) -> None:
    receipt = bench.store.put("t", b"x", delay=10, tags="a", keys="k")
    now = bench.store.reschedule(receipt, **given)
    assert (now.queue_offset, now.due_ms, now.timer_id) == (0, NOW, -1)
    assert list(bench.store.pending()) == []
    bench.turn()
    (message,) = bench.out()
    assert (message.due_ms, message.delivered_ms) == (NOW, NOW)
    assert message.log_offset == now.log_offset
    assert message.message_id == now.message_id == receipt.message_id
    assert (message.tags, message.keys) == ("a", ("k",))
    assert bench.store.cancel(now) is CancelResult.ALREADY_DELIVERED
    assert bench.store.cancel(receipt) is CancelResult.ALREADY_CANCELLED
    bench.reopen()
    bench.turn(20_000)
    assert bench.bodies() == [b"x"]


@pytest.mark.parametrize(
    ("given", "due_ms"),
    [({"delay": 0.0011}, NOW + 2), ({"delay": timedelta(days=2)}, NOW + 2 * DAY),
     ({"deliver_ms": NOW + 1}, NOW + 1), ({"deliver_ms": NOW + 40 * YEAR}, NOW + 40 * YEAR),
     ({"deliver_at": datetime.fromtimestamp(NOW / 1000 + 3, UTC)}, NOW + 3000)],
)  # fmt: skip
def test_reschedule_accepts_the_times_of_put(
    tmp_path: Path, given: dict[str, Any], due_ms: int
) -> None:
    bench = Bench(tmp_path / "s", small(delay_ms_max=40 * YEAR))
    receipt = bench.store.reschedule(bench.store.put("t", b"x", delay=10), **given)
    assert receipt.due_ms == due_ms
    assert [one.due_ms for one in bench.store.pending()] == [due_ms]
    bench.close()


def test_reschedule_keeps_all_fields_of_the_message(bench: Bench) -> None:
    put = bench.store.put(
        "t", b"body", delay=10, tags="a", keys=["k", "l"], properties={"x": "ü", "y": "z"},
        queue_id=2,
    )  # fmt: skip
    bench.turn(5)
    moved = bench.store.reschedule(put, delay=20)
    again = bench.store.reschedule(moved, delay=30)
    assert again.queue_id == 2
    bench.turn(40_000)
    (message,) = bench.out("t", 2)
    assert message.body == b"body"
    assert (message.tags, message.keys) == ("a", ("k", "l"))
    assert {message.properties[name] for name in "xy"} == {"ü", "z"}
    assert message.born_ms == NOW
    assert message.due_ms == NOW + 5 + 30_000
    assert message.born_host == message.store_host == "127.0.0.1:10911"


def test_old_handle_is_cancelled_after_reschedule(bench: Bench) -> None:
    old = bench.store.put("t", b"x", delay=10)
    new = bench.store.reschedule(old, delay=100)
    for _ in range(2):
        assert bench.store.cancel(old) is CancelResult.ALREADY_CANCELLED
        assert bench.store.cancel(brokers_form(old)) is CancelResult.ALREADY_CANCELLED
        with pytest.raises(NotPendingError) as caught:
            bench.store.reschedule(old, delay=5)
        assert caught.value.result == CancelResult.ALREADY_CANCELLED
        bench.reopen()
        bench.turn()
    assert bench.store.cancel(brokers_form(new)) is CancelResult.CANCELLED
    assert bench.store.cancel(new) is CancelResult.ALREADY_CANCELLED
    bench.turn(200_000)
    assert bench.bodies() == []


def test_broker_handle_finds_the_pending_message_of_its_slot(bench: Bench) -> None:
    old = bench.store.put("t", b"x", deliver_ms=NOW + 5100)
    new = bench.store.reschedule(old, deliver_ms=NOW + 5900)
    assert brokers_form(old) == brokers_form(new)
    assert bench.store.cancel(old) is CancelResult.ALREADY_CANCELLED
    assert bench.store.cancel(brokers_form(old)) is CancelResult.CANCELLED
    assert bench.store.cancel(brokers_form(old)) is CancelResult.ALREADY_CANCELLED
    assert list(bench.store.pending()) == []


def test_rescheduled_message_is_last_among_equal_due_times(bench: Bench) -> None:
    put = [bench.store.put("t", b"%d" % k, delay=10) for k in range(3)]
    bench.store.reschedule(put[0], deliver_ms=put[1].due_ms)
    bench.turn(10_000)
    assert bench.bodies() == [b"1", b"2", b"0"]


def test_message_in_the_open_slot_is_rescheduled(bench: Bench) -> None:
    """The slot was read: the message waits in the open slot for its millisecond."""
    put = [bench.store.put("t", b"%d" % k, deliver_ms=NOW + 1900 + k) for k in range(2)]
    bench.turn(1500)
    bench.store.reschedule(put[0], deliver_ms=NOW + 1950)
    bench.turn(440)
    assert bench.bodies() == [b"1"]
    bench.turn(10)
    assert bench.bodies() == [b"1", b"0"]


def test_rolled_message_is_rescheduled(bench: Bench) -> None:
    put = bench.store.put("t", b"x", delay=500)
    for _ in range(6):
        bench.turn(40_000)
    assert int(next(iter(bench.store.pending())).log_offset) > put.log_offset
    moved = bench.store.reschedule(brokers_form(put), delay=1)
    bench.reopen()
    bench.turn(1000)
    (message,) = bench.out()
    assert message.due_ms == moved.due_ms == NOW + 241_000
    assert "TIMER_ROLL_TIMES" not in message.properties
    bench.turn(1_000_000)
    assert bench.bodies() == [b"x"]


@pytest.mark.parametrize("lose", [(), ("timerstore",), ("timerwheel", "timerlog")])
def test_reschedule_survives_reopening(bench: Bench, lose: tuple[str, ...]) -> None:
    put = [bench.store.put("t", b"%d" % k, delay=10) for k in range(4)]
    new = bench.store.reschedule(put[0], delay=30)
    bench.store.reschedule(put[1], delay=0)
    bench.turn(1000)
    newer = bench.store.reschedule(put[2], delay=40)
    bench.close()
    for name in lose:
        shutil.rmtree(bench.root / name, ignore_errors=True)
        if (bench.root / name).exists():
            (bench.root / name).unlink()
    bench.open()
    assert bench.store.stats()["pending_by_topic"] == {"t": 3}
    assert bench.store.cancel(put[0]) is CancelResult.ALREADY_CANCELLED
    newest = bench.store.reschedule(new, delay=50)
    assert [p.handle for p in bench.store.pending()] == [
        put[3].handle, newer.handle, newest.handle,
    ]  # fmt: skip
    bench.turn(100_000)
    assert bench.bodies() == [b"1", b"3", b"2", b"0"]


# --- records in the log ---


def group_of(record: disk.Record) -> tuple[int, int]:
    found = disk.decode_ts_id(record.properties["TS_GROUP"])
    assert found is not None
    return found[1], found[0]  # start, bytes still to come


@pytest.mark.parametrize("property_crc", [False, True])
@pytest.mark.parametrize("delay", [0, 20])
def test_reschedule_appends_a_delete_record_and_the_message(
    tmp_path: Path, property_crc: bool, delay: int
) -> None:
    bench = Bench(tmp_path / "s", small(property_crc=property_crc))
    put = bench.store.put("t", b"body", delay=10, tags="a")
    moved = bench.store.reschedule(put, delay=delay)
    bench.close()
    source, delete, new = disk.records(bench.root)
    assert new.position == moved.log_offset
    assert delete.topic == disk.TIMER_TOPIC
    assert delete.timer_id == source.timer_id
    assert delete.properties["TIMER_DEL_UNIQKEY"] == f"t+{put.message_id}"
    assert delete.properties["TIMER_OUT_MS"] == source.properties["TIMER_OUT_MS"]
    assert group_of(delete) == (delete.position, new.size)
    assert group_of(new) == (delete.position, 0)
    assert (delete.property_crc_holds, new.property_crc_holds) == (property_crc or None,) * 2
    assert new.body == source.body
    assert new.born_ms == source.born_ms
    kept = {"TAGS", "UNIQ_KEY"}
    if delay:
        assert new.topic == disk.TIMER_TOPIC
        assert new.timer_id == (source.timer_id[0], new.queue_offset)
        assert new.properties["TIMER_DELIVER_MS"] == str(NOW + 20_000)
        assert new.properties["TIMER_OUT_MS"] == str(NOW + 19_000)
        kept |= {"REAL_TOPIC", "REAL_QID"}
    else:
        assert (new.topic, new.queue_offset) == ("t", 0)
        assert not new.properties.keys() & {"TS_ID", "TIMER_OUT_MS", "TIMER_DELIVER_MS"}
    assert {k: new.properties[k] for k in kept} == {k: source.properties[k] for k in kept}


# --- torn tails -----------------------------------------------------------------------------------


class Torn:
    """A store whose log ends with one group, as a power cut may leave it: no staging counts."""

    def __init__(self, root: Path, *, property_crc: bool, delay: int, pad: int) -> None:
        self.config = small(
            commit_log_segment_bytes=8192, staging_bytes=4096, property_crc=property_crc,
            flush="sync",
        )  # fmt: skip
        self.clock = ManualClock(NOW)
        store = timerstore.open(root / "a", self.config, clock=self.clock, threads=False)
        store.put("pad", bytes(pad))
        self.old = store.put("t", b"x" * 300, delay=10)
        store.flush()
        self.new = store.reschedule(self.old, delay=delay)
        self.end = store.stats()["log_end_bytes"]
        self.image, self.root = root / "image", root
        shutil.copytree(root / "a", self.image)
        (self.image / "timerstore" / "staging").unlink()
        abandon(store)
        start, _ = next(group_of(r) for r in disk.records(self.image) if "TS_GROUP" in r.properties)
        self.start = start
        self.log = (self.image / "commitlog" / f"{0:020d}").read_bytes()
        self.is_now = delay == 0

    def check(self, log: bytes, wanted: set[str], lose: str = "") -> str:
        """Open this log: the message is pending at the old time or at the new one, never both."""
        copy = self.root / "copy"
        shutil.copytree(self.image, copy)
        (copy / "commitlog" / f"{0:020d}").write_bytes(log)
        if lose:
            shutil.rmtree(copy / lose)
        with timerstore.open(copy, self.config, clock=self.clock, threads=False) as store:
            waiting = [one.handle for one in store.pending()]
            has_queue = "t" in store.topics()
            there = [m.message_id for m in store.pull("t", 0, 0).messages] if has_queue else []
            assert len(waiting) + len(there) == 1, "both, or neither"
            found = "now" if there else "old" if waiting == [self.old.handle] else "new"
            assert found in wanted
            assert found != "new" or waiting == [self.new.handle]
            assert store.verify().clean
            assert store.stats()["log_end_bytes"] == (self.start if found == "old" else self.end)
        shutil.rmtree(copy)
        return found


@pytest.mark.parametrize(
    ("property_crc", "delay", "lose"),
    [(True, 20, ""), (False, 0, ""), (False, 20, "timerstore"), (True, 0, "timerstore")],
)
def test_torn_at_every_sector(tmp_path: Path, property_crc: bool, delay: int, lose: str) -> None:
    """Of the sectors of the group each is on the disk or is not, in any combination."""
    after = "new" if delay else "now"
    seen = set()
    for pad in (1, 300):
        torn = Torn(tmp_path / str(pad), property_crc=property_crc, delay=delay, pad=pad)
        first, last = torn.start // 512, (torn.end - 1) // 512
        for kept in range(1 << (last - first + 1)):
            log = bytearray(torn.log)
            for k in range(last - first + 1):
                if not kept >> k & 1:
                    begin = max((first + k) * 512, torn.start)
                    log[begin : (first + k + 1) * 512] = bytes((first + k + 1) * 512 - begin)
            is_whole = kept == (1 << (last - first + 1)) - 1
            seen.add(torn.check(bytes(log), {after} if is_whole else {"old"}, lose))
    assert seen == {"old", after}


def test_group_is_never_split_by_staging_or_segment(tmp_path: Path) -> None:
    """Wherever the log stands, both records are in one segment, and one write brings both."""
    config = small(commit_log_segment_bytes=4096, staging_bytes=4096, reserve_bytes=4096)
    bench = Bench(tmp_path / "s", config)
    ends: list[int] = []

    def note(name: str) -> None:
        if name in ("log_half_swapped", "log_rolled", "log_written_out", "log_synced"):
            ends.append(inside(bench.store).log.written)

    receipt = bench.store.put("t", b"x" * 200, delay=1000)
    failpoints.hook = note
    try:
        for k in range(60):
            receipt = bench.store.reschedule(receipt, delay=1000 + k)
            bench.store.put("pad", bytes(17 * k % 300))
    finally:
        failpoints.hook = None
    bench.turn()
    bench.close()
    groups = [r for r in disk.records(bench.root) if "TS_GROUP" in r.properties]
    assert len(groups) == 120
    for delete, new in zip(groups[::2], groups[1::2], strict=True):
        assert new.position == delete.position + delete.size
        assert delete.position // 4096 == (new.position + new.size - 1) // 4096
        assert group_of(new) == (delete.position, 0)
        assert group_of(delete)[1] == new.size
        assert not any(delete.position < end < new.position + new.size for end in ends)
    assert len({r.position // 4096 for r in groups}) > 5


def test_base64_of_a_group_is_that_of_the_header() -> None:
    raw = (280).to_bytes(4, "big") + (1000).to_bytes(8, "big")
    assert base64.urlsafe_b64encode(raw) == b"AAABGAAAAAAAAAPo"
