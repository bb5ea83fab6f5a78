"""The fast put_many in C: it has the results of the slow path, to which it falls back.

The stores use the system's clock and asynchronous flushes, as the fast path requires.
"""

import array
import inspect
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import timerstore
from tests.support.bench import DAY, small
from timerstore import MessageError, PutBatch, TimerStore
from timerstore._engine.base import failpoints
from timerstore.errors import ClosedError, FailedError
from timerstore.testing import Stepper

BODIES = [b"a", b"", b"b" * 300, b"c", b"a"]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "store", small(), threads=False) as made:
        made.put("t", b"first")
        yield made
        if made._engine.log.failed is None:
            assert made.verify().clean


def _never(*args: Any, **given: Any) -> NoReturn:
    raise AssertionError(f"the slow path was called: {args} {given}")


def _quick(store: TimerStore, slow: Any = _never) -> Any:
    return store._put_writer.make_putter(store.put, slow, _never, _never).put_many


def _times() -> dict[str, dict[str, Any]]:
    later = _now_ms() + DAY
    mixed = [0, later, _now_ms() - 5, later + 1, -(2**63)]
    return {
        "now": {},
        "array": {"deliver_ms": np.arange(later, later + 5)},
        "mixed": {"deliver_ms": np.array(mixed)},
        "passed": {"deliver_ms": np.array([0, -1, -2, -3, -4])},
        "view": {"deliver_ms": memoryview(array.array("q", mixed))},
        "number": {"deliver_ms": later},
        "passed number": {"deliver_ms": -5},
        "delay": {"delay": 3600},
        "part of a second": {"delay": 3600.0005},
        "no delay": {"delay": 0},
    }


@pytest.mark.parametrize("name", list(_times()))
def test_fast_path_has_the_results_and_bytes_of_the_slow_path(tmp_path: Path, name: str) -> None:
    given = _times()[name]
    found = []
    for way in ("quick", "other"):
        with timerstore.open(tmp_path / way, small(), threads=False) as store:
            store.put("t", b"first")
            assert store.put_many.__self__ is store._putter  # type: ignore[attr-defined]
            put_many = _quick(store) if way == "quick" else TimerStore.put_many.__get__(store)
            before_ms = _now_ms()
            batches = [put_many("t", BODIES, **given) for _ in range(2)]
            span_ms = before_ms, _now_ms()
            found.append([*_said(batches, given, span_ms), *_written(store, batches)])
    assert found[0] == found[1]


def _said(batches: list[PutBatch], given: dict[str, Any], span_ms: tuple[int, int]) -> list[Any]:
    """Return all results except log offsets and exact times."""
    assert batches[1].counter_begin == batches[0].counter_begin + len(BODIES)
    said: list[Any] = [(one.queue_id, one.given, one.origin.topic) for one in batches]
    for name in ("log_offsets", "queue_offsets", "due_ms", "timer_ids"):
        columns = [getattr(batch, name) for batch in batches]
        assert {(one.dtype, one.shape) for one in columns} == {(np.dtype(np.int64), (5,))}
        assert all(one.flags.writeable for one in columns)
        if name == "log_offsets":
            columns = [column - column[0] for column in columns]
        said += [column.tolist() for column in columns if name != "due_ms"]
    delay_ms = -int(-given.get("delay", 0) * 1000 // 1)
    due = [receipt.due_ms for batch in batches for receipt in batch]
    if "delay" in given or min(due) < span_ms[1] + DAY // 2:
        first, last = span_ms[0] + delay_ms, span_ms[1] + delay_ms
        return [*said, [first <= one <= last or one for one in due]]
    return [*said, due]


def _written(store: TimerStore, batches: list[PutBatch]) -> list[Any]:
    """Return the delivered messages and the ids of the pending ones."""
    Stepper(store).settle()
    out, waiting = store.pull("t", 0, 1).messages, list(store.pending())
    assert {one.message_id for one in (*out, *waiting)} == {
        made for batch in batches for made in batch.message_ids
    }
    assert store.verify().clean
    return [[(one.body, one.properties.keys()) for one in out], [one.timer_id for one in waiting]]


LEFT: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "another topic": (("u", BODIES), {}),
    "a topic of another type": ((b"t", BODIES), {}),
    "a tuple": (("t", tuple(BODIES)), {}),
    "a buffer": (("t", (b"abc", np.array([0, 1, 3]))), {}),
    "none": (("t", []), {}),
    "more than it takes": (("t", [b"x"] * 1025), {}),
    "more bytes than it takes": (("t", [b"x" * 90_000] * 3), {}),
    "a bytearray among them": (("t", [b"x", bytearray(b"y")]), {}),
    "bodies by name": (("t",), {"bodies": BODIES}),
    "nothing": ((), {}),
    "a list of times": (("t", BODIES), {"deliver_ms": [0] * 5}),
    "another type of times": (("t", BODIES), {"deliver_ms": np.zeros(5, np.int32)}),
    "unsigned times": (("t", BODIES), {"deliver_ms": np.zeros(5, np.uint64)}),
    "times as fractions": (("t", BODIES), {"deliver_ms": np.zeros(5)}),
    "times in the other order of bytes": (("t", BODIES), {"deliver_ms": np.zeros(5, ">i8")}),
    "times with steps": (("t", BODIES), {"deliver_ms": np.zeros(10, np.int64)[::2]}),
    "times in two rows": (("t", BODIES[:4]), {"deliver_ms": np.zeros((2, 2), np.int64)}),
    "a time of numpy's": (("t", BODIES), {"deliver_ms": np.int64(0)}),
    "too few times": (("t", BODIES), {"deliver_ms": np.zeros(4, np.int64)}),
    "too many times": (("t", BODIES), {"deliver_ms": np.zeros(6, np.int64)}),
    "bytes as times": (("t", BODIES), {"deliver_ms": bytes(40)}),
    "delays": (("t", BODIES), {"delay": np.ones(5)}),
    "too late": (("t", BODIES), {"deliver_ms": np.full(5, 2**62)}),
    "one too late": (("t", BODIES), {"deliver_ms": np.array([0, 0, 0, 0, 2**62])}),
    "too long": (("t", BODIES), {"delay": 10**9}),
    "a level": (("t", BODIES), {"level": 1}),
    "tags": (("t", BODIES), {"tags": "x"}),
    "two things": (("t", BODIES), {"delay": 1, "flush": "sync"}),
    "a flush": (("t", BODIES), {"flush": "async"}),
}


@pytest.mark.parametrize("name", list(LEFT))
def test_other_arguments_use_the_slow_path(store: TimerStore, name: str) -> None:
    args, given = LEFT[name]
    before = store.stats()["put_messages"]
    answer = object()
    calls: list[Any] = []

    def slow(*args: Any, **given: Any) -> object:
        calls.append((args, given))
        return answer

    assert _quick(store, slow)(*args, **given) is answer
    [(seen_args, seen_given)] = calls
    assert len(seen_args) == len(args)
    assert all(one is other for one, other in zip(seen_args, args, strict=True))
    assert seen_given.keys() == given.keys()
    assert store.stats()["put_messages"] == before
    assert not store._log.lock.locked()


def test_topic_with_queues_uses_the_slow_path(store: TimerStore) -> None:
    store.put("t", b"x", queue_id=1)
    with pytest.raises(AssertionError, match="slow path was called"):
        _quick(store)("t", BODIES)


def test_slow_path_is_used_when_append_lock_is_taken(store: TimerStore) -> None:
    with store._log.lock, pytest.raises(AssertionError, match="slow path was called"):
        _quick(store)("t", BODIES)
    assert len(_quick(store)("t", BODIES)) == len(BODIES)


def test_slow_path_is_used_when_fail_points_are_set(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    points: list[str] = []
    monkeypatch.setattr(failpoints, "hook", points.append)
    store.put_many("t", BODIES)
    assert "put_many_part_appended" in points


def test_slow_path_is_used_when_memory_is_full(store: TimerStore) -> None:
    """Staging, segments and states: the slow path handles each call without space."""
    left = 0

    def slow(*args: Any, **given: Any) -> PutBatch:
        nonlocal left
        left += 1
        return TimerStore.put_many(store, *args, **given)

    put_many, later = _quick(store, slow), _now_ms() + DAY
    bodies = [b"%d" % k for k in range(50)]
    batches = [put_many("t", bodies, deliver_ms=np.full(50, later)) for _ in range(200)]
    assert 0 < left < 180
    ids = list(itertools.chain.from_iterable(batch.timer_ids.tolist() for batch in batches))
    assert ids == list(range(200 * 50))
    unique = {one for batch in batches for one in batch.message_ids}
    assert len(unique) == 200 * 50
    Stepper(store).settle()
    assert sum(1 for _ in store.pending()) == 200 * 50


def test_due_time_too_far_ahead_is_rejected(store: TimerStore) -> None:
    with pytest.raises(MessageError, match=r"wanted due times of at most .* at 1"):
        store.put_many("t", BODIES, deliver_ms=np.array([0, 2**62, 0, 0, 0]))


def test_list_may_change_during_the_call(store: TimerStore) -> None:
    """The object that exports the times may run any code, so no body may be read before."""
    bodies = [bytes([k]) * 100 for k in range(5)]

    class Times(array.array):  # type: ignore[type-arg]
        def __buffer__(self, flags: int) -> memoryview:
            bodies.clear()
            return super().__buffer__(flags)  # type: ignore[misc,no-any-return]

    times = Times("q", [0] * 5)
    calls: list[int] = []
    _quick(store, lambda _topic, given, **_: calls.append(len(given)))(
        "t", bodies, deliver_ms=times
    )
    assert calls in ([], [0])  # Python before 3.12 does not ask


def test_closed_store_raises_closed_error(tmp_path: Path) -> None:
    store = timerstore.open(tmp_path, small(), threads=False)
    put_many = store.put_many
    put_many("t", BODIES)
    put_many("t", BODIES)
    store.close()
    with pytest.raises(ClosedError):
        put_many("t", BODIES)


@pytest.mark.parametrize("call", ["put", "put_many"])
def test_put_raises_when_a_truncated_file_is_noticed_during_it(
    store: TimerStore, tmp_path: Path, call: str
) -> None:
    """Appended records may be in zero pages that belong to no file.

    See docs/decisions/0013-locks-and-re-entry.md.
    """
    puts = {
        "put": lambda: store.put("t", b"x"),
        "put_many": lambda: store.put_many("t", BODIES),
    }
    puts[call]()
    os.truncate(tmp_path / "store" / "timerstore" / "staging", 4096)
    with pytest.raises(FailedError, match="truncated while it was open"):
        puts[call]()
    with pytest.raises(FailedError, match="reopened"):
        puts[call]()


def test_method_of_a_subclass_is_called_each_time(tmp_path: Path) -> None:
    asked = []

    class Mine(TimerStore):
        def put_many(self, *args: Any, **given: Any) -> PutBatch:
            asked.append(args)
            return super().put_many(*args, **given)

    with Mine(tmp_path / "store", small(), threads=False) as store:
        for _ in range(3):
            store.put_many("t", BODIES)
    assert len(asked) == 3


@pytest.mark.parametrize("given", [2**62 + 1, 2**63, 2**64 - 1, np.uint64(2**63)])
def test_due_time_out_of_range_is_rejected(store: TimerStore, given: Any) -> None:
    with pytest.raises(MessageError, match="deliver_ms"):
        store.put_many("t", BODIES, deliver_ms=given)


def test_put_methods_have_signatures(store: TimerStore) -> None:
    assert "topic" in inspect.signature(store.put_many).parameters
    assert "topic" in inspect.signature(store.put).parameters
