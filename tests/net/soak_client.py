"""Some clients in one process: put, receive, acknowledge, wait. Ends when killed.

Every second one is on a thread. The others are tasks of asyncio that cancel waiting calls.

python -m tests.net.soak_client URL COUNT
"""

import asyncio
import contextlib
import sys
import threading
from typing import Any

import timerstore
import timerstore.aio


def _work(url: str, number: int) -> None:
    store = timerstore.connect(url, return_leases=True, retry_for=120)
    topic = f"t{number % 4}"
    consumer = store.consumer(topic, f"reader-{number}")
    while True:
        store.put(topic, b"x" * 500, delay=0.05)
        store.receive(topic, "leased", lease=3600, wait=0.2)  # every second one is not settled
        for message in store.receive(topic, "leased", lease=3600, wait=0.2):
            store.ack(message)
        consumer.poll(8)
        next(store.pending(), None)


async def _work_async(url: str, number: int) -> None:
    store: Any
    async with timerstore.aio.connect(url, return_leases=True, retry_for=120) as store:
        topic = f"t{number % 4}"
        consumer = await store.consumer(topic, f"reader-{number}")
        while True:
            await store.put(topic, b"x" * 500, delay=0.05)
            for call in (
                store.receive(topic, "leased", lease=3600, wait=1),
                consumer.poll(8, wait=1),
            ):
                with contextlib.suppress(TimeoutError):  # cancels the call
                    await asyncio.wait_for(call, 0.1)
            for message in await store.receive(topic, "leased", lease=3600, wait=0.2):
                await store.ack(message)
            await consumer.poll(8)
            async for _ in store.pending():
                break


async def _all_async(url: str, numbers: range) -> None:
    await asyncio.gather(*(_work_async(url, k) for k in numbers))


def main(url: str, count: str) -> None:
    for k in range(0, int(count), 2):
        threading.Thread(target=_work, args=(url, k)).start()
    asyncio.run(_all_async(url, range(1, int(count), 2)))


if __name__ == "__main__":
    main(*sys.argv[1:])
