"""The receipt of a put never changes, however many puts follow.

The C putter reuses a receipt for its next result only if nothing refers to it any more.
"""

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import small
from tests.support.inside import inside
from tests.support.switching import many_switches
from timerstore import PutReceipt, TimerStore
from timerstore.errors import MessageError

DUE_MS = 4_102_444_800_000  # 2100
THREADS, EACH = 4, 500


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(
        tmp_path / "store",
        small(delay_ms_max=31_557_600_000_000, staging_bytes=1 << 20),
        threads=False,
    ) as made:
        made.put("t", b"first")
        assert made.put.__self__ is inside(made).putter  # type: ignore[attr-defined]
        yield made


def test_kept_receipt_never_changes(store: TimerStore) -> None:
    kept = [store.put("t", b"x", deliver_ms=DUE_MS + n) for n in range(50)]
    said = [(tuple(one), one.handle, one.message_id) for one in kept]
    for n in range(50):
        store.put("t", b"y")
        store.put("t", b"z", deliver_ms=DUE_MS + 1000 + n)
    assert [(tuple(one), one.handle, one.message_id) for one in kept] == said
    assert len({id(one) for one in kept}) == len({one.counter for one in kept}) == 50
    assert [one.due_ms for one in kept] == [DUE_MS + n for n in range(50)]


def test_unreferenced_receipt_is_reused(store: TimerStore) -> None:
    """Else the test above would hold of a way in that never does this."""
    for n in range(3):
        mine = store.put("t", b"x", deliver_ms=DUE_MS + n)
        mine_id = id(mine)
        assert any(one is mine for one in gc.get_referents(inside(store).putter)), "it has it, too"
        del mine
        again = store.put("t", b"x", deliver_ms=DUE_MS + 10 + n)
        assert id(again) == mine_id
        assert type(again) is PutReceipt
        assert again.due_ms == DUE_MS + 10 + n
        del again


def test_hashed_receipt_is_not_reused(store: TimerStore) -> None:
    for n in range(3):
        mine = store.put("t", b"x", deliver_ms=DUE_MS + n)
        assert hash(mine) == hash(tuple(mine))


def test_receipts_of_concurrent_sync_puts_differ(tmp_path: Path) -> None:
    """Others put while one waits."""
    with timerstore.open(tmp_path / "synced", small(flush="sync"), threads=False) as synced:
        synced.put("t", b"first")
        found: list[list[tuple[object, ...]]] = [[] for _ in range(THREADS)]

        def call(caller: int) -> None:
            for _ in range(50):
                found[caller].append(tuple(synced.put("t", b"x", delay=3600)))

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(call, range(THREADS)))
        counters = {one[1] for part in found for one in part}
        assert len(counters) == THREADS * 50


def test_put_during_the_creation_of_a_receipt(store: TimerStore) -> None:
    """A garbage collection during the creation of a receipt may put messages itself."""
    inner: list[PutReceipt] = []

    def put(phase: str, _info: dict[str, int]) -> None:
        if phase == "start" and len(inner) < 20:
            inner.append(store.put("t", b"inner", deliver_ms=DUE_MS + 1))

    kept, before = [], gc.get_threshold()
    gc.callbacks.append(put)
    gc.set_threshold(5)
    try:
        for _ in range(50):
            kept.append(store.put("t", b"outer", deliver_ms=DUE_MS))  # noqa: PERF401 - one each
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(put)
    assert len(inner) > 3
    assert {one.due_ms for one in kept} == {DUE_MS}
    assert {one.due_ms for one in inner} == {DUE_MS + 1}
    assert len({one.counter for one in [*kept, *inner]}) == len(kept) + len(inner)


def test_receipts_of_alternating_immediate_and_delayed_puts(store: TimerStore) -> None:
    """All of its nine values are those of the put that it answers."""
    for n in range(10):
        now = tuple(store.put("t", b"x"))
        later = tuple(store.put("t", b"x", deliver_ms=DUE_MS + n))
        assert (now[2], now[4]) == (-1, n + 1)
        assert (later[2] >= 0, later[4], later[6]) == (True, None, DUE_MS + n)
        assert now[7:] == later[7:] == (False, False)


def test_receipt_found_through_the_garbage_collector_never_changes(store: TimerStore) -> None:
    store.put("t", b"x", deliver_ms=DUE_MS)
    mine = [one for one in gc.get_objects() if type(one) is PutReceipt and one.due_ms == DUE_MS]
    said = [tuple(one) for one in mine]
    assert mine
    store.put("t", b"x", deliver_ms=DUE_MS + 1)
    assert [tuple(one) for one in mine] == said


def test_reused_receipt_releases_its_old_fields(store: TimerStore) -> None:
    """What every receipt has in common is counted as often as before."""
    origin = store.put("t", b"x", deliver_ms=DUE_MS).origin
    store.put("t", b"x", deliver_ms=DUE_MS)
    before = sys.getrefcount(origin), sys.getrefcount(None), sys.getrefcount(DUE_MS)
    for _ in range(1000):
        store.put("t", b"x", deliver_ms=DUE_MS)
        store.put("t", b"x")
    after = sys.getrefcount(origin), sys.getrefcount(None), sys.getrefcount(DUE_MS)
    assert all(abs(a - b) < 100 for a, b in zip(after, before, strict=True))


def test_rejected_put_leaks_no_receipt(store: TimerStore) -> None:
    kept = store.put("t", b"x", deliver_ms=DUE_MS)
    said = tuple(kept)
    with pytest.raises(MessageError):
        store.put("t", b"x", deliver_ms="soon")  # type: ignore[arg-type]
    assert tuple(store.put("t", b"x", deliver_ms=DUE_MS + 1))[6] == DUE_MS + 1
    assert tuple(kept) == said


def test_threads_reuse_separate_receipts(store: TimerStore) -> None:
    found: list[list[PutReceipt]] = [[] for _ in range(THREADS)]

    def call(caller: int) -> None:
        for n in range(EACH):
            one = store.put("t", b"x", deliver_ms=DUE_MS + caller * EACH + n)
            assert one.due_ms == DUE_MS + caller * EACH + n
            if n % 2:
                found[caller].append(one)

    with many_switches(), ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(call, range(THREADS)))
    kept = [one for part in found for one in part]
    assert len({one.counter for one in kept}) == len({id(one) for one in kept}) == len(kept)
    assert len(kept) == THREADS * EACH // 2
