"""A repeated message id with other contents is an error: one of two messages would be lost."""

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bench import NOW, Bench, small
from tests.support.driver import abandon
from tests.support.inside import append_of_many, inside
from tests.support.retaining import SIZES, fill
from timerstore import CancelResult, ConflictError, CorruptError, MessageError
from timerstore._engine.base.column_batch import ColumnBatch
from timerstore._engine.base.message_fields import ENGINE_NAMES, is_of_engine
from timerstore._engine.queues.message_ids import OriginalMessages

HOUR = 3_600_000
FULL: dict[str, Any] = {"tags": "a", "keys": ["k", "l"], "properties": {"x": "1", "y": "2"}}
BETWEEN = ["nothing", "delivered", "reopened", "killed", "rebuilt"]


def go_on(bench: Bench, how: str) -> None:
    if how == "delivered":
        bench.turn(HOUR // 2)
    if how == "reopened":
        bench.reopen()
    if how == "rebuilt":
        bench.store.flush()
    if how in ("killed", "rebuilt"):
        bench.kill(side_files=how == "killed")


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("given", [{}, {"delay": 5}, {"level": 2}, {"queue_id": 3}])
def test_equal_message_returns_the_first_receipt(
    bench: Bench, between: str, given: dict[str, Any]
) -> None:
    first = bench.store.put("t", b"x", message_id="a", **given, **FULL)
    go_on(bench, between)
    end = inside(bench.store).log.end
    again = bench.store.put("t", b"x", message_id="a", **given, **FULL)
    assert (again.duplicate, again.handle) == (True, first.handle)
    turned = {"tags": "a", "keys": ["k", "l"], "properties": {"y": "2", "x": "1"}}
    assert bench.store.put("t", bytearray(b"x"), message_id="a", **turned).duplicate
    assert inside(bench.store).log.end == end


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize(
    ("body", "changes", "differs"),
    [
        (b"y", {}, ("body",)),
        (b"", {}, ("body",)),
        (b"x", {"tags": "b"}, ("properties",)),
        (b"x", {"tags": None}, ("properties",)),
        (b"x", {"keys": ["l", "k"]}, ("properties",)),
        (b"x", {"properties": {"x": "1"}}, ("properties",)),
        (b"x", {"properties": {"x": "1", "y": "2", "z": "3"}}, ("properties",)),
        (b"y", {"properties": {"x": "2", "y": "1"}}, ("body", "properties")),
    ],
)
def test_other_contents_raise_conflict_error(
    bench: Bench, between: str, body: bytes, changes: dict[str, Any], differs: tuple[str, ...]
) -> None:
    bench.store.put("t", b"x", message_id="a", delay=5, **FULL)
    go_on(bench, between)
    end = inside(bench.store).log.end
    with pytest.raises(ConflictError, match="message_id 'a' of topic 't'") as caught:
        bench.store.put("t", body, message_id="a", delay=5, **{**FULL, **changes})
    assert (caught.value.topic, caught.value.message_id) == ("t", "a")
    assert caught.value.differs == differs
    assert not caught.value.retryable
    assert inside(bench.store).log.end == end
    bench.turn(HOUR // 2)
    assert bench.bodies() == [b"x"]


def test_conflict_error_says_what_was_expected_and_found(bench: Bench) -> None:
    bench.store.put("t", b"x", message_id="a", deliver_ms=NOW + 5000, properties={"x": "1"})
    with pytest.raises(ConflictError) as caught:
        bench.store.put("t", b"long", message_id="a", deliver_ms=NOW + 6000, tags="b")
    assert str(caught.value) == (
        "message_id 'a' of topic 't': another message was put with it, which differs in body "
        "and properties and due time; it was not stored; wanted a body of 1 bytes, CRC-32 "
        "0CDC1683, x='1', due time 1700000005000 ms; got a body of 4 bytes, CRC-32 3B97A968, "
        "TAGS='b', due time 1700000006000 ms"
    )


def test_same_id_in_another_topic_is_another_message(bench: Bench) -> None:
    bench.store.put("t", b"x", message_id="a")
    assert not bench.store.put("u", b"y", message_id="a").duplicate


# --- due times ---


@pytest.mark.parametrize("between", BETWEEN)
def test_relative_due_time_is_not_compared(bench: Bench, between: str) -> None:
    first = bench.store.put("t", b"x", message_id="a", delay=30)
    go_on(bench, between)
    bench.clock.advance(7)
    for given in ({"delay": 30}, {"delay": 31}, {"spread": 9}, {"level": 1}, {}):
        again = bench.store.put("t", b"x", message_id="a", **given)  # type: ignore[arg-type]
        assert (again.duplicate, again.due_ms) == (True, first.due_ms)
    batch = bench.store.put_many("t", [b"x"], message_ids=["a"], delay=30)
    assert batch[0].duplicate


@pytest.mark.parametrize("between", BETWEEN)
def test_absolute_due_time_is_compared(bench: Bench, between: str) -> None:
    at = NOW + 30_000
    bench.store.put("t", b"x", message_id="a", deliver_ms=at)
    go_on(bench, between)
    when = datetime.fromtimestamp(at / 1000, UTC)
    for same in ({"deliver_ms": at}, {"deliver_at": when}, {"deliver_ms": at, "spread": 5}):
        again = bench.store.put("t", b"x", message_id="a", **same)  # type: ignore[arg-type]
        assert (again.duplicate, again.due_ms) == (True, at)
    assert bench.store.put_many("t", [b"x"], message_ids=["a"], deliver_ms=[at])[0].duplicate
    for other in (bench.clock.now_ms + 10_000, bench.clock.now_ms + 50_000):
        with pytest.raises(ConflictError, match="differs in due time"):
            bench.store.put("t", b"x", message_id="a", deliver_ms=other)
        with pytest.raises(ConflictError, match="differs in due time"):
            bench.store.put_many("t", [b"x"], message_ids=["a"], deliver_ms=[other])
    if between == "delivered":  # both are due by now
        assert bench.store.put("t", b"x", message_id="a", deliver_ms=NOW + 1).duplicate
    else:
        with pytest.raises(ConflictError, match="a due time that has passed"):
            bench.store.put("t", b"x", message_id="a", deliver_ms=NOW)


@pytest.mark.parametrize("given", [{}, {"deliver_ms": NOW - 5}])
def test_due_time_after_an_immediate_message_is_another(
    bench: Bench, given: dict[str, Any]
) -> None:
    bench.store.put("t", b"x", message_id="a", **given)
    assert bench.store.put("t", b"x", message_id="a", deliver_ms=NOW - 5).duplicate
    with pytest.raises(ConflictError, match="differs in due time"):
        bench.store.put("t", b"x", message_id="a", deliver_ms=NOW + 1)


@pytest.mark.parametrize("between", ["nothing", "reopened", "killed", "rebuilt"])
@pytest.mark.parametrize("to_ms", [0, 7_000_000])
@pytest.mark.parametrize("atomic", [False, True])
def test_due_time_of_a_rescheduled_message_is_not_compared(
    bench: Bench, between: str, to_ms: int, *, atomic: bool
) -> None:
    at, ids = NOW + 30_000, ["a", "b"]
    batch = bench.store.put_many("t", [b"x", b"y"], message_ids=ids, deliver_ms=at, atomic=atomic)
    moved = bench.store.reschedule(batch[0], deliver_ms=NOW + to_ms)
    go_on(bench, between)
    again = bench.store.put("t", b"x", message_id="a", deliver_ms=at)
    assert (again.duplicate, again.due_ms) == (True, moved.due_ms)
    with pytest.raises(ConflictError, match="differs in body"):
        bench.store.put("t", b"z", message_id="a", deliver_ms=at)
    with pytest.raises(ConflictError, match="differs in due time"):  # this one was not
        bench.store.put("t", b"y", message_id="b", deliver_ms=at + 1)


# --- states of the first message ---


def test_cancelled_message_is_compared(bench: Bench) -> None:
    first = bench.store.put("t", b"x", message_id="a", delay=5)
    assert bench.store.cancel(first) is CancelResult.CANCELLED
    assert bench.store.put("t", b"x", message_id="a", delay=5).cancelled
    with pytest.raises(ConflictError):
        bench.store.put("t", b"y", message_id="a", delay=5)


OF_CALLERS = ["TAGS", "KEYS", "RETRY_TOPIC", "_SYS_MSG_PRIORITY_", "TS_", "TS_I", "DELAYS", "x"]


@pytest.mark.parametrize("name", [*sorted(ENGINE_NAMES), "TIMER_", "TIMER_x", *OF_CALLERS])
def test_native_and_python_know_the_same_properties_of_the_engine(bench: Bench, name: str) -> None:
    put = bench.store.put("t", b"x", message_id="a")
    spans = np.array([0, 1], np.int64)
    rows = ColumnBatch(b"x", spans, np.zeros(1, np.int64), f"{name}\x01v\x02".encode())
    parts = inside(bench.store)
    firsts = OriginalMessages(
        parts.log,
        parts.ids,
        parts.states.native,
        parts.store_id,
        bench.store.config.precision_ms,
        {},
    )
    once = firsts.once(b"t", 1, NOW)
    assert once is not None
    (found,) = firsts.read(
        rows.with_texts("ids", b"a", spans), once, np.array([0]), np.array([put.log_offset])
    )
    assert (found["is_same"], found["has_body"]) == (1, 1)
    assert bool(found["has_properties"]) == is_of_engine(name) == (name not in OF_CALLERS)


def test_message_that_retention_removed_is_not_compared(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", SIZES)
    first = bench.store.put("t", b"came", message_id="a")
    fill(bench, first.log_offset)
    again = bench.store.put("t", b"other", message_id="a", deliver_ms=bench.clock.now_ms + 5)
    assert (again.duplicate, again.log_offset) == (True, first.log_offset)
    bench.close()


def test_id_after_the_window_is_free(bench: Bench) -> None:
    bench.store.put("t", b"x", message_id="a")
    bench.clock.advance(HOUR)
    assert not bench.store.put("t", b"y", message_id="a").duplicate


def test_first_message_is_durable_before_a_conflict_is_raised(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s")
    first = bench.store.put("t", b"x", message_id="a", delay=5)
    log = inside(bench.store).log
    assert log.durable <= first.log_offset
    with pytest.raises(ConflictError):
        bench.store.put("t", b"y", message_id="a", delay=5)
    assert log.durable > first.log_offset
    bench.close()


def test_dedupe_by_id_returns_the_first_receipt(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(dedupe="id"))
    first = bench.store.put("t", b"x", message_id="a", deliver_ms=NOW + 9000)
    again = bench.store.put("t", b"y", message_id="a", tags="b", deliver_ms=NOW + 5)
    assert (again.duplicate, again.handle) == (True, first.handle)
    batch = bench.store.put_many("t", [b"z", b"1", b"2"], message_ids=["a", "b", "b"])
    assert [one.duplicate for one in batch] == [True, False, True]
    bench.close()


def test_wrong_dedupe_setting_is_rejected() -> None:
    with pytest.raises(ValueError, match="dedupe"):
        small(dedupe="body")


# --- batches ---


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("where", [0, 1, 4])
def test_batch_with_one_conflict_stores_nothing(bench: Bench, where: int, *, atomic: bool) -> None:
    bench.store.put("t", b"x", message_id=f"m{where}", delay=5)
    end = inside(bench.store).log.end
    ids, bodies = [f"m{k}" for k in range(5)], [b"%d" % k for k in range(5)]
    with pytest.raises(ConflictError, match=rf"message_ids\[{where}\] 'm{where}'"):
        bench.store.put_many("t", bodies, message_ids=ids, delay=5, atomic=atomic)
    assert inside(bench.store).log.end == end
    bench.turn(6000)
    assert bench.bodies() == [b"x"]


def test_batch_repeats_itself_with_keys_of_each_message(bench: Bench) -> None:
    ids, bodies = [f"m{k}" for k in range(50)], [b"%d" % k for k in range(50)]
    keys = [["k", f"k{k}"] for k in range(50)]
    bench.store.put_many("t", bodies, message_ids=ids, keys=keys, tags="t", delay=9)
    data = b"".join(bodies), np.cumsum([0, *map(len, bodies)])
    again = bench.store.put_many("t", data, message_ids=ids, keys=keys, tags="t", delay=9)
    assert all(one.duplicate for one in again)
    one = bench.store.put("t", b"7", message_id="m7", keys=["k", "k7"], tags="t", delay=9)
    assert one.duplicate
    keys[31] = ["k", "k30"]
    with pytest.raises(ConflictError, match=r"message_ids\[31\].*wanted KEYS='k k31'; got KEYS='k"):
        bench.store.put_many("t", bodies, message_ids=ids, keys=keys, tags="t", delay=9)


def test_id_twice_in_a_batch_needs_the_same_contents(bench: Bench) -> None:
    batch = bench.store.put_many(
        "t", [b"1", b"2", b"1", b"3"], message_ids=["a", "b", "a", None], deliver_ms=NOW + 9000
    )
    assert [one.duplicate for one in batch] == [False, False, True, False]
    end = inside(bench.store).log.end
    with pytest.raises(ConflictError, match=r"message_ids\[2\] 'c'.*differs in body"):
        bench.store.put_many("t", [b"1", b"2", b"3"], message_ids=["c", "d", "c"])
    with pytest.raises(ConflictError, match=r"message_ids\[1\] 'c'.*differs in due time"):
        bench.store.put_many(
            "t", [b"1", b"1"], message_ids=["c", "c"], deliver_ms=[NOW + 5, NOW + 6]
        )
    with pytest.raises(ConflictError, match=r"message_ids\[1\] 'c'.*differs in properties"):
        bench.store.put_many("t", [b"1", b"1"], message_ids=["c", "c"], keys=["k", "l"])
    with pytest.raises(MessageError, match="stands twice"):
        bench.store.put_many("t", [b"1", b"2"], message_ids=["c", "c"], atomic=True)
    assert inside(bench.store).log.end == end


def test_batch_that_meets_a_new_conflict_stores_the_other_messages(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    appending = append_of_many(inside(bench.store).putting)
    append = appending.value

    def late(*given: Any) -> None:
        monkeypatch.undo()
        bench.store.put("t", b"x", message_id="b")
        append(*given)

    monkeypatch.setattr(*appending, late)
    with pytest.raises(ConflictError, match=r"message_ids\[1\] 'b'"):
        bench.store.put_many("t", [b"1", b"2"], message_ids=["a", "b"])
    bench.turn(1)
    assert bench.bodies() == [b"x", b"1"]


def test_of_two_threads_with_other_contents_one_gets_the_conflict(bench: Bench) -> None:
    for number in range(50):
        told: list[Any] = []
        start = threading.Barrier(2)

        def put(body: bytes, number: int = number, told: list[Any] = told) -> None:
            start.wait()  # noqa: B023 - joined in this round
            try:
                told.append(bench.store.put("t", body, message_id=f"m{number}"))
            except ConflictError as error:
                told.append(error)

        threads = [threading.Thread(target=put, args=(body,)) for body in (b"1", b"2")]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert sum(isinstance(one, ConflictError) for one in told) == 1


def test_damaged_first_message_is_corruption_and_no_conflict(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s")
    bench.store.put("t", b"x" * 100, message_id="a")
    bench.close()
    (path,) = (bench.root / "commitlog").iterdir()
    path.write_bytes(path.read_bytes().replace(b"x" * 100, b"x" * 99 + b"y"))
    bench.open()
    with pytest.raises(CorruptError, match="message ids: the record's CRC does not match"):
        bench.store.put("t", b"x" * 100, message_id="a")
    abandon(bench.store)
