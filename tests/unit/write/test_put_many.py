"""put_many at its limits: checks reject a whole batch, and receipts are exact."""

import itertools
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.amounts import sample
from tests.support.bench import NOW, Bench, small
from tests.support.inside import inside
from timerstore import MessageError, StoreConfig
from timerstore._engine.base import message_fields
from timerstore._engine.storage.disk import Disk
from timerstore.errors import BusyError, FullError

MAX = StoreConfig().delay_ms_max
GOOD = [b"a", b"b", b"c"]
OFFSETS = np.array([0, 1, 2, 3])

WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("topic", ("a/b", GOOD), {}),
    ("topic", (None, GOOD), {}),
    ("topic", (["t"], GOOD), {}),
    ("bodies", ("new", b"abc"), {}),
    ("bodies", ("new", "abc"), {}),
    ("bodies", ("new", None), {}),
    ("bodies", ("new", iter(GOOD)), {}),
    ("bodies", ("new", [b"a", "b", b"c"]), {}),
    ("bodies", ("new", [b"a", None]), {}),
    ("bodies", ("new", (b"abc", np.array([0, 2, 1]))), {}),
    ("bodies", ("new", (b"abc", np.array([0, 4]))), {}),
    ("bodies", ("new", (b"abc", np.array([-1, 2]))), {}),
    ("bodies", ("new", (b"abc", np.array([0.0, 2.0]))), {}),
    ("bodies", ("new", (b"abc", np.zeros((2, 2), np.int64))), {}),
    ("bodies", ("new", (b"abc", np.zeros(0, np.int64))), {}),
    ("time", ("new", GOOD), {"delay": 1, "deliver_ms": NOW}),
    ("deliver_ms", ("new", GOOD), {"deliver_ms": [0, NOW + 1]}),
    ("deliver_ms", ("new", GOOD), {"deliver_ms": [0, 0, NOW + MAX + 1]}),
    ("deliver_ms", ("new", GOOD), {"deliver_ms": [0, 0, 0.5]}),
    ("deliver_ms", ("new", GOOD), {"deliver_ms": "soon"}),
    ("delay", ("new", GOOD), {"delay": [0.0, 1.0, float("nan")]}),
    ("delay", ("new", GOOD), {"delay": [0.0, 1.0, float("inf")]}),
    ("delay", ("new", GOOD), {"delay": [0.0, 1.0, -1.0]}),
    ("delay", ("new", GOOD), {"delay": timedelta(days=365 * 41)}),
    ("property", ("new", GOOD), {"tags": "\x02"}),
    ("keys", ("new", GOOD), {"keys": "abc"}),
    ("keys", ("new", GOOD), {"keys": ["a"]}),
    ("keys", ("new", GOOD), {"keys": iter("abc")}),
    ("keys", ("new", GOOD), {"keys": 3}),
    ("keys", ("new", GOOD), {"keys": ["a", ["b", "c d"], "e"]}),
    ("properties", ("new", GOOD), {"keys": ["a", "b", "c" * 32_767]}),
    ("queue_id", ("new", GOOD), {"queue_id": 1024}),
    ("flush", ("new", GOOD), {"flush": "maybe"}),
    ("flush", ("new", []), {"flush": "maybe"}),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_put_many_stores_all_or_nothing_when_an_argument_is_invalid(
    shared_bench: Bench, number: int
) -> None:
    match, args, given = WRONG[number]
    with shared_bench.refused(MessageError, match):
        shared_bench.store.put_many(*args, **given)


def test_one_body_above_the_limit_rejects_the_batch(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(message_bytes_max=1000))
    with bench.refused(MessageError, "1001 at 1"):
        bench.store.put_many("t", [b"x" * 1000, b"x" * 1001, b"x"])
    bench.store.put_many("t", [b"x" * 1000, b""])
    bench.turn()
    assert [len(body) for body in bench.bodies()] == [1000, 0]
    bench.close()


def test_keys_count_towards_the_record_limit(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(commit_log_segment_bytes=8192))
    room = message_fields.room_bytes(bench.config.record_bytes_max, b"t")
    key = "k" * 100
    body = b"x" * (room - len("KEYS") - 2 - 100)
    with bench.refused(MessageError, "message: wanted at most"):
        bench.store.put_many("t", [b"", body + b"x"], keys=["a", key], delay=1)
    bench.store.put_many("t", [b"y" * room, body], keys=[(), key], delay=1)
    bench.turn(1000)
    assert [(m.body, m.keys) for m in bench.out()] == [(b"y" * room, ()), (body, (key,))]
    bench.close()


@pytest.mark.parametrize("count", [0, 1, 2, 255, 256, 257, 3000])
@pytest.mark.parametrize("as_buffer", [False, True])
def test_put_many_keeps_the_order_for_any_count(bench: Bench, count: int, as_buffer: bool) -> None:
    bodies = [b"%d" % k * (k % 7) for k in range(count)]
    offsets = np.array([0, *itertools.accumulate(map(len, bodies))])
    given = (memoryview(b"".join(bodies)), offsets) if as_buffer else bodies
    batch = bench.store.put_many("t", given, delay=0.5)
    assert len(batch) == len(list(batch)) == count
    bench.turn(500)
    assert bench.bodies() == bodies


def test_empty_batch_changes_nothing(bench: Bench) -> None:
    bench.store.put("t", b"x")
    before = bench.shown()
    for given in ([], (b"", np.array([0])), (b"abc", np.array([2]))):
        batch = bench.store.put_many("t", given, deliver_ms=[], flush="sync")
        assert list(batch) == []
        assert batch.message_ids == []
    assert bench.shown() == before


def test_offsets_may_skip_bytes(bench: Bench) -> None:
    bench.store.put_many("t", (b"--abcd--", np.array([2, 3, 3, 6])))
    bench.turn()
    assert bench.bodies() == [b"a", b"", b"bcd"]


def test_batch_may_mix_immediate_and_delayed_messages(bench: Bench) -> None:
    due = np.array([0, NOW + 2000, NOW, NOW - 5, NOW + 1, -1, NOW + 2000], np.int64)
    batch = bench.store.put_many("t", [b"%d" % k for k in range(7)], deliver_ms=due)
    assert batch.queue_offsets.tolist() == [0, -1, 1, 2, -1, 3, -1]
    assert batch.timer_ids.tolist() == [-1, 0, -1, -1, 1, -1, 2]
    assert batch.due_ms.tolist() == [NOW, NOW + 2000, NOW, NOW, NOW + 1, NOW, NOW + 2000]
    assert [r.queue_offset for r in batch] == [0, None, 1, 2, None, 3, None]
    bench.turn()
    assert bench.bodies() == [b"0", b"2", b"3", b"5"]
    bench.turn(2000)
    assert bench.bodies() == [b"0", b"2", b"3", b"5", b"4", b"1", b"6"]
    found = {m.body: m.message_id for m in bench.out()}
    assert [found[b"%d" % k] for k in range(7)] == batch.message_ids


@pytest.mark.parametrize("wrong", ["one", b"one", 5, {"one"}, ["one", "two"], np.array(5)])
def test_keys_must_have_one_entry_for_each_message(bench: Bench, wrong: Any) -> None:
    with bench.refused(MessageError, "keys: wanted one entry for each of 1 bodies, got"):
        bench.store.put_many("t", [b"0"], keys=wrong)


def test_each_message_has_its_own_keys(bench: Bench) -> None:
    keys: list[Any] = ["one", ("two", "three"), (), ["four"]]
    bench.store.put_many("t", [b"0", b"1", b"2", b"3"], keys=keys, tags="tag", delay=1)
    bench.turn(1000)
    assert [m.keys for m in bench.out()] == [("one",), ("two", "three"), (), ("four",)]
    assert {m.tags for m in bench.out()} == {"tag"}


@pytest.mark.parametrize(
    "given",
    [
        {"delay": 2},
        {"delay": timedelta(seconds=2)},
        {"delay": [2, 2, 2]},
        {"delay": np.full(3, 2.0)},
        {"deliver_ms": NOW + 2000},
        {"deliver_ms": np.full(3, NOW + 2000, np.uint64)},
        {"deliver_ms": (NOW + 2000,) * 3},
    ],
)
def test_due_time_is_one_for_all_or_one_for_each(bench: Bench, given: dict[str, Any]) -> None:
    assert bench.store.put_many("t", GOOD, **given).due_ms.tolist() == [NOW + 2000] * 3
    bench.turn(1999)
    assert bench.bodies() == []
    bench.turn(1)
    assert bench.bodies() == GOOD


def test_receipts_of_a_batch_cancel_its_messages(bench: Bench) -> None:
    batch = bench.store.put_many("t", GOOD, delay=[1, 2, 3])
    assert bench.store.cancel(batch[1]) == "CANCELLED"
    assert bench.store.cancel(batch.handles[2]) == "CANCELLED"
    assert bench.store.cancel(batch[-1]) == "ALREADY_CANCELLED"
    bench.turn(5000)
    assert bench.bodies() == [b"a"]


def test_batch_goes_to_the_given_queue(bench: Bench) -> None:
    assert bench.store.put_many("t", GOOD, queue_id=3).queue_id == 3
    bench.turn()
    assert bench.bodies("t", 3) == GOOD
    assert bench.store.topics()["t"] == 4


# --- what an error says is stored ---


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's first segment is there, and the disk has no room for another."""
    real = Disk.open

    def open_file(disk: Disk, path: Path, *args: Any, **given: Any) -> Any:
        if path.parent.name == "commitlog" and not path.exists():
            raise FullError("no space", where=path)
        return real(disk, path, *args, **given)

    monkeypatch.setattr(Disk, "open", open_file)


GIVEN: dict[str, dict[str, Any]] = {
    "plain": {},
    "due later": {"deliver_ms": NOW + 5000},
    "level": {"level": 3},
    "ids": {"message_ids": [f"id-{k}" for k in range(6000)]},
}


@pytest.mark.parametrize("given", sample(GIVEN, "batch kinds on a full disk"))
@pytest.mark.parametrize("flush", ["sync", "async", None])
@pytest.mark.parametrize("default", ["sync", "async"])
def test_full_error_counts_only_durable_messages_of_a_sync_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, flush: str | None, default: str
) -> None:
    bench = Bench(tmp_path / "store", small(flush=default))
    bench.store.put("t", b"before", flush="sync")
    log = inside(bench.store).log
    with monkeypatch.context() as patched:
        fill_disk(patched)
        with pytest.raises(FullError) as caught:
            bench.store.put_many("t", [bytes(200)] * 6000, flush=flush, **GIVEN[given])
    assert 0 < caught.value.stored_count < 6000
    is_sync = (flush or default) == "sync"
    assert (log.durable == log.end) == is_sync
    bench.turn(10_000)
    assert len(bench.bodies()) == 1 + caught.value.stored_count
    bench.close()


def test_busy_error_counts_stored_messages_when_ids_are_full(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path / "store", small(flush="sync", dedupe_ids_max=4096))
    ids = [f"id-{k}" for k in range(5000)]
    with pytest.raises(BusyError, match="message ids") as caught:
        bench.store.put_many("t", [b"x"] * 5000, message_ids=ids)
    log = inside(bench.store).log
    assert caught.value.stored_count == 4096
    assert log.durable == log.end
    bench.turn()
    assert len(bench.bodies()) == 4096
    bench.close()
