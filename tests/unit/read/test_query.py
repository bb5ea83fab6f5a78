"""query(): messages by key, id and offset id, and invalid arguments."""

from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support import disk_reader as disk
from tests.support.bench import NOW, SECOND, Bench, small
from tests.support.inside.limits import QUERY_BYTES_MAX
from timerstore import CancelResult, ConfigError, CorruptError, Message, MessageError
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC


def bodies(found: list[Message]) -> list[bytes]:
    return [message.body for message in found]


def test_query_finds_messages_by_key(bench: Bench) -> None:
    for number in range(20):
        bench.store.put("t", b"%d" % number, keys=["all", f"key-{number % 5}"])
    bench.store.put("other", b"x", keys="key-3")
    bench.turn()
    assert bodies(bench.store.query("t", "key-3")) == [b"3", b"8", b"13", b"18"]
    assert len(bench.store.query("t", "all")) == 20
    assert bodies(bench.store.query("other", "key-3")) == [b"x"]
    assert bench.store.query("t", "key-5") == []
    assert bench.store.query("t", "Key-3") == []
    assert bench.store.query("nobody-put-there", "key-3") == []


def test_query_returns_the_same_message_as_a_pull(bench: Bench) -> None:
    bench.store.put("t", b"one", keys="k", tags="green", properties={"a": "b"})
    bench.store.put("t", b"two", keys="k", deliver_ms=NOW + 5 * SECOND)
    bench.turn(5 * SECOND)
    assert bench.store.query("t", "k") == bench.out()
    assert not any(message.waits or message.handle for message in bench.out())


def test_put_is_found_before_any_service_runs(bench: Bench) -> None:
    bench.store.put("t", b"one", keys="k", flush="sync")
    bench.store.put("t", b"two", keys="k", deliver_ms=NOW + 1, flush="sync")
    assert bodies(bench.store.query("t", "k")) == [b"one", b"two"]


def test_query_returns_the_newest_messages_up_to_a_number_of_bytes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(5):
        bench.store.put("t", b"%d" % k * 1000, keys="k", delay=[0, 9][k % 2])
    bench.turn()
    size = bench.store.query("t", "k")[-1].store_bytes
    found = {}
    for limit in (1, size, size + 1):
        monkeypatch.setattr(*QUERY_BYTES_MAX, limit)
        found[limit - size] = [one.body[:1] for one in bench.store.query("t", "k")]
    assert found == {1 - size: [b"4"], 0: [b"4"], 1: [b"3", b"4"]}


def test_invisible_message_is_not_found(bench: Bench) -> None:
    bench.store.put("t", b"one", keys="k", flush="async")
    assert bench.store.query("t", "k") == []
    bench.store.flush()
    assert bodies(bench.store.query("t", "k")) == [b"one"]


def test_pending_message_is_found_and_can_be_cancelled(bench: Bench) -> None:
    receipt = bench.store.put("t", b"one", keys="k", deliver_ms=NOW + 90 * SECOND, queue_id=3)
    bench.turn()
    [message] = bench.store.query("t", "k")
    assert (message.topic, message.queue_id, message.queue_offset) == ("t", 3, -1)
    assert (message.due_ms, message.delivered_ms) == (receipt.due_ms, -1)
    assert message.store_ms == message.born_ms == NOW
    assert message.waits
    assert message.handle == receipt.handle
    assert message.log_offset == receipt.log_offset
    assert bodies(bench.store.query("t", receipt.message_id)) == [b"one"]
    assert bench.store.query("u", "k") == []
    assert bench.store.cancel(message.handle) is CancelResult.CANCELLED
    bench.turn()
    assert bench.store.query("t", "k") == []
    assert bench.store.query("t", receipt.message_id) == []
    bench.turn(90 * SECOND)
    assert bench.store.query("t", "k") == []


def test_message_is_found_once_after_each_step(bench: Bench) -> None:
    """A delivered message that is not visible yet is found as pending."""
    receipt = bench.store.put("t", b"one", keys="k", deliver_ms=NOW + 5 * SECOND, flush="sync")
    seen = []
    for turned in range(3):
        bench.clock.set(NOW + turned * 4 * SECOND)
        while True:
            worked = [bench.stepper.step(name) for name in bench.stepper.names[:-1]]
            for key in ("k", receipt.message_id):
                [message] = bench.store.query("t", key)
                assert message.body == b"one"
            seen.append(message.waits)
            if not any(worked):
                break
        assert seen[-1], "nothing was synced, so nothing was seen to be delivered"
    assert bench.store.stats()["pending_messages"] == 0
    assert bench.out() == []
    bench.turn()
    [message] = bench.store.query("t", "k")
    assert not message.waits
    assert [message] == bench.out()


def test_rolled_message_is_found_once(bench: Bench) -> None:
    due_ms = NOW + 300 * SECOND  # the wheel looks 64 s ahead
    bench.store.put("t", b"far", keys="k", deliver_ms=due_ms)
    for _ in range(12):
        bench.turn(20 * SECOND)
        [message] = bench.store.query("t", "k")
        assert message.waits
        assert message.due_ms == due_ms
    raw = bench.store.query(WHEEL_TIMER_TOPIC, "k")
    assert len(raw) > 3
    assert {message.topic for message in raw} == {WHEEL_TIMER_TOPIC}
    bench.turn(100 * SECOND)
    assert bench.store.query("t", "k") == bench.out()


def test_message_on_a_delay_level_is_found(bench: Bench) -> None:
    receipt = bench.store.put("t", b"one", level=2, keys="k", queue_id=1)
    bench.store.put("t", b"other", level=3, keys="other")
    bench.turn()
    for key in ("k", receipt.message_id):
        [message] = bench.store.query("t", key)
        assert (message.topic, message.queue_id, message.queue_offset) == ("t", 1, -1)
        assert (message.body, message.due_ms, message.waits) == (b"one", NOW + 5 * SECOND, True)
        assert message.handle == ""
    place = disk.offset_message_id(bench.config.store_host, receipt.log_offset)
    assert bodies(bench.store.query("t", place)) == [b"one"]
    bench.turn(5 * SECOND)
    assert bench.store.query("t", "k") == bench.out(queue_id=1)
    assert len(bench.store.query("t", receipt.message_id)) == 1
    assert bench.store.query("t", place) == []
    assert [message.waits for message in bench.store.query(SCHEDULE_TOPIC, "k")] == [False]


def test_query_raises_when_a_level_record_names_another_queue(tmp_path: Path) -> None:
    """Without property CRCs no earlier check finds a flipped bit there."""
    bench = Bench(tmp_path / "store", small(property_crc=False))
    put = bench.store.put("t", b"x", level=2, keys="k")
    bench.stepper.settle()
    bench.store.flush()
    (path,) = (bench.root / "commitlog").iterdir()
    with path.open("r+b") as file:
        file.seek(put.log_offset + 12)
        file.write((1 + 64).to_bytes(4, "big"))
    with pytest.raises(CorruptError, match="the queue of a delay level"):
        bench.store.query("t", "k")
    bench.store.close()


def test_query_returns_the_newest_messages(bench: Bench) -> None:
    for number in range(10):
        due_ms = NOW + 60 * SECOND if number % 2 else None
        bench.store.put("t", b"%d" % number, keys="k", deliver_ms=due_ms)
    bench.turn()
    assert bodies(bench.store.query("t", "k", max_count=3)) == [b"7", b"8", b"9"]
    assert bodies(bench.store.query("t", "k", max_count=1)) == [b"9"]
    assert len(bench.store.query("t", "k", max_count=10)) == 10
    assert len(bench.store.query("t", "k", max_count=10**9)) == 10
    for _ in range(80):
        bench.store.put("t", b"later", keys="k")
    bench.turn()
    assert len(bench.store.query("t", "k")) == 64


@pytest.mark.parametrize("entries", [3, 7, 1000])
def test_query_by_store_time(tmp_path: Path, entries: int) -> None:
    """The ranges begin and end at ms, at seconds and at index files."""
    bench = Bench(tmp_path / "store", small(index_slot_count=2, index_entry_count=entries))
    times = [0, 1, 999, 1000, 1001, 1999, 2000, 5500, 86_400_000, 86_400_001]
    for after_ms in times:
        bench.clock.set(NOW + after_ms)
        bench.store.put("t", b"%d" % after_ms, keys="k")
    bench.turn()
    for begin in times:
        for end in times:
            wanted = [b"%d" % at for at in times if begin <= at < end]
            if begin <= end:
                found = bench.store.query("t", "k", begin_ms=NOW + begin, end_ms=NOW + end)
                assert bodies(found) == wanted
        found = bench.store.query("t", "k", begin_ms=NOW + begin, max_count=2)
        assert bodies(found) == [b"%d" % at for at in times if begin <= at][-2:]
    bench.close()


def test_query_by_store_time_when_the_clock_was_set_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", small(index_slot_count=3, index_entry_count=6))
    times = [5000, 0, -86_400_000, 7_000, 60 * 31_557_600_000, 100, -3]
    for after_ms in times:
        bench.clock.set(NOW + after_ms)
        bench.store.put("t", b"%d" % after_ms, keys="k")
    bench.store.flush()
    for begin in times:
        for end in [one for one in times if one >= begin]:
            found = bench.store.query("t", "k", begin_ms=NOW + begin, end_ms=NOW + end)
            assert bodies(found) == [b"%d" % at for at in times if begin <= at < end]
    bench.close()


def test_store_time_of_a_rolled_message_is_that_of_its_pending_copy(bench: Bench) -> None:
    bench.store.put("t", b"far", keys="k", delay=600)
    bench.turn()
    for _ in range(3):
        bench.turn(40 * SECOND)
    (one,) = bench.store.query("t", "k")
    assert one.store_ms > NOW
    assert bench.store.query("t", "k", end_ms=one.store_ms) == []
    assert bench.store.query("t", "k", begin_ms=one.store_ms, end_ms=one.store_ms + 1) == [one]


def test_store_time_of_a_pending_message_is_its_put_time(bench: Bench) -> None:
    bench.store.put("t", b"one", keys="k", deliver_ms=NOW + 30 * SECOND)
    bench.turn()
    assert len(bench.store.query("t", "k", begin_ms=NOW, end_ms=NOW + 1)) == 1
    assert bench.store.query("t", "k", begin_ms=NOW + 1) == []
    bench.turn(30 * SECOND)
    assert bench.store.query("t", "k", begin_ms=NOW, end_ms=NOW + 1) == []
    assert len(bench.store.query("t", "k", begin_ms=NOW + 30 * SECOND)) == 1


def test_by_offset_message_id(bench: Bench) -> None:
    now = bench.store.put("t", b"now", keys="k")
    later = bench.store.put("t", b"later", deliver_ms=NOW + 30 * SECOND)
    bench.turn()

    def id_of(log_offset: int, host: str = bench.config.store_host) -> str:
        return disk.offset_message_id(host, log_offset)

    assert bodies(bench.store.query("t", id_of(now.log_offset))) == [b"now"]
    assert bodies(bench.store.query("t", id_of(now.log_offset).lower())) == [b"now"]
    [message] = bench.store.query("t", id_of(later.log_offset))
    assert message.body == b"later"
    assert message.handle == later.handle
    source = bench.store.query(WHEEL_TIMER_TOPIC, id_of(later.log_offset))
    assert [message.waits for message in source] == [False]
    assert bench.store.query("u", id_of(now.log_offset)) == []
    assert bench.store.query("t", id_of(now.log_offset + 1)) == []
    assert bench.store.query("t", id_of(now.log_offset, "127.0.0.1:10912")) == []
    assert bench.store.query("t", id_of(now.log_offset, "127.0.0.2:10911")) == []
    assert bench.store.query("t", id_of(1 << 40)) == []
    assert bench.store.query("t", id_of((1 << 63) - 1)) == []
    assert bench.store.query("t", "F" * 32) == []
    assert bench.store.query("t", id_of(now.log_offset), begin_ms=NOW + 1) == []
    bench.turn(30 * SECOND)
    assert bench.store.query("t", id_of(later.log_offset)) == []
    [delivered] = [message for message in bench.out() if message.body == b"later"]
    assert bench.store.query("t", id_of(delivered.log_offset)) == [delivered]


def test_body_that_looks_like_a_record_is_not_found(bench: Bench) -> None:
    """The offset id points into a body that was made to look like a record at its offset."""
    inner = bench.store.put("t", b"0123456789", keys="k")
    bench.store.flush()
    size = bench.store.stats()["log_end_bytes"] - inner.log_offset
    folder = bench.root / "commitlog"
    raw = bytearray(disk.read_at(folder, inner.log_offset, size))
    place = bench.store.stats()["log_end_bytes"] + 88
    raw[28:36] = place.to_bytes(8, "big")
    text = bytes(raw[:-20])
    digits = f"{disk.stored_crc(text):010d}"[::-1].encode()
    forged = text + b"__CRC32#\x01" + digits + b"\x02"
    outer = bench.store.put("t", forged)
    assert outer.log_offset + 88 == place
    bench.turn()
    assert bench.out()[1].body == forged
    assert bench.store.query("t", disk.offset_message_id(bench.config.store_host, place)) == []


def test_same_hash_different_key(bench: Bench) -> None:
    """Java's hash of "Aa" and "BB" is the same, and so is that of all texts made of them."""
    bench.store.put("t", b"Aa", keys="AaAa")
    bench.store.put("t", b"BB", keys="BBBB")
    bench.store.put("t", b"AB", keys=["AaBB", "BBAa"])
    bench.store.put("t", b"later", keys="BBAa", deliver_ms=NOW + 9 * SECOND)
    bench.turn()
    assert bodies(bench.store.query("t", "AaAa")) == [b"Aa"]
    assert bodies(bench.store.query("t", "BBBB")) == [b"BB"]
    assert bodies(bench.store.query("t", "BBAa")) == [b"AB", b"later"]


def test_message_with_a_repeated_key_is_found_once(bench: Bench) -> None:
    bench.store.put("t", b"one", keys=["k", "k", "other", "k"])
    bench.turn()
    assert bodies(bench.store.query("t", "k")) == [b"one"]


@pytest.mark.parametrize("key", ["ключ", "键", "\U0001f600", "a#b", "x" * 20_000, "%", "é" * 37])
def test_keys_of_all_kinds(bench: Bench, key: str) -> None:
    bench.store.put("t", b"now", keys=["first", key])
    bench.store.put("t", b"later", keys=[key, "last"], deliver_ms=NOW + 9 * SECOND)
    bench.turn()
    assert bodies(bench.store.query("t", key)) == [b"now", b"later"]
    bench.turn(9 * SECOND)
    assert bench.store.query("t", key) == bench.out()


def test_as_many_keys_as_fit_one_message(bench: Bench) -> None:
    alphabet = "".join(map(chr, range(0x21, 0x7F)))
    keys = [alphabet[n % 94] for n in range(16_000)]
    receipt = bench.store.put("t", b"many", keys=keys)
    bench.turn()
    for key in ("!", "~", receipt.message_id):
        assert bodies(bench.store.query("t", key)) == [b"many"]


def test_put_rejects_keys_that_are_too_long(bench: Bench) -> None:
    with bench.refused(MessageError, "properties: wanted at most"):
        bench.store.put("t", b"x", keys="k" * 32_767)
    for keys in ("two words", ["fine", "two words"], [""], " ", "tab\there"):
        with bench.refused(MessageError, "key"):
            bench.store.put("t", b"x", keys=keys)


BAD: list[tuple[str, dict[str, Any]]] = [
    ("topic: wanted", {"topic": ""}),
    ("topic: wanted", {"topic": None}),
    ("topic: wanted", {"topic": "a/b"}),
    ("topic: wanted", {"topic": "t" * 256}),
    ("key: wanted text", {"key": None}),
    ("key: wanted text", {"key": b"k"}),
    ("key: wanted one without spaces", {"key": ""}),
    ("key: wanted one without spaces", {"key": "two words"}),
    ("key: wanted one without spaces", {"key": " k"}),
    ("key: wanted at most 32767 bytes, got 32768", {"key": "k" * 32_768}),
    ("half a surrogate", {"key": "\ud800"}),
    ("begin_ms: wanted a whole number", {"begin_ms": 1.5}),
    ("begin_ms: wanted a whole number", {"begin_ms": True}),
    ("end_ms: wanted a whole number", {"end_ms": "1"}),
    ("begin_ms: wanted at most end_ms", {"begin_ms": 2, "end_ms": 1}),
    ("max_count: wanted a whole number from 1 on", {"max_count": 0}),
    ("max_count: wanted a whole number from 1 on", {"max_count": -1}),
    ("max_count: wanted a whole number from 1 on", {"max_count": 1.0}),
    ("max_count: wanted a whole number from 1 on", {"max_count": None}),
]


@pytest.mark.parametrize(("text", "given"), BAD)
def test_query_names_invalid_arguments(bench: Bench, text: str, given: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match=text):
        bench.store.query(**{"topic": "t", "key": "k", **given})


def test_query_reports_every_problem(bench: Bench) -> None:
    with pytest.raises(MessageError) as caught:
        bench.store.query("", "", begin_ms=2, end_ms=1, max_count=0)
    assert len(caught.value.problems) == 4


def test_edges_of_arguments(bench: Bench) -> None:
    bench.store.put("t" * 127, b"x", keys="k")
    bench.turn()
    assert len(bench.store.query("t" * 127, "k", begin_ms=-(10**30), end_ms=10**30)) == 1
    assert bench.store.query("t" * 255, "k") == []
    assert bench.store.query("t" * 127, "k" * 32_767) == []
    assert bench.store.query("t" * 127, "k", begin_ms=NOW, end_ms=NOW) == []


def test_without_an_index(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", small(index_enabled=False))
    receipt = bench.store.put("t", b"one", keys="k", flush="sync")
    assert not (bench.root / "index").exists()
    with pytest.raises(ConfigError, match="index_enabled"):
        bench.store.query("t", "k")
    offset_id = disk.offset_message_id(bench.config.store_host, receipt.log_offset)
    assert bodies(bench.store.query("t", offset_id)) == [b"one"]
    bench.close()
    bench.config = small()
    bench.open()
    assert bodies(bench.store.query("t", "k")) == [b"one"]
    bench.close()
    bench.config = small(index_enabled=False)
    bench.open()
    bench.store.put("t", b"two", keys="k")
    bench.close()
    bench.config = small()
    bench.open()
    bench.store.put("t", b"three", keys="k", flush="sync")
    assert bodies(bench.store.query("t", "k")) == [b"one", b"two", b"three"]
    bench.close()


def test_after_closing(bench: Bench) -> None:
    bench.store.put("t", b"x", keys="k")
    bench.reopen()
    assert len(bench.store.query("t", "k")) == 1
    bench.close()
    with pytest.raises(timerstore.ClosedError):
        bench.store.query("t", "k")
    bench.open()
