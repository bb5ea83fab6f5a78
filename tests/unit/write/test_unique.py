"""put(key=, unique=True): nothing is stored while the earlier message with the key is not done."""

import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import timerstore
from tests.support.bench import DAY, NOW, Bench, small
from timerstore import AckResult, CancelResult, ConfigError, LeasedMessage, MessageError, PutReceipt
from timerstore._engine.write.keyed_put import KeyedRecord, KeyedRecords
from timerstore.errors import GoneError

SECOND = 1000
_DELIVERY_BYTES = 316  # properties that the delivery of a message of topic t adds


def put(
    bench: Bench, body: bytes = b"x", key: str | None = "k", topic: str = "t", **more: Any
) -> PutReceipt:
    return bench.store.put(topic, body, **{"key": key, "unique": True, **more})


def take(bench: Bench, group: str = "g", **more: Any) -> LeasedMessage:
    bench.turn()
    (message,) = bench.store.receive("t", group, **{"lease": 60, "backoff": 5, **more})
    return message


# --- steps of the first message, by name of the state that they lead to ---


def _pending(bench: Bench) -> None:
    put(bench, b"1", delay=10)


def _cancelled(bench: Bench) -> None:
    assert bench.store.cancel(put(bench, b"1", delay=10)) is CancelResult.CANCELLED


def _moved(bench: Bench) -> None:
    bench.store.reschedule(put(bench, b"1", delay=10), delay=90)
    bench.turn(20 * SECOND)


def _moved_to_now(bench: Bench) -> None:
    bench.store.reschedule(put(bench, b"1", delay=10), delay=0)


def _delivered_at_once(bench: Bench) -> None:
    put(bench, b"1")


def _delivered_when_due(bench: Bench) -> None:
    put(bench, b"1", delay=10)
    bench.turn(10 * SECOND)


def _leased(bench: Bench) -> None:
    put(bench, b"1")
    take(bench)


def _leased_when_due(bench: Bench) -> None:
    _delivered_when_due(bench)
    take(bench)


def _acked(bench: Bench) -> None:
    put(bench, b"1")
    bench.store.ack(take(bench))


def _acked_when_due(bench: Bench) -> None:
    _delivered_when_due(bench)
    bench.store.ack(take(bench))


def _in_backoff(bench: Bench) -> None:
    put(bench, b"1")
    bench.store.nack(take(bench))


def _given_back_at_once(bench: Bench) -> None:
    put(bench, b"1")
    bench.store.nack(take(bench), delay=0)


def _not_seen(bench: Bench) -> None:
    put(bench, b"1")
    assert bench.store._give_back([take(bench).receipt]) == 1


def _backoff_is_over(bench: Bench) -> None:
    _in_backoff(bench)
    bench.turn(5 * SECOND)


def _lease_is_over(bench: Bench) -> None:
    _leased(bench)
    bench.turn(60 * SECOND)


def _leased_again(bench: Bench) -> None:
    _lease_is_over(bench)
    assert take(bench).attempt == 2


def _acked_at_last(bench: Bench) -> None:
    _backoff_is_over(bench)
    bench.store.ack(take(bench))


def _extended(bench: Bench) -> None:
    put(bench, b"1")
    bench.store.extend(take(bench), lease=600)
    bench.turn(300 * SECOND)


def _renewed(bench: Bench) -> None:
    put(bench, b"1")
    bench.store.renew(take(bench), lease=600)
    bench.turn(300 * SECOND)


def _renewed_and_acked(bench: Bench) -> None:
    put(bench, b"1")
    message = take(bench)
    bench.store.renew(message, lease=600)
    assert bench.store.ack(message) is AckResult.ACKED


def _buried(bench: Bench) -> None:
    put(bench, b"1")
    assert bench.store.bury(take(bench)) is AckResult.BURIED


def _last_attempt(bench: Bench) -> None:
    put(bench, b"1")
    assert take(bench, max_attempts=1).is_last_attempt


def _dead_by_attempts(bench: Bench) -> None:
    _last_attempt(bench)
    bench.turn(60 * SECOND)


def _dead_by_nack(bench: Bench) -> None:
    put(bench, b"1")
    bench.store.nack(take(bench, max_attempts=1))


def _requeued(bench: Bench) -> None:
    _buried(bench)
    bench.turn()
    assert bench.store.requeue("g") == 1


def _dead_when_it_was_requeued(bench: Bench) -> None:
    _dead_by_attempts(bench)
    assert bench.store.requeue("g") == 1


def _acked_by_one_of_two(bench: Bench) -> None:
    put(bench, b"1")
    first, _ = take(bench), take(bench, "h")
    bench.store.ack(first)


def _acked_by_both(bench: Bench) -> None:
    put(bench, b"1")
    for one in [take(bench), take(bench, "h")]:
        bench.store.ack(one)


def _acked_before_another_group_read(bench: Bench) -> None:
    _acked(bench)


UNDONE = [
    _pending, _moved, _moved_to_now, _delivered_at_once, _delivered_when_due, _leased,
    _leased_when_due, _in_backoff, _given_back_at_once, _not_seen, _backoff_is_over, _lease_is_over,
    _leased_again, _extended, _renewed, _last_attempt, _requeued, _dead_when_it_was_requeued,
    _acked_by_one_of_two,
]  # fmt: skip
DONE = [
    _cancelled, _acked, _acked_when_due, _acked_at_last, _renewed_and_acked, _buried,
    _dead_by_attempts, _dead_by_nack, _acked_by_both, _acked_before_another_group_read,
]  # fmt: skip


def _goes_on(bench: Bench, _: Path) -> None:
    pass


def _reopened(bench: Bench, _: Path) -> None:
    bench.reopen()


def _killed(bench: Bench, to: Path) -> None:
    bench.kill(to)


def _reopened_without_index(bench: Bench, _: Path) -> None:
    bench.close()
    shutil.rmtree(bench.root / "index")
    bench.open()


@pytest.mark.parametrize("then", [_goes_on, _reopened, _killed, _reopened_without_index])
@pytest.mark.parametrize("happens", UNDONE + DONE)
def test_put_is_stored_if_the_first_is_done(
    bench: Bench, tmp_path: Path, happens: Callable[[Bench], None], then: Any
) -> None:
    put(bench, b"of another key", "other")
    bench.store.put("t", b"not unique", keys="k", delay=10 * DAY / 1000)
    assert take(bench).body == b"of another key"
    assert take(bench, "h").body == b"of another key"
    happens(bench)
    then(bench, tmp_path / "killed")
    receipt = put(bench, b"2", delay=1)
    assert receipt.duplicate == (happens in UNDONE)
    ids = [one.message_id for one in bench.store.query("t", "k") if one.body == b"1"]
    assert (receipt.message_id in ids) == receipt.duplicate
    assert put(bench, b"3", delay=1).message_id == receipt.message_id


def test_a_chain_of_messages_is_stored_one_after_the_other(bench: Bench) -> None:
    for number in range(20):
        assert not put(bench, b"%d" % number, delay=number % 3).duplicate
        assert put(bench, b"no").duplicate
        bench.turn(3 * SECOND)
        assert put(bench, b"no").duplicate
        message = take(bench)
        assert message.body == b"%d" % number
        assert put(bench, b"no").duplicate
        assert bench.store.ack(message) is AckResult.ACKED


def test_group_that_is_late_does_not_hide_the_newest_message(bench: Bench) -> None:
    """Its lease of the first message is newer than the second message."""
    put(bench, b"1")
    bench.store.ack(take(bench))
    second = put(bench, b"2", delay=10)
    late = take(bench, "late")
    assert late.body == b"1"
    for _ in range(2):
        assert put(bench, b"3").message_id == second.message_id
        bench.store.ack(late)
    bench.turn(10 * SECOND)
    assert put(bench, b"3").message_id == second.message_id
    bench.store.ack(take(bench))
    assert not put(bench, b"3").duplicate


def test_lease_outlives_its_message(tmp_path: Path) -> None:
    """Retention removes the message while a consumer works on it."""
    bench = Bench(tmp_path / "s", small(commit_log_segment_bytes=1 << 16, retention_ms=60_000))
    first = put(bench, b"1", queue_id=0)
    message = take(bench, lease=20 * DAY / 1000)
    for _ in range(6):
        bench.store.put_many("fill", [b"x" * 1000] * 100)
        bench.turn(2 * DAY)
    assert bench.store.stats()["log_begin_bytes"] > first.log_offset
    for _ in range(2):
        known = put(bench, b"2")
        assert (known.duplicate, known.message_id) == (True, first.message_id)
        assert (known.queue_id, known.queue_offset, known.due_ms) == (0, 0, NOW)
        bench.reopen()
    assert bench.store.ack(message) is AckResult.ACKED
    assert not put(bench, b"2").duplicate
    bench.close()


@pytest.mark.parametrize("move", ["nack", "nack at once", "extend", "extend twice", "ack"])
def test_lease_is_moved_after_the_log_was_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, move: str
) -> None:
    """Its timer is over, and the look did not see the successor."""
    put(bench, b"1")
    message = take(bench)
    real, moves = KeyedRecords._end, [None]

    def end(self: KeyedRecords) -> int:
        found = real(self)
        if moves:
            moves.pop()
            if move.startswith("nack"):
                bench.store.nack(message, delay=None if move == "nack" else 0)
            elif move == "ack":
                bench.store.ack(message)
            else:
                longer = bench.store.extend(message, lease=70)
                if move == "extend twice":
                    bench.store.extend(longer, lease=80)
        return found

    monkeypatch.setattr(KeyedRecords, "_end", end)
    assert put(bench, b"2").duplicate == (move != "ack")


def test_put_searches_again_as_often_as_a_record_is_moved(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bench, b"1", delay=10)
    real, moves = KeyedRecords.row, [GoneError("it was moved")] * 3

    def row(self: KeyedRecords, record: KeyedRecord) -> Any:
        if moves:
            raise moves.pop()
        return real(self, record)

    monkeypatch.setattr(KeyedRecords, "row", row)
    assert put(bench, b"2").duplicate
    assert not moves


def test_puts_of_many_threads_store_one(bench: Bench) -> None:
    receipts: list[PutReceipt] = []

    def work() -> None:
        for number in range(20):
            receipts.extend(put(bench, b"x", f"k{number}", delay=5) for _ in range(2))

    threads = [Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(receipts) == 160
    assert sum(not one.duplicate for one in receipts) == 20
    assert len({one.message_id for one in receipts}) == 20
    bench.turn(5 * SECOND)
    assert len(bench.bodies()) == 20


def test_one_is_worked_on_at_a_time(tmp_path: Path) -> None:
    """Producers and consumers with threads and a real clock."""
    works, most = [0], [0]
    stored: list[str] = []
    with timerstore.open(tmp_path / "s", small()) as store:

        def produce() -> None:
            while len(stored) < 20:
                receipt = store.put("t", b"x", key="k", unique=True)
                if not receipt.duplicate:
                    stored.append(receipt.message_id)

        def consume() -> None:
            while is_putting() or len(done) < len(stored):
                found = store.receive("t", "g", wait=0.5, backoff=0, max_attempts=None)
                if not found:
                    continue
                works[0] += 1
                most[0] = max(most[0], works[0])
                works[0] -= 1
                if found[0].attempt == 1:
                    store.nack(found[0])
                else:
                    done.append(found[0].message_id)
                    store.ack(found[0])

        def is_putting() -> bool:
            return any(one.is_alive() for one in threads[:2])

        done: list[str] = []
        threads = [Thread(target=one) for one in (produce, produce, consume, consume)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert most[0] == 1
    assert sorted(done) == sorted(stored)
    assert len(stored) >= 20


def test_receipt_names_the_first_message(bench: Bench) -> None:
    first = put(bench, b"1", delay=10)
    known = put(bench, b"2", delay=99)
    assert known == first._replace(origin=known.origin, counter=0, duplicate=True)
    assert known.handle == first.handle
    bench.turn(10 * SECOND)
    known = put(bench, b"2")
    assert (known.message_id, known.queue_offset) == (first.message_id, 0)
    assert (known.due_ms, known.queue_id) == (first.due_ms, first.queue_id)
    assert bench.store.cancel(known.handle) is CancelResult.ALREADY_DELIVERED


def test_handle_of_the_receipt_cancels_the_first_message(bench: Bench) -> None:
    put(bench, b"1", delay=10)
    assert bench.store.cancel(put(bench, b"2")) is CancelResult.CANCELLED
    assert not put(bench, b"2", delay=10).duplicate


def test_message_keeps_what_the_caller_gave(bench: Bench) -> None:
    put(
        bench,
        b"1",
        keys=["other", "k"],
        tags="Aa",
        properties={"p": "v", "TS_UNIQUE": "no"},
        queue_id=2,
    )
    first = take(bench)
    bench.store.nack(first, delay=0)
    for one in (first, take(bench)):
        assert (one.body, one.keys, one.tags, one.queue_id) == (b"1", ("k", "other"), "Aa", 2)
        assert one.properties["p"] == "v"
    assert put(bench).duplicate


def test_topics_keys_and_replacing_puts_are_apart(bench: Bench) -> None:
    assert not put(bench, b"1").duplicate
    assert not put(bench, b"2", topic="u").duplicate
    assert not put(bench, b"3", "other").duplicate
    assert not bench.store.put("t", b"4", key="k", replace=True, delay=9).duplicate
    assert not bench.store.put("t", b"5", keys="k").duplicate
    assert put(bench, b"6").duplicate
    assert len(bench.bodies("t")) == 3


@pytest.mark.parametrize("given", [{}, {"delay": 5}], ids=["now", "later"])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_message_of_a_receipt_is_durable(tmp_path: Path, given: dict[str, Any], flush: str) -> None:
    """A duplicate is durable in any case, as the caller relies on the first put of another."""
    bench = Bench(tmp_path / "store", small(flush="async"))
    for is_duplicate in (False, True):
        receipt = put(bench, flush=flush, **given)
        assert receipt.duplicate == is_duplicate
        stats = bench.store.stats()
        is_durable = stats["log_durable_bytes"] > receipt.log_offset
        assert is_durable == (is_duplicate or flush == "sync")
    bench.close()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"key": None}, "key: wanted one with unique=True, got none"),
        ({"key": "a b"}, "key: wanted text without spaces, not empty, got 'a b'"),
        ({"key": ""}, "key: wanted text without spaces, not empty, got ''"),
        ({"unique": 1}, "unique: wanted True or False, got 1"),
        ({"unique": False}, "replace: wanted True with key, got False"),
        ({"replace": True}, "replace and unique: wanted at most one of them, got both"),
        ({"wait_at_most": 5}, "wait_at_most: does not go with unique, got 5"),
        ({"level": 1}, "level: does not go with key and unique, got 1"),
        ({"message_id": "m"}, "message_id: does not go with key and unique, got 'm'"),
    ],
)
def test_wrong_arguments_store_nothing(bench: Bench, given: dict[str, Any], text: str) -> None:
    with pytest.raises(MessageError) as told:
        put(bench, **given)
    assert text in str(told.value)
    assert text.partition(":")[0].split(" and ") == list(told.value.arguments)
    assert bench.bodies() == []


def test_store_without_an_index_refuses(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(index_enabled=False))
    with pytest.raises(ConfigError, match="unique needs the key index, which is off"):
        put(bench)
    bench.close()


@pytest.mark.parametrize("over", [0, 1])
def test_key_counts_for_the_size_of_the_properties(tmp_path: Path, over: int) -> None:
    """The key is stored twice: as a key, and as TS_UNIQUE."""
    bench = Bench(tmp_path / "s", small(properties_bytes_max=1000))
    own = len("KEYS\x01\x02") + len("TS_UNIQUE\x01\x02") + len("p\x01\x02") + 2 * len("k")
    value = "v" * (1000 - _DELIVERY_BYTES - own + over)
    if over:
        with pytest.raises(MessageError, match="properties"):
            put(bench, properties={"p": value})
    else:
        assert not put(bench, properties={"p": value}).duplicate
        assert put(bench, properties={"p": value}).duplicate
    bench.close()


def test_full_slot_refuses_a_new_message_and_not_a_known_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(slot_messages_max=1))
    put(bench, delay=5)
    assert put(bench, delay=5).duplicate
    with pytest.raises(timerstore.errors.FlowControlError):
        put(bench, key="other", delay=5)
    bench.close()
