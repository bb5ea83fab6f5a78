"""Message ids from callers: a repeated id returns the receipt of the first message.

Repeated puts have other bodies here, so that a message that is stored twice is seen. So these
stores compare ids only; test_dedupe_contents.py covers the comparison of contents.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bench import NOW, Bench
from tests.support.bench import small as small_of
from tests.support.inside import IDS_CAPACITY_MIN, IDS_FILE_BYTES_MIN, add_id, inside
from timerstore import (
    BusyError,
    CancelResult,
    FlowControlError,
    MessageError,
    PutReceipt,
    StoreConfig,
)
from timerstore._engine.queues import message_ids as ids_module

HOUR = 3_600_000


def small(**changes: Any) -> StoreConfig:
    return small_of(dedupe="id", **changes)


@pytest.fixture
def bench_config() -> StoreConfig:
    return small()


def same(one: PutReceipt, again: PutReceipt, **but: Any) -> None:
    assert again.duplicate
    fields = ("topic", "message_id", "queue_id", "queue_offset", "log_offset", "due_ms", "handle")
    for name in fields:
        assert getattr(again, name) == but.get(name, getattr(one, name)), name


@pytest.mark.parametrize(
    "given",
    [{}, {"delay": 5}, {"deliver_ms": NOW - 5}, {"level": 2}, {"level": 99}, {"queue_id": 3},
     {"delay": 500, "tags": "a", "keys": ["k"], "properties": {"x": "y"}}],
)  # fmt: skip
@pytest.mark.parametrize("between", ["nothing", "turned", "reopened", "killed", "rebuilt"])
def test_repeated_id_returns_the_first_receipt(
    bench: Bench, given: dict[str, Any], between: str
) -> None:
    first = bench.store.put("t", b"x", message_id="id-1", **given)
    assert (first.message_id, first.duplicate, first.cancelled) == ("id-1", False, False)
    other = bench.store.put("u", b"other", message_id="id-1")
    assert not other.duplicate, "another topic"
    go_on(bench, between)
    again = bench.store.put("t", b"another body", message_id="id-1", delay=1, queue_id=1)
    same(first, again)
    assert bench.store.put_many("t", [b"y"], message_ids=["id-1"])[0] == again
    bench.turn(10 * HOUR)
    assert [m.body for q in range(4) for m in bench.out("t", q)] == [b"x"]
    (message,) = bench.store.query("t", "id-1")
    assert message.message_id == "id-1"


def go_on(bench: Bench, how: str) -> None:
    if how == "turned":
        bench.turn(HOUR // 2)
    if how == "reopened":
        bench.reopen()
    if how == "rebuilt":
        bench.store.flush()  # the staging goes with the side files
    if how in ("killed", "rebuilt"):
        bench.kill(side_files=how == "killed")


@pytest.mark.parametrize("message_id", ["__CRC32#_0123456789", "order-7/__CRC32#00123456789"])
@pytest.mark.parametrize("given", [{}, {"delay": 500}, {"level": 2}])
@pytest.mark.parametrize("between", ["nothing", "killed", "rebuilt"])
def test_id_may_end_like_a_crc_property(
    bench: Bench, message_id: str, given: dict[str, Any], between: str
) -> None:
    bench.close()
    bench.root, bench.config = bench.root / "plain", small(property_crc=False)
    bench.open()
    first = bench.store.put("t", b"x", message_id=message_id, **given)
    bench.store.put("t", b"behind it", queue_id=first.queue_id)
    go_on(bench, between)
    same(first, bench.store.put("t", b"again", message_id=message_id))
    bench.turn(HOUR)
    assert sorted(bench.bodies("t", first.queue_id)) == [b"behind it", b"x"]
    assert bench.store.verify().clean


@pytest.mark.parametrize("between", ["nothing", "reopened", "killed", "rebuilt"])
def test_id_is_forgotten_after_the_window(bench: Bench, between: str) -> None:
    first = bench.store.put("t", b"x", message_id="a")
    bench.clock.advance(HOUR - 1)
    go_on(bench, between)
    same(first, bench.store.put("t", b"y", message_id="a"))
    bench.clock.advance(1)
    second = bench.store.put("t", b"y", message_id="a")
    assert not second.duplicate
    same(second, bench.store.put("t", b"z", message_id="a"))
    bench.clock.set(bench.clock.now_ms - 5)
    same(second, bench.store.put("t", b"z", message_id="a"))
    go_on(bench, between if between != "killed" else "reopened")
    same(second, bench.store.put("t", b"z", message_id="a"))


def test_repeated_id_when_the_first_was_cancelled_or_delivered(bench: Bench) -> None:
    first = bench.store.put("t", b"x", message_id="a", delay=5)
    assert not bench.store.put("t", b"y", message_id="a").cancelled
    assert bench.store.cancel(first) is CancelResult.CANCELLED
    for _ in range(2):
        again = bench.store.put("t", b"y", message_id="a", delay=7)
        same(first, again)
        assert again.cancelled
        assert bench.store.put_many("t", [b"y"], message_ids=["a"])[0].cancelled
        bench.reopen()
    late = bench.store.put("t", b"z", message_id="b", delay=1)
    bench.turn(2000)
    again = bench.store.put("t", b"z", message_id="b")
    same(late, again)
    assert not again.cancelled
    assert bench.store.cancel(again) is CancelResult.ALREADY_DELIVERED
    assert bench.bodies() == [b"z"]


@pytest.mark.parametrize("between", ["nothing", "reopened", "killed", "rebuilt"])
def test_repeated_id_is_not_the_first_when_rescheduled_after_the_window(
    bench: Bench, between: str
) -> None:
    first = bench.store.put("t", b"first", message_id="id-1", delay=10 * HOUR / 1000)
    bench.turn(HOUR)
    second = bench.store.put("t", b"second", message_id="id-1", delay=60)
    assert not second.duplicate
    bench.store.reschedule(first, delay=90)
    same(second, bench.store.put("t", b"second", message_id="id-1", delay=60))
    go_on(bench, between)
    again = bench.store.put("t", b"second", message_id="id-1", delay=60)
    same(second, again)
    assert bench.store.cancel(again) is CancelResult.CANCELLED
    bench.turn(HOUR)
    assert [m.body for q in range(4) for m in bench.out("t", q)] == [b"first"]


@pytest.mark.parametrize("between", ["nothing", "turned", "reopened", "killed", "rebuilt"])
@pytest.mark.parametrize("to", [0, 7000])
def test_repeated_id_is_the_first_when_rescheduled(bench: Bench, between: str, to: int) -> None:
    first = bench.store.put("t", b"x", message_id="a", delay=5000)
    moved = bench.store.reschedule(first, delay=to)
    go_on(bench, between)
    again = bench.store.put("t", b"y", message_id="a")
    same(moved, again)
    assert not again.cancelled
    bench.turn(2 * HOUR)
    assert not bench.store.put("t", b"new", message_id="a").duplicate, "it goes by the first put"


def test_put_many_skips_repeated_ids(bench: Bench) -> None:
    one = bench.store.put("t", b"1", message_id="b", delay=9, queue_id=2)
    given = ["a", "b", None, "c", "", "a"]
    bodies = [b"x%d" % k for k in range(6)]
    batch = bench.store.put_many("t", bodies, message_ids=given, queue_id=0)
    receipts = list(batch)
    assert [r.duplicate for r in receipts] == [False, True, False, False, False, True]
    same(one, receipts[1])
    same(receipts[0], receipts[5])
    assert [r.message_id for r in receipts] == batch.message_ids
    assert batch.message_ids[:2] == ["a", "b"]
    assert len(batch.message_ids[2]) == len(batch.message_ids[4]) == 32
    data, offsets = b"aczc", np.array([0, 1, 2, 3, 3, 4])
    again = bench.store.put_many("t", [b"y"] * 5, message_ids=(data, offsets), delay=3, queue_id=0)
    assert [r.duplicate for r in again] == [True, True, False, False, True]
    assert again.handles[2] == again[2].handle
    bench.turn(9000)
    assert bench.bodies() == [b"x0", b"x2", b"x3", b"x4", b"y", b"y"]
    assert bench.bodies("t", 2) == [b"1"]


def test_atomic_batch_with_repeated_ids(bench: Bench) -> None:
    bodies, ids = [b"%d" % k for k in range(5)], list("abcde")
    batch = bench.store.put_many("t", bodies, message_ids=ids, atomic=True, delay=2)
    again = bench.store.put_many("t", bodies, message_ids=ids, atomic=True)
    for one, two in zip(batch, again, strict=True):
        same(one, two)
    for other in (["a", *"fghi"], [*"abcd", "f"], [*"abcd", None]):
        with bench.refused(MessageError, "of an atomic batch were put before"):
            bench.store.put_many("t", bodies, message_ids=other, atomic=True)
    with bench.refused(MessageError, "stands twice"):
        bench.store.put_many("t", bodies, message_ids=[*"fghf", None], atomic=True)
    bench.turn(2000)
    assert bench.bodies() == bodies


def test_ids_are_only_names_when_dedupe_is_off(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(dedupe_window_ms=0))
    for _ in range(2):
        receipt = bench.store.put("t", b"x", message_id="a")
        assert (receipt.message_id, receipt.duplicate) == ("a", False)
        assert not bench.store.put_many("t", [b"y"], message_ids=["a"])[0].duplicate
        bench.store.put_many("t", [b"z", b"z"], message_ids=["a", "a"])
    bench.turn()
    assert len(bench.store.query("t", "a")) == 8
    bench.close()


@pytest.mark.parametrize(
    "wrong", [5, b"a", "", "a b", "a\x02", "\x7f", "\ud800", "x" * 129, "ü" * 65]
)
def test_put_rejects_invalid_ids(bench: Bench, wrong: Any) -> None:
    with bench.refused(MessageError, "message_id"):
        bench.store.put("new", b"x", message_id=wrong)
    if wrong:
        with bench.refused(MessageError, "message_id"):
            bench.store.put_many("new", [b"x", b"y"], message_ids=["a", wrong])


@pytest.mark.parametrize("wrong", ["ab", ["a"], 5, (b"ab", np.array([0, 1])), (b"a b", [0, 3, 3])])
def test_put_many_rejects_invalid_ids(bench: Bench, wrong: Any) -> None:
    with bench.refused(MessageError, "message_ids"):
        bench.store.put_many("new", [b"x", b"y"], message_ids=wrong)


def test_longest_id_fits_the_largest_message(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(commit_log_segment_bytes=8192))
    size = 8192
    receipt = None
    while receipt is None:
        size -= 1
        try:
            receipt = bench.store.put("t", b"x" * size, message_id="ü" * 64, delay=1)
        except MessageError as error:
            assert "wanted at most" in str(error)  # noqa: PT017 - which one is it
    assert receipt.message_id == "ü" * 64
    bench.turn(1000)
    assert [(len(m.body), m.message_id) for m in bench.out()] == [(size, "ü" * 64)]
    assert bench.store.cancel(receipt.handle) is CancelResult.ALREADY_DELIVERED
    bench.close()


def test_more_ids_than_a_table_holds_and_more_than_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*IDS_CAPACITY_MIN, 4)
    monkeypatch.setattr(*IDS_FILE_BYTES_MIN, 100)
    bench = Bench(tmp_path / "s", small(dedupe_ids_max=4096))
    names = [f"id-{k}" for k in range(4000)]
    bench.store.put_many("t", [b"x"] * 4000, message_ids=names)
    for k in range(4000, 4096):
        bench.store.put("t", b"x", message_id=f"id-{k}")
    with bench.refused(BusyError, "dedupe_ids_max"):
        bench.store.put("t", b"x", message_id="one-more")
    bench.reopen()
    assert all(r.duplicate for r in bench.store.put_many("t", [b"y"] * 4000, message_ids=names))
    bench.clock.advance(HOUR)
    assert not bench.store.put("t", b"x", message_id="one-more").duplicate
    bench.store.flush()
    bench.store.put("t", b"x", message_id="and-another")
    bench.store.flush()
    bench.reopen()
    files = sorted(path.name for path in (bench.root / "timerstore").glob("ids-*"))
    assert len(files) == 1, "what is out of the window goes"
    assert bench.store.put("t", b"y", message_id="one-more").duplicate
    assert bench.store.put("t", b"y", message_id="and-another").duplicate
    bench.close()


@pytest.mark.parametrize(("age_ms", "is_known"), [(HOUR - 1, True), (HOUR, False)])
def test_saved_ids_are_dropped_when_their_window_has_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, age_ms: int, is_known: bool
) -> None:
    """The id that needs space makes the store drop the ids that are saved and too old."""
    monkeypatch.setattr(*IDS_CAPACITY_MIN, 4)
    names = [f"id-{k}" for k in range(4)]
    bench.store.put_many("t", [b"x"] * 4, message_ids=names)
    bench.store.flush()
    bench.clock.advance(age_ms)
    for k in range(8):
        bench.store.put("t", b"x", message_id=f"new-{k}")
    assert bench.store.put("t", b"x", message_id="id-3").duplicate is is_known


def test_id_that_is_not_saved_is_kept_after_its_window(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next checkpoint saves it."""
    monkeypatch.setattr(*IDS_CAPACITY_MIN, 4)
    for k in range(4):
        if k == 3:
            bench.store.flush()
        bench.store.put("t", b"x", message_id=f"id-{k}")
    bench.clock.advance(HOUR)
    bench.store.put("t", b"x", message_id="new")
    assert len(inside(bench.store).ids.take().entries) == 2


def test_ids_file_is_rebuilt_when_it_does_not_match(bench: Bench) -> None:
    first = bench.store.put("t", b"x", message_id="a")
    for damage in (bytes(24), b""):
        bench.close()
        (path,) = (bench.root / "timerstore").glob("ids-*")
        path.write_bytes(damage)
        bench.open()
        same(first, bench.store.put("t", b"y", message_id="a"))
    bench.close()
    (path,) = (bench.root / "timerstore").glob("ids-*")
    path.unlink()
    bench.open()
    same(first, bench.store.put("t", b"y", message_id="a"))


def hash_of(tmp_path: Path, message_id: str) -> int:
    """As the table of another store has it."""
    other = Bench(tmp_path / f"hash-{message_id}")
    other.store.put("t", b"x", message_id=message_id)
    found = int(inside(other.store).ids.take().entries["hash"][0])
    other.close()
    return found


@pytest.mark.parametrize("atomic", [False, True])
def test_id_with_the_hash_of_another_is_stored(bench: Bench, tmp_path: Path, atomic: bool) -> None:
    known = [bench.store.put("t", b"%d" % k, message_id=f"a{k}", delay=3) for k in range(2)]
    first = bench.store.put("t", b"b", message_id="b", delay=3)
    for name in "bcd":
        for one in known:
            entry = np.array([(hash_of(tmp_path / str(one.timer_id), name), one.log_offset, NOW)],
                             ids_module.ENTRY_DTYPE)  # fmt: skip
            add_id(inside(bench.store).ids, entry)
    same(first, bench.store.put("t", b"y", message_id="b"))
    if atomic:
        batch = bench.store.put_many("t", [b"c", b"d"], message_ids=["c", "d"], atomic=True)
    else:
        batch = bench.store.put_many("t", [b"c", b"d", b"y"], message_ids=["c", "d", "a1"])
        same(known[1], batch[2])
    assert [r.duplicate for r in batch][:2] == [False, False]
    for k in range(2):
        same(batch[k], bench.store.put("t", b"y", message_id="cd"[k]))
    bench.turn(3000)
    assert bench.bodies() == [b"c", b"d", b"0", b"1", b"b"]


def test_flow_control_counts_a_repeated_id_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(slot_messages_max=2))
    at = NOW + 5500
    first = bench.store.put("t", b"1", message_id="a", deliver_ms=at)
    for _ in range(3):
        same(first, bench.store.put("t", b"x", message_id="a", deliver_ms=at))
    bench.store.put_many("t", [b"2", b"x"], message_ids=["b", "a"], deliver_ms=at)
    same(first, bench.store.put("t", b"x", message_id="a", deliver_ms=at))
    with bench.refused(FlowControlError):
        bench.store.put("t", b"3", message_id="c", deliver_ms=at)
    bench.store.cancel(first)
    bench.store.put("t", b"3", message_id="c", deliver_ms=at)
    bench.turn(6000)
    assert bench.bodies() == [b"2", b"3"]
    bench.close()
