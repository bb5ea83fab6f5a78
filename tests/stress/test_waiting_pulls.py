"""Run many long polls in real threads and real time: 10,000 of asyncio, 1,000 of threads."""

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import timerstore
import timerstore.aio
from tests.support.bench import small
from tests.support.inside import inside, wait_queue_of, waiters_of
from timerstore import PullResult, StoreConfig, TimerStore

pytestmark = [pytest.mark.more, pytest.mark.timeout(300)]

WAIT_S = 1e6  # a waiter that misses a message sleeps until the end of the test


def config(flush: str) -> StoreConfig:
    return small(flush=flush, commit_log_segment_bytes=16 << 20)


@pytest.fixture(params=["sync", "async"])
def flush(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _services(folder: Path) -> int:
    """Return the number of services of a store, counted in one without threads."""
    with timerstore.open(folder.with_name("another"), config("async"), threads=False) as store:
        return len(store.services())


def holds(store: TimerStore) -> int:
    return inside(store).long_polls.count


def woken(store: TimerStore) -> int:
    return int(store.stats()["pull_woken"])


def test_ten_thousand_long_polls_from_asyncio(tmp_path: Path, flush: str) -> None:
    queue_count, per_queue = 1000, 10

    async def main() -> None:
        store = await timerstore.aio.open(tmp_path, config(flush))
        await store.put("t", b"makes the topic", queue_id=queue_count)
        tasks = {
            queue_id: [
                asyncio.create_task(store.pull("t", queue_id, 0, wait=WAIT_S))
                for _ in range(per_queue)
            ]
            for queue_id in range(queue_count)
        }
        await asyncio.sleep(0)
        assert holds(store.blocking) == queue_count * per_queue
        threads = [one for one in threading.enumerate() if one.name.startswith("timerstore")]
        assert len(threads) <= _services(tmp_path) + 4, "the services and the pool"
        random.seed(4)
        chosen = random.sample(range(queue_count), 100)
        for expected, queue_id in enumerate(chosen, 1):
            await store.put("t", b"%d" % queue_id, queue_id=queue_id)
            for task in tasks[queue_id]:
                result = await task
                assert [message.body for message in result.messages] == [b"%d" % queue_id]
            assert woken(store.blocking) == expected * per_queue
        assert holds(store.blocking) == (queue_count - len(chosen)) * per_queue
        began = time.monotonic()
        await store.close()
        for queue_id in set(tasks) - set(chosen):
            for task in tasks[queue_id]:
                assert (await task).messages == ()
        assert time.monotonic() - began < 30

    asyncio.run(main())


def test_thousand_long_polls_from_threads_with_one_wake_up_per_message(
    tmp_path: Path, flush: str
) -> None:
    count = 1000
    store = timerstore.open(tmp_path, config(flush))
    store.put("t", b"makes the topic", queue_id=count)
    found: dict[int, PullResult] = {}

    def wait(queue_id: int) -> None:
        found[queue_id] = store.pull("t", queue_id, 0, wait=WAIT_S)

    threads = [threading.Thread(target=wait, args=(queue_id,)) for queue_id in range(count)]
    for thread in threads:
        thread.start()
    while holds(store) < count:
        time.sleep(0.01)
    random.seed(4)
    order = random.sample(range(count), 200)
    for expected, queue_id in enumerate(order, 1):
        store.put("t", b"%d" % queue_id, queue_id=queue_id)
        threads[queue_id].join()
        assert [message.body for message in found[queue_id].messages] == [b"%d" % queue_id]
        assert (woken(store), len(found)) == (expected, expected)
    store.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "close did not answer it"
    assert len(found) == count


def test_thousand_consumers_from_threads_with_one_wake_up_per_message(
    tmp_path: Path, flush: str
) -> None:
    """All consumers are of one group, with a queue each."""
    count = 1000
    store = timerstore.open(tmp_path, config(flush))
    store.put("t", b"makes the topic", queue_id=count)
    found: dict[int, list[bytes]] = {}

    def wait(queue_id: int) -> None:
        with store.consumer("t", "g", queues=[queue_id]) as consumer:
            found[queue_id] = [message.body for message in consumer.poll(wait=WAIT_S)]
            if found[queue_id]:
                consumer.commit()

    threads = [threading.Thread(target=wait, args=(queue_id,)) for queue_id in range(count)]
    for thread in threads:
        thread.start()
    while holds(store) < count:
        time.sleep(0.01)
    before = woken(store)
    random.seed(4)
    order = random.sample(range(count), 100)
    for expected, queue_id in enumerate(order, 1):
        store.put("t", b"%d" % queue_id, queue_id=queue_id)
        threads[queue_id].join()
        assert found[queue_id] == [b"%d" % queue_id]
        assert (woken(store) - before, len(found)) == (expected, expected)
    assert store.committed("t", "g") == dict.fromkeys(order, 1)
    store.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "close did not answer it"


def test_thousand_threads_at_one_consumer_with_one_wake_up_per_message(
    tmp_path: Path, flush: str
) -> None:
    count = 1000
    store = timerstore.open(tmp_path, config(flush))
    consumer = store.consumer("t", "g")
    found: list[bytes] = []

    def wait() -> None:
        found.extend(message.body for message in consumer.poll(1, wait=WAIT_S))

    threads = [threading.Thread(target=wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    while len(waiters_of(wait_queue_of(consumer))) < count:
        time.sleep(0.01)
    for number in range(100):
        store.put("t", b"%d" % number, queue_id=number % 3)
        while len(found) == number:
            time.sleep(0.001)
    assert found == [b"%d" % number for number in range(100)]
    assert woken(store) <= 100 + 3, "the messages, and the queues that came"
    store.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "close did not answer it"


def test_ten_thousand_consumers_from_asyncio(tmp_path: Path) -> None:
    group_count, per_group = 100, 100

    async def main() -> None:
        store = await timerstore.aio.open(tmp_path, config("async"))
        await store.put("t", b"makes the topic", queue_id=per_group)
        consumers = [
            await store.consumer("t", f"g{group}", queues=[queue_id])
            for group in range(group_count)
            for queue_id in range(per_group)
        ]
        tasks = [asyncio.create_task(one.poll(wait=WAIT_S)) for one in consumers]
        while holds(store.blocking) < len(consumers):
            await asyncio.sleep(0.01)
        threads = [one for one in threading.enumerate() if one.name.startswith("timerstore")]
        assert len(threads) <= _services(tmp_path) + 4, "the services and the pool"
        before = woken(store.blocking)
        for expected, queue_id in enumerate((7, 99, 0), 1):
            await store.put("t", b"x", queue_id=queue_id)
            for task in tasks[queue_id::per_group]:
                assert [message.body for message in await task] == [b"x"]
            assert woken(store.blocking) - before == expected * group_count
        await store.close()
        for task in tasks:
            assert task.done() or await task == []

    asyncio.run(main())


COUNT = 3000


def produce(store: TimerStore, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(COUNT):
        delay = 0.001 * chance.randrange(4) if chance.random() < 0.1 else None
        store.put("t", b"%d" % number, queue_id=number % 3, delay=delay)
        if chance.random() < 0.05:
            time.sleep(0.001)


def expected() -> list[set[bytes]]:
    return [{b"%d" % number for number in range(queue, COUNT, 3)} for queue in range(3)]


@pytest.fixture(params=["durable", "written"])
def racing(tmp_path: Path, flush: str, request: pytest.FixtureRequest) -> Iterator[TimerStore]:
    store = timerstore.open(
        tmp_path,
        small(flush=flush, visibility=request.param, commit_log_segment_bytes=16 << 20),
    )
    store.put("t", b"makes the topic", queue_id=3)
    yield store
    store.close()


def test_readers_at_the_end_of_a_queue_miss_no_message_from_threads(racing: TimerStore) -> None:
    seen: list[list[bytes]] = [[] for _ in range(3)]

    def consume(queue_id: int) -> None:
        offset = 0
        while len(seen[queue_id]) < COUNT // 3:
            result = racing.pull("t", queue_id, offset, wait=WAIT_S)
            seen[queue_id] += [message.body for message in result.messages]
            offset = result.next_offset

    threads = [threading.Thread(target=consume, args=(queue_id,)) for queue_id in range(3)]
    threads.append(threading.Thread(target=produce, args=(racing, 1)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
        assert not thread.is_alive(), "somebody sleeps past a message"
    assert [set(bodies) for bodies in seen] == expected()


def test_readers_at_the_end_of_a_queue_miss_no_message_from_asyncio(racing: TimerStore) -> None:
    from concurrent.futures import ThreadPoolExecutor

    async def consume(store: timerstore.aio.AsyncTimerStore, queue_id: int) -> set[bytes]:
        chance, offset, seen = random.Random(queue_id), 0, list[bytes]()
        while len(seen) < COUNT // 3:
            pull = store.pull("t", queue_id, offset, wait=WAIT_S)
            if chance.random() < 0.2:  # cancelled in the middle, and called again
                task = asyncio.create_task(pull)
                await asyncio.sleep(0.0002 * chance.random())
                if task.cancel():
                    await asyncio.gather(task, return_exceptions=True)
                    continue
                result = await task
            else:
                result = await pull
            seen += [message.body for message in result.messages]
            offset = result.next_offset
        return set(seen)

    async def main() -> None:
        pool = ThreadPoolExecutor(4)
        store = timerstore.aio.AsyncTimerStore(racing, pool)
        producing = asyncio.create_task(asyncio.to_thread(produce, racing, 2))
        found = await asyncio.gather(*(consume(store, queue_id) for queue_id in range(3)))
        await producing
        assert found == expected()
        assert holds(racing) == 0
        pool.shutdown()

    asyncio.run(main())
