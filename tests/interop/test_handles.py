"""Test a broker's handles in this store, and our handles as a broker decodes them."""

import hashlib
import shutil
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

import timerstore
from tests.support import disk_reader as disk
from tests.support.amounts import sample
from tests.support.bench import Bench
from tests.support.broker import fixtures as broker
from tests.support.broker.expected import Expected, Key
from timerstore import CancelResult, NotPendingError, StoreConfig, TimerStore
from timerstore._engine.timer import handle_lookup
from timerstore.testing import ManualClock, Stepper

STORES = sample(
    [name for name in broker.names() if name not in ("levels", "doubled-by-broker")],
    "broker stores",
)
DAY_MS = 86_400_000
_expected: dict[str, Expected] = {}


@pytest.fixture(params=STORES)
def expected(request: pytest.FixtureRequest) -> Expected:
    name = str(request.param)
    if name not in _expected:
        _expected[name] = Expected.of(name)
    return _expected[name]


@pytest.fixture
def root(expected: Expected, tmp_path: Path) -> Path:
    return broker.unpack(expected.name, tmp_path)


class Opened:
    """A store of a broker, open on a clock set by hand."""

    def __init__(self, root: Path, expected: Expected, now_ms: int) -> None:
        given = broker.about(expected.name)["store_config"]
        self.clock = ManualClock(now_ms)
        self.store = timerstore.open(
            root, StoreConfig(**given, flush="async"), clock=self.clock, threads=False
        )
        self.stepper = Stepper(self.store)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def turn(self, now_ms: int) -> None:
        self.clock.set(now_ms)
        self.stepper.settle()


def handle_of(expected: Expected, key: Key) -> str:
    """Return the broker's handle, or build it for a release that gave none."""
    for line in expected.sent:
        if (line["topic"], line["msg_id"]) == key and line.get("recall_handle"):
            return str(line["recall_handle"])
    out_ms = int(expected.sources[key]["properties"]["TIMER_OUT_MS"])
    return disk.encode_recall_handle(key[0], "lab", out_ms + 1, key[1])


def came(store: TimerStore) -> dict[Key, list[Any]]:
    found: dict[Key, list[Any]] = {}
    for topic, count in store.topics().items():
        for queue_id in range(count if topic in ("orders", "reminders") else 0):
            at = 0
            while len(batch := store.pull_batch(topic, queue_id, at)):
                for message in batch:
                    key = (message.properties.get("REAL_TOPIC", topic), message.message_id)
                    found.setdefault(key, []).append(message)
                at = batch.next_offset
    return found


def later_than(expected: Expected, ms: int) -> list[Key]:
    return [
        key for key, line in expected.waiting.items()
        if expected.due_ms(line) > expected.now_ms + ms
    ]  # fmt: skip


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Yield a list with one entry for each scan of the whole log."""
    found: list[int] = []
    real: Callable[..., Any] = handle_lookup.scan_batches

    def noted(*arguments: Any, **given: Any) -> Any:
        found.append(1)
        return real(*arguments, **given)

    monkeypatch.setattr(handle_lookup, "scan_batches", noted)
    return found


def test_broker_handle_is_found_in_the_slot_of_its_time(
    expected: Expected, root: Path, scans: list[int]
) -> None:
    """The message is not linked yet, linked, or read after a restart.

    A rolled one is found by the index.
    """
    keys = later_than(expected, 5000)
    assert len(keys) >= 6, "too few to say anything"
    cancelled: list[Key] = []

    def cancel_some(store: TimerStore) -> None:
        for key in keys[len(cancelled) : len(cancelled) + len(keys) // 5]:
            scans.clear()
            handle = handle_of(expected, key)
            assert store.cancel(handle) is CancelResult.CANCELLED
            assert store.cancel(handle) is CancelResult.ALREADY_CANCELLED
            assert not scans
            cancelled.append(key)

    with Opened(root, expected, expected.now_ms) as opened:
        scans_before = len(scans)
        assert opened.store.cancel(handle_of(expected, keys[0])) is CancelResult.CANCELLED
        assert len(scans) == scans_before
        cancelled.append(keys[0])
        opened.stepper.settle()
        cancel_some(opened.store)
    with Opened(root, expected, expected.now_ms) as opened:
        cancel_some(opened.store)
    shutil.rmtree(root / "timerstore")
    with Opened(root, expected, expected.now_ms) as opened:
        opened.stepper.settle()
        cancel_some(opened.store)
        left = {(p.topic, p.message_id) for p in opened.store.pending() if p.handle}
        assert left == expected.waiting.keys() - set(cancelled) - expected.late
        opened.turn(expected.last_due_ms)
        there = came(opened.store)
        assert not any(key in there for key in cancelled)
        assert all(len(there[key]) == 1 for key in expected.waiting.keys() - set(cancelled))
        for key in keys[len(cancelled) :][:5]:
            handle = handle_of(expected, key)
            assert opened.store.cancel(handle) is CancelResult.ALREADY_DELIVERED


def test_broker_message_can_be_rescheduled(expected: Expected, root: Path) -> None:
    """Use the broker's handles, for later, earlier and now. Then the side files are lost."""
    keys = later_than(expected, 5000)
    keys = keys[:: max(1, len(keys) // 30)]
    wanted: dict[Key, int] = {}
    with Opened(root, expected, expected.now_ms) as opened:
        store = opened.store
        for k, key in enumerate(keys):
            handle = handle_of(expected, key)
            if k == len(keys) // 2:
                opened.stepper.settle()
            due_ms = expected.now_ms + (0, 3001, 5 * DAY_MS + k)[k % 3]
            receipt = store.reschedule(handle, deliver_ms=due_ms)
            assert (receipt.topic, receipt.message_id) == key
            wanted[key] = due_ms
            out_ms = int(expected.waiting[key]["properties"]["TIMER_OUT_MS"])
            if timerstore.types.receipts.out_ms(due_ms, expected.precision_ms) != out_ms:
                assert store.cancel(handle) is CancelResult.ALREADY_CANCELLED
                with pytest.raises(NotPendingError):
                    store.reschedule(handle, delay=1)
        handles = {p.handle for p in store.pending() if (p.topic, p.message_id) in wanted}
    shutil.rmtree(root / "timerstore")
    with Opened(root, expected, expected.now_ms) as opened:
        store = opened.store
        assert handles == {
            p.handle for p in store.pending() if (p.topic, p.message_id) in wanted
        }  # fmt: skip
        opened.turn(expected.now_ms + 3000)
        opened.turn(expected.now_ms + 3001)
        opened.turn(max(expected.last_due_ms, *wanted.values()))
        assert list(store.pending()) == []
        assert store.verify().clean
        there = came(store)
    for key, due_ms in wanted.items():
        (message,) = there[key]
        line = expected.waiting[key]
        assert message.due_ms == due_ms <= message.delivered_ms
        assert hashlib.sha256(message.body).hexdigest() == line["body_sha256"]
        assert message.flag == line["flag"]
        assert message.born_ms == line["born_ms"]
        assert message.born_host.rpartition(":")[0] == line["born_host"]
        dropped = ("TIMER_", "REAL_", "TS_", "__CRC32#")
        for name, value in line["properties"].items():
            if not name.startswith(dropped):
                assert message.properties[name] == value
    counts = Counter({key: len(messages) for key, messages in there.items()})
    assert counts == expected.out + Counter(expected.left.keys())


# --- our handles, for a broker ---

WITHOUT_EFFECT = {"BORN_TIMESTAMP", "PGROUP", "TRACE_CONTEXT", "CLUSTER", "__CRC32#"}
"""Properties of the canceller and the time of the cancel. The last depends on the configuration."""


@pytest.mark.parametrize("name", ["rolled", "property-crc", "version-5.4.0"])
def test_delete_record_has_the_brokers_fields(name: str, tmp_path: Path) -> None:
    """Compare all fields except for the canceller, our queue property and our id."""
    root = broker.unpack(name, tmp_path)
    theirs = next(r for r in disk.records(root) if "TIMER_DEL_UNIQKEY" in r.properties)
    bench = Bench(tmp_path / "ours")
    topic = theirs.properties["REAL_TOPIC"]
    put = bench.store.put(topic, b"x", delay=10)
    bench.store.cancel(put)
    bench.close()
    ours = next(r for r in disk.records(bench.root) if "TIMER_DEL_UNIQKEY" in r.properties)
    for field in ("topic", "queue_id", "flag", "sys_flag", "body", "body_crc", "reconsume_times"):
        assert getattr(ours, field) == getattr(theirs, field), field
    assert ours.properties.keys() - {"TS_ID", "__CRC32#"} == (
        theirs.properties.keys() - WITHOUT_EFFECT
    )
    for record, key in ((ours, put.message_id), (theirs, theirs.properties["UNIQ_KEY"])):
        properties = record.properties
        out_ms = int(properties["TIMER_OUT_MS"])
        # 5.4.0 names the key alone; a store that we closed has no delete record on its wheel.
        is_bare = record is theirs and name == "version-5.4.0"
        assert properties["TIMER_DEL_UNIQKEY"] == (key if is_bare else f"{topic}+{key}")
        assert properties["UNIQ_KEY"] == key
        assert properties["TAGS"] == "_RECALL_TAG_"
        assert int(properties["TIMER_DELIVER_MS"]) == out_ms + 1
        assert out_ms % 1000 == 0


def test_broker_can_decode_our_handle(tmp_path: Path) -> None:
    """A broker's decoder requires five fields or more, the first of them `v1`."""
    bench = Bench(tmp_path / "s")
    put = bench.store.put("t", b"x", delay=10)
    moved = bench.store.reschedule(put, delay=20)
    for receipt in (put, moved):
        topic, name, stamp, key = disk.decode_recall_handle(receipt.handle)
        assert (topic, name, key) == ("t", "timerstore", put.message_id)
        assert stamp == timerstore.types.receipts.out_ms(receipt.due_ms, 1000) + 1
        brokers = disk.encode_recall_handle(topic, name, stamp, key)
        wanted = receipt is moved
        answer = bench.store.cancel(brokers)
        assert answer is (CancelResult.CANCELLED if wanted else CancelResult.ALREADY_CANCELLED)
    bench.close()


# --- a log written by hand, with cases that the fixtures lack ---

NOW = 1_700_000_000_000
OUT = NOW + 9_000


def write_log(root: Path, sources: list[dict[str, Any]]) -> None:
    """Write a store with only a log: timers of topic `t`, due at OUT + 500."""
    raw = b""
    for offset, given in enumerate(sources):
        properties = {
            "UNIQ_KEY": "K", "TIMER_OUT_MS": str(OUT), "TIMER_DELIVER_MS": str(OUT + 500),
            "REAL_TOPIC": "t", "REAL_QID": "0", **given.get("properties", {}),
        }  # fmt: skip
        raw += disk.encode_record(
            disk.TIMER_TOPIC, given.get("body", b"%d" % offset), properties,
            queue_offset=offset, log_offset=len(raw), store_ms=NOW, born_ms=NOW - 5,
            **{k: v for k, v in given.items() if k not in ("body", "properties")},
        )  # fmt: skip
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{0:020d}").write_bytes(raw.ljust(1 << 20, b"\0"))


BROKERS = disk.encode_recall_handle("t", "b", OUT + 1, "K")


@pytest.mark.parametrize("settled", [False, True])
def test_reschedule_rejects_the_handle_of_a_message_sent_twice(
    tmp_path: Path, settled: bool
) -> None:
    """As in a broker, one handle cancels both copies. A reschedule cannot choose one of them."""
    write_log(tmp_path / "s", [{}, {"properties": {"UNIQ_KEY": "other"}}, {}])
    bench = Bench(tmp_path / "s", now_ms=NOW)
    if settled:
        bench.turn()
    with bench.refused(timerstore.MessageError, "names 2 pending messages"):
        bench.store.reschedule(BROKERS, delay=1)
    first = next(iter(bench.store.pending()))
    bench.store.reschedule(first.handle, delay=20)
    assert bench.store.cancel(BROKERS) is CancelResult.CANCELLED
    assert bench.store.cancel(BROKERS) is CancelResult.ALREADY_CANCELLED
    bench.turn(100_000)
    assert bench.bodies() == [b"1", b"0"]
    bench.close()


def test_cancel_of_both_copies_is_durable(tmp_path: Path) -> None:
    write_log(tmp_path / "s", [{}, {}, {"properties": {"UNIQ_KEY": "other"}}])
    bench = Bench(tmp_path / "s", now_ms=NOW)
    assert bench.store.cancel(BROKERS) is CancelResult.CANCELLED
    bench.reopen()
    assert bench.store.cancel(BROKERS) is CancelResult.ALREADY_CANCELLED
    bench.turn(100_000)
    assert bench.bodies() == [b"2"]
    bench.close()


@pytest.mark.parametrize("delay", [0, 30])
def test_addresses_flags_and_compressed_bodies_are_kept(tmp_path: Path, delay: int) -> None:
    packed = zlib.compress(b"long " * 1000)
    write_log(
        tmp_path / "s",
        [{"body": packed, "sys_flag": 0x301, "flag": 7, "reconsume_times": 3,
          "born_address": "[2001:db8::1]:5000", "store_host": "[2001:db8::2]:6000",
          "properties": {"__CRC32#": "stale", "KEYS": "a", "TIMER_DELAY_SEC": "9",
                         "TIMER_ROLL_TIMES": "2"}}],
    )  # fmt: skip
    bench = Bench(tmp_path / "s", now_ms=NOW)
    receipt = bench.store.reschedule(BROKERS, delay=delay)
    assert receipt.message_id == "K"
    assert delay == 0 or [p.handle for p in bench.store.pending()] == [receipt.handle]
    bench.reopen()
    bench.turn(delay * 1000)
    (message,) = bench.out()
    assert message.raw_body == packed
    assert message.body == b"long " * 1000
    assert (message.flag, message.sys_flag & 0x701, message.reconsume_times) == (7, 0x301, 3)
    assert message.born_host == "[2001:db8::1]:5000"
    assert message.store_host == "[2001:db8::2]:6000"
    assert message.born_ms == NOW - 5
    assert message.due_ms == message.store_ms == NOW + delay * 1000
    assert message.keys == ("a",)
    assert "TIMER_ROLL_TIMES" not in message.properties
    bench.close()


def test_properties_without_space_for_ours_are_kept(tmp_path: Path) -> None:
    base = {"UNIQ_KEY": "K", "TIMER_OUT_MS": str(OUT), "TIMER_DELIVER_MS": str(OUT + 500),
            "REAL_TOPIC": "t", "REAL_QID": "0"}  # fmt: skip
    used = len(disk.encode_properties({**base, "x": ""}))
    for spare, fits in ((69, True), (68, False)):  # TS_ID 23, TS_GROUP 26, the CRC 20
        root = tmp_path / str(spare)
        write_log(root, [{"properties": {"x": "x" * (32_767 - used - spare)}}])
        bench = Bench(root, now_ms=NOW)
        if fits:
            assert bench.store.reschedule(BROKERS, delay=20).message_id == "K"
        else:
            with bench.refused(timerstore.MessageError, "properties"):
                bench.store.reschedule(BROKERS, delay=20)
        bench.turn(20_000)
        assert len(bench.bodies()) == 1
        bench.close()


def test_slot_time_of_a_handle_must_match(tmp_path: Path) -> None:
    """Another time names another message or none, as in a broker, which searches that slot."""
    bench = Bench(tmp_path / "s")
    put = bench.store.put("t", b"x", delay=10)
    topic, name, stamp, key = disk.decode_recall_handle(put.handle)
    for other in (stamp - 1, stamp + 1, stamp + 1000, 0, 2**63 - 1):
        handle = disk.encode_recall_handle(topic, name, other, key)
        assert bench.store.cancel(handle) is CancelResult.UNKNOWN
    bench.turn()
    assert bench.store.cancel(disk.encode_recall_handle(topic, name, stamp - 1000, key)) is (
        CancelResult.UNKNOWN
    )
    assert bench.store.cancel(disk.encode_recall_handle(topic, name, stamp, key)) is (
        CancelResult.CANCELLED
    )
    bench.close()
