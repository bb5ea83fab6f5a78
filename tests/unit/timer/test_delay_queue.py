"""timerstore.DelayQueue: order, limits, invalid arguments and memory.

The state machine test is in tests/property.
"""

import gc
import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest

from tests.support.amounts import sample
from tests.support.inside import (
    DELAY_QUEUE_MAKE_BUCKETS,
    bucket_count,
    bucket_number_count,
    bucket_parts,
    bucket_width_ms,
    opened_bucket,
)
from timerstore import DelayQueue, MessageError
from timerstore._engine.timer.delay_queue import DUE_MS_MAX

Queue = DelayQueue[Any, Any]


def keys(found: list[tuple[int, Any, Any]]) -> list[Any]:
    return [key for _, key, _ in found]


def filled(*due: int, **given: Any) -> Queue:
    queue = Queue(**given)
    for at, due_ms in enumerate(due):
        queue.add(at, due_ms)
    return queue


# --- what it does ---------------------------------------------------------------------------------


def test_expire_returns_keys_by_due_time_then_order_of_adding() -> None:
    queue = filled(1700, 1200, 900, 1200, 1700)
    assert queue.expire(1199) == [(900, 2, None)]
    assert queue.expire(1700) == [
        (1200, 1, None), (1200, 3, None), (1700, 0, None), (1700, 4, None),
    ]  # fmt: skip
    assert not queue


@pytest.mark.parametrize("bucket_ms", [1, 7, 1000, DUE_MS_MAX])
def test_expire_returns_no_key_before_its_millisecond(bucket_ms: int) -> None:
    queue = filled(1999, 2000, 2001, bucket_ms=bucket_ms)
    assert [keys(queue.expire(now)) for now in (1998, 1999, 2000, 2001)] == [[], [0], [1], [2]]


def test_add_keeps_order_when_bucket_is_open() -> None:
    queue = filled(1100, 1500, 1900)
    assert keys(queue.expire(1100)) == [0]
    queue.add("same time, later", 1500)
    queue.add("between", 1300)
    assert queue.next_due_ms() == 1300
    queue.add("before all", 100)
    assert queue.next_due_ms() == 100
    assert keys(queue.expire(1999)) == ["before all", "between", 1, "same time, later", 2]


def test_key_added_to_open_bucket_is_not_early() -> None:
    queue = filled(1900)
    assert queue.next_due_ms() == 1900
    queue.add("late", 1500)
    assert queue.expire(1499) == []
    assert keys(queue.expire(1500)) == ["late"]


def test_equal_times_keep_order_when_open_bucket_is_sorted_again() -> None:
    """Entries added one by one are in a heap, whose list is not sorted."""
    queue = filled(1000, 1900, 1900, 1900, 1900)
    assert queue.next_due_ms() == 1000
    for key, due_ms in (("first", 1100), ("a", 1500), ("b", 1500), ("c", 1500)):
        queue.add(key, due_ms)
    assert keys(queue.expire(1100)) == [0, "first"]
    for at in range(20):
        queue.add(f"new {at}", 1500)
    assert keys(queue.expire(1500)) == ["a", "b", "c", *(f"new {at}" for at in range(20))]


@pytest.fixture
def open_bucket() -> Queue:
    """An open bucket with 300 entries in the sorted run and 300 in the heap."""
    queue = Queue()
    for key in range(300):
        queue.add(key, 1500 + key)
    assert queue.next_due_ms() == 1500
    for key in range(300, 600):
        queue.add(key, 1500 + key * 7 % 400)
    assert queue.next_due_ms() == 1500
    opened = opened_bucket(queue, 1)
    assert [len(part) for part in (opened.run, opened.late)] == [300, 300]
    return queue


def test_open_bucket_keeps_order_when_swept(open_bucket: Queue) -> None:
    queue = open_bucket
    for key in range(299):
        queue.cancel(key)
    late = sorted(range(300, 600), key=lambda key: key * 7 % 400)
    for key in late[:40]:
        queue.cancel(key)
    assert held(queue) < 300  # it was swept
    assert keys(queue.expire(1700)) == [key for key in late[40:] if key * 7 % 400 <= 200]
    for key in range(300, 600):
        queue.cancel(key)
    assert keys(queue.expire(9999)) == [299]


def test_tombstones_of_keys_added_again_are_swept(open_bucket: Queue) -> None:
    queue = open_bucket
    for key in range(600):
        queue.cancel(key)
        queue.add(key, 1990)
    assert held(queue) == 1200
    for key in range(0, 600, 2):
        queue.cancel(key)
    assert held(queue) <= 300 + 300 + 64
    assert keys(queue.expire(1989)) == []
    assert keys(queue.expire(1990)) == list(range(1, 600, 2))


def test_nearer_bucket_expires_first_when_later_one_is_open() -> None:
    queue = filled(5200, 5100)
    assert queue.next_due_ms() == 5100
    queue.add("near", 3000)
    assert queue.next_due_ms() == 3000
    assert keys(queue.expire(9999)) == ["near", 1, 0]


def test_expire_is_correct_when_clock_is_set_back() -> None:
    queue = filled(1000, 2000, 3000)
    assert keys(queue.expire(2500)) == [0, 1]
    assert queue.expire(500) == []
    queue.add("old", 400)
    assert keys(queue.expire(500)) == ["old"]
    assert keys(queue.expire(3000)) == [2]


@pytest.mark.parametrize("now_ms", [1700, 1999, 5000], ids=["inside", "edge", "beyond"])
def test_expire_returns_at_most_max_count_and_the_rest_later(now_ms: int) -> None:
    queue = filled(1700, 1200, 1200, 1300)
    assert queue.expire(now_ms, max_count=0) == []
    assert keys(queue.expire(now_ms, max_count=1)) == [1]
    assert keys(queue.expire(now_ms, max_count=2)) == [2, 3]
    assert keys(queue.expire(now_ms, max_count=2)) == [0]


def test_cancel_returns_entry_once_and_key_can_be_added_again() -> None:
    queue = Queue()
    queue.add("a", 1000, value="first")
    assert queue.find("a") == (1000, "a", "first")
    assert "a" in queue
    assert queue.cancel("a") == (1000, "a", "first")
    assert queue.cancel("a") is None
    assert queue.find("a") is None
    assert "a" not in queue
    queue.add("a", 1000, value="second")
    assert queue.expire(1000) == [(1000, "a", "second")]


@pytest.mark.parametrize("is_open", [False, True])
def test_key_added_again_after_cancel_comes_last_of_equal_times(
    is_open: bool,
) -> None:
    queue = filled(1000, 1000, 1000)
    if is_open:
        assert queue.next_due_ms() == 1000
    queue.cancel(0)
    queue.add(0, 1000)
    assert keys(queue.expire(1000)) == [1, 2, 0]


def test_next_due_skips_cancelled_keys() -> None:
    queue = filled(1000, 1001, 5000)
    assert queue.next_due_ms() == 1000
    queue.cancel(0)
    assert queue.next_due_ms() == 1001
    queue.cancel(1)
    assert queue.next_due_ms() == 5000
    queue.cancel(2)
    assert queue.next_due_ms() is None
    assert DelayQueue().next_due_ms() is None


def test_len_and_repr_report_pending_keys() -> None:
    queue = filled(1, 2)
    assert len(queue) == 2
    assert repr(queue) == "<DelayQueue, 2 pending>"


# --- limits and bad arguments ---------------------------------------------------------------------


@pytest.mark.parametrize("due_ms", [0, 1, DUE_MS_MAX - 1, DUE_MS_MAX])
@pytest.mark.parametrize("bucket_ms", [1, 1000, DUE_MS_MAX - 1, DUE_MS_MAX])
def test_extreme_due_times_and_bucket_widths(due_ms: int, bucket_ms: int) -> None:
    queue = filled(due_ms, bucket_ms=bucket_ms)
    assert queue.next_due_ms() == due_ms
    if due_ms:
        assert queue.expire(due_ms - 1) == []
    assert keys(queue.expire(due_ms)) == [0]


def test_numpy_integers_are_accepted() -> None:
    queue = Queue(bucket_ms=np.int32(10))  # type: ignore[arg-type]
    queue.add("a", np.int64(5))  # type: ignore[arg-type]
    assert type(queue.next_due_ms()) is int
    assert keys(queue.expire(np.int64(5), max_count=np.uint8(1))) == ["a"]  # type: ignore[arg-type]


WRONG = [-1, DUE_MS_MAX + 1, 2**80, True, False, 1.0, float("nan"), float("inf"), "1", None, b"1",
         np.float64(1), np.bool_(True), [1]]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_invalid_times_raise_and_change_nothing(wrong: Any) -> None:
    queue = filled(1000, 2000)
    with pytest.raises(MessageError, match=r"due_ms: wanted .*, got"):
        queue.add("new", wrong)
    with pytest.raises(MessageError, match=r"now_ms: wanted .*, got"):
        queue.expire(wrong)
    if wrong is not None:
        with pytest.raises(MessageError, match=r"max_count: wanted .*, got"):
            queue.expire(2000, max_count=wrong)
    with pytest.raises(MessageError, match=r"bucket_ms: wanted .*, got"):
        DelayQueue(bucket_ms=wrong)
    assert keys(queue.expire(2000)) == [0, 1]


def test_bucket_width_of_zero_is_rejected() -> None:
    with pytest.raises(MessageError, match=r"bucket_ms: wanted 1 to .*, got 0"):
        DelayQueue(bucket_ms=0)


def test_unhashable_keys_are_reported() -> None:
    queue = filled(1000)
    for call in (queue.find, queue.cancel, queue.__contains__, lambda key: queue.add(key, 1)):
        with pytest.raises(MessageError, match="key: wanted a hashable value, got list"):
            call([1])  # type: ignore[arg-type]
    assert keys(queue.expire(1000)) == [0]


def test_add_raises_when_key_is_pending() -> None:
    queue = filled(1000)
    with pytest.raises(MessageError, match="key: 0 is already pending, due at 1000"):
        queue.add(0, 2000)
    assert len(queue) == 1
    assert keys(queue.expire(5000)) == [0]


# --- cost and memory ------------------------------------------------------------------------------


def held(queue: Queue) -> int:
    """Return the number of entries and tombstones in all lists."""
    return sum(len(part) for part in bucket_parts(queue))


@pytest.mark.parametrize("is_open", [False, True])
def test_cancelled_entries_are_released_while_others_are_pending(is_open: bool) -> None:
    queue = Queue()
    for key in range(10_000):
        queue.add(key, 5000 + key % 100)
    if is_open:
        assert queue.next_due_ms() == 5000
    for key in range(9_999):
        queue.cancel(key)
        assert held(queue) <= 2 * len(queue) + 64
    assert keys(queue.expire(9999)) == [9_999]


def test_tombstones_after_expired_entries_are_released() -> None:
    queue = Queue()
    for key in range(1000):
        queue.add(key, 5000)
    for key in range(1000, 1900):
        queue.add(key, 5999)
        queue.cancel(key)
    queue.add("last", 5999)
    assert len(queue.expire(5500)) == 1000
    assert held(queue) <= 1 + 1 + 64
    assert keys(queue.expire(5999)) == ["last"]


def test_full_open_bucket_is_not_sorted_again_for_one_more_key() -> None:
    """Adding to an open bucket costs the same with a hundred times as many pending keys."""
    cost = []
    for count in (100, 10_000):
        queue = Queue()
        for key in range(count):
            queue.add(key, 5500)
        assert queue.next_due_ms() == 5500
        opened = opened_bucket(queue, 5)
        run = opened.run
        for key in range(50):
            queue.add(-1 - key, 5000 + key)
            assert queue.next_due_ms() == 5000
        assert opened.run is run
        assert len(run) == count + 1  # with the nearest key, which was read
        cost.append(len(opened.late))
    assert cost == [49, 49]


@pytest.mark.parametrize("how", sample(["expire", "cancel", "expire one by one"], "ends"))
@pytest.mark.parametrize("spacing_ms", [1, 5000], ids=["dense", "sparse"])
def test_memory_is_released_when_keys_leave(how: str, spacing_ms: int) -> None:
    count = 20_000
    gc.collect()
    tracemalloc.start()
    try:
        queue = Queue()
        for key in range(count):
            queue.add(key, key * spacing_ms)
        full, _ = tracemalloc.get_traced_memory()
        match how:
            case "cancel":
                for key in range(count):
                    queue.cancel(key)
            case "expire":
                assert len(queue.expire(count * spacing_ms)) == count
            case _:
                while queue.expire(count * spacing_ms, max_count=1):
                    pass
        gc.collect()
        empty, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert full > 2_000_000
    assert empty < 200_000


def test_numbers_of_removed_buckets_do_not_accumulate() -> None:
    """A key is cancelled and added again and again, each time in another bucket."""
    queue = filled(DUE_MS_MAX)
    for turn in range(50_000):
        queue.add("again", turn * 1000)
        queue.cancel("again")
        if turn % 3 == 0:
            assert queue.next_due_ms() == DUE_MS_MAX
    assert bucket_number_count(queue) < 5000


def test_equal_times_keep_order_after_cancels() -> None:
    queue = filled(*itertools.repeat(777, 1000))
    for key in range(0, 1000, 7):
        queue.cancel(key)
    assert keys(queue.expire(777)) == [key for key in range(1000) if key % 7]


# --- buckets that fit -----------------------------------------------------------------------------


def test_buckets_become_wider_when_nearly_empty_and_finer_when_full() -> None:
    queue: Queue = DelayQueue(bucket_ms=10)
    for k in range(5000):
        queue.add(k, 100_000 * (k % 977) + k)
    assert bucket_count(queue) < 5000 // 4
    assert bucket_width_ms(queue) > 10
    wanted = sorted((100_000 * (k % 977) + k, k) for k in range(5000))
    assert [(due, key) for due, key, _ in queue.expire(50_000_000)] == [
        one for one in wanted if one[0] <= 50_000_000
    ]
    for k in range(5000, 500_000):  # all in one of those wide buckets
        queue.add(k, 200_000_000 + k % 1000)
    for k in range(5000, 450_000):
        queue.cancel(k)
    assert bucket_width_ms(queue) < 100_000
    assert [key for _, key, _ in queue.expire(2**60)] == [
        *(key for due, key in wanted if due > 50_000_000),
        *sorted(range(450_000, 500_000), key=lambda k: (k % 1000, k)),
    ]
    assert not queue


def test_each_key_is_moved_few_times_when_times_spread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved: list[int] = []
    make = DELAY_QUEUE_MAKE_BUCKETS.value

    def counted(self: Queue) -> None:
        moved.append(len(self))
        make(self)

    monkeypatch.setattr(*DELAY_QUEUE_MAKE_BUCKETS, counted)
    queue: Queue = DelayQueue(bucket_ms=1)
    for k in range(20_000):
        queue.add(k, k**4)
    assert moved
    assert sum(moved) <= 8 * 20_000
    assert [key for _, key, _ in queue.expire(2**62)] == list(range(20_000))
