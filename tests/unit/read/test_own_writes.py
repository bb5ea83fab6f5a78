"""A read finds every earlier put: it dispatches visible records that are not in their queues."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerstore.aio
from tests.support.amounts import both
from tests.support.bench import NOW, Bench, small
from tests.support.inside import flush_is_requested, forget_flush_request, inside
from tests.support.shards import ShardBench
from timerstore import FullError, Message, PullStatus, TimerStore
from timerstore._engine.base import failpoints

Read = Callable[[TimerStore], list[bytes]]
BATCH = 16_384  # records that dispatch handles at a time
LIVE_CONFIG = small(flush="sync")  # segments are small: the reads cross the end of many


def _bodies(messages: Any) -> list[bytes]:
    return [one.body for one in messages]


def _answer(begun: Any) -> Any:
    """Return the answer of a begun call after one look."""
    answer = begun.answer(begun.look())
    assert answer is not None
    begun.end()
    return answer


def _by_consumer(store: TimerStore) -> list[bytes]:
    with store.consumer("t", "g") as consumer:
        return _bodies(consumer.poll(8))


def _by_begun_poll(store: TimerStore) -> list[bytes]:
    with store.consumer("t", "g") as consumer:
        return _bodies(_answer(consumer.begin_poll(8)))


def _by_iteration(store: TimerStore) -> list[bytes]:
    with store.consumer("t", "g", wait=0) as consumer:
        return _bodies(consumer)


def _by_begun_receive(store: TimerStore) -> list[bytes]:
    return _bodies(_answer(store.begin_receive("t", "g", max_count=8)))


READS: dict[str, Read] = {
    "pull": lambda store: _bodies(store.pull("t", 0, 0).messages),
    "pull_batch": lambda store: store.pull_batch("t", 0, 0).body_list(),
    "begin_pull": lambda store: _bodies(store.begin_pull("t", 0, 0).look().messages),
    "begin_pull_batch": lambda store: store.begin_pull_batch("t", 0, 0).look().body_list(),
    "poll": _by_consumer,
    "begin_poll": _by_begun_poll,
    "iteration": _by_iteration,
    "receive": lambda store: _bodies(store.receive("t", "g", max_count=8)),
    "begin_receive": _by_begun_receive,
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize(
    "setting", [{"flush": "sync"}, {"visibility": "written"}], ids=["sync", "written"]
)
def test_read_finds_earlier_puts_before_dispatch_ran(
    tmp_path: Path, name: str, setting: dict[str, Any]
) -> None:
    bench = Bench(tmp_path / "s", small(**setting))
    bench.store.put("t", b"one")
    bench.store.put_many("t", [b"two", b"three"])
    assert READS[name](bench.store) == [b"one", b"two", b"three"]
    bench.close()


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_message_is_found_at_the_offset_of_its_receipt(tmp_path: Path, offset: int) -> None:
    bench = Bench(tmp_path / "s", small(flush="sync"))
    receipts = [bench.store.put("t", b"%d" % k) for k in range(3)]
    found = bench.store.pull("t", 0, receipts[offset].queue_offset)
    assert _bodies(found.messages) == [b"%d" % k for k in range(offset, 3)]
    bench.close()


def test_shards_find_earlier_puts(tmp_path: Path) -> None:
    bench = ShardBench(tmp_path / "s", 3, small(flush="sync"))
    for k in range(9):
        bench.store.put("t", b"%d" % k, keys=f"k{k}")
    with bench.store.consumer("t", "g") as consumer:
        assert sorted(_bodies(consumer.poll(16))) == [b"%d" % k for k in range(9)]
    assert len(bench.store.receive("t", "h", max_count=16)) == 9
    bench.close()


def test_read_dispatches_at_most_one_batch(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(flush="sync", commit_log_segment_bytes=8 << 20))
    bench.store.put_many("other", [b"x"] * (BATCH + 10))
    bench.store.put("t", b"last")
    assert bench.store.pull("t", 0, 0).status is PullStatus.NO_MESSAGE_IN_QUEUE
    assert len(bench.store.pull_batch("other", 0, 0, max_count=BATCH + 10)) == BATCH
    assert _bodies(bench.store.pull("t", 0, 0).messages) == [b"last"]
    bench.close()


def test_read_goes_on_into_the_next_segments(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(flush="sync", commit_log_segment_bytes=1 << 20))
    for _ in range(8):  # a segment holds three
        bench.store.put("other", b"x" * 300_000)
    bench.store.put("t", b"last")
    assert inside(bench.store).log.end > 2 << 20  # in the third segment
    assert _bodies(bench.store.pull("t", 0, 0).messages) == [b"last"]
    bench.close()


def test_read_dispatches_nothing_if_it_finds_a_message(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(flush="sync"))
    bench.store.put("t", b"one")
    bench.turn()
    bench.store.put("t", b"two")
    dispatched = inside(bench.store).dispatch.dispatched
    assert _bodies(bench.store.pull("t", 0, 0).messages) == [b"one"]
    assert inside(bench.store).dispatch.dispatched == dispatched
    bench.close()


def test_message_that_is_not_durable_is_not_found(bench: Bench) -> None:
    bench.store.put("t", b"one")
    assert bench.out() == []
    bench.turn()
    assert _bodies(bench.out()) == [b"one"]


def test_full_disk_does_not_fail_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path / "s", small(flush="sync"))
    bench.store.put("t", b"one")

    def full(name: str) -> None:
        if name == "dispatch_queues_written":
            raise FullError("no space left", where="here")

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", full)
        bench.store.pull("t", 0, 0)
    bench.turn()
    assert _bodies(bench.out()) == [b"one"]
    bench.close()


def test_empty_reads_request_one_sync_in_ten_ms(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(flush="async"))
    flush = inside(bench.store).pipeline.flush

    def is_requested() -> bool:
        forget_flush_request(flush)
        bench.store.pull("t", 0, 0)
        return flush_is_requested(flush)

    bench.store.put("t", b"one")
    assert [is_requested() for _ in range(3)] == [True, False, False]
    bench.clock.set(NOW + 10)
    assert [is_requested() for _ in range(2)] == [True, False]
    bench.turn()
    assert _bodies(bench.out()) == [b"one"]
    bench.close()


def _received(store: TimerStore, _at: int) -> list[Message]:
    found = store.receive("t", "g", max_count=1)
    store.ack_many(found)
    return list(found)


LIVE: dict[str, Callable[[TimerStore, int], list[Message]]] = {
    "pull": lambda store, at: list(store.pull("t", 0, at, max_count=1).messages),
    "receive": _received,
}


@pytest.mark.parametrize("name", LIVE)
@pytest.mark.parametrize("count", both("puts that are read at once"))
def test_running_store_shows_each_put_at_once(tmp_path: Path, count: int, name: str) -> None:
    missed = []
    with timerstore.open(tmp_path / "s", LIVE_CONFIG) as store:
        for k in range(count):
            store.put("t", b"%d" % k)
            if _bodies(LIVE[name](store, k)) != [b"%d" % k]:
                missed.append(k)
    assert missed == []


@pytest.mark.parametrize("count", both("puts that are read at once"))
def test_running_consumer_and_asyncio_show_each_put_at_once(tmp_path: Path, count: int) -> None:
    missed = []

    async def run() -> None:
        async with (
            await timerstore.aio.open(tmp_path / "s", LIVE_CONFIG) as store,
            await store.consumer("t", "g") as consumer,
        ):
            for k in range(count):
                await store.put("t", b"%d" % k)
                pulled = await store.pull("t", 0, k, max_count=1)
                polled = await consumer.poll(1)
                if not _bodies(pulled.messages) == _bodies(polled) == [b"%d" % k]:
                    missed.append(k)

    asyncio.run(run())
    assert missed == []


@pytest.mark.parametrize("time_ms", [NOW + 1, 2**53])
def test_seek_past_all_messages_skips_every_earlier_put(tmp_path: Path, time_ms: int) -> None:
    bench = Bench(tmp_path / "s", small(flush="sync"))
    bench.store.put("t", b"one")
    with bench.store.consumer("t", "g") as consumer:
        assert consumer.seek(time_ms=time_ms) == {0: 1}
        assert consumer.poll() == []
    bench.close()
