"""Measure long polls: many pulls wait, each for its own queue, and a message wakes one of them.

There are `n` pulls from asyncio, which use no threads, or `threads` pulls from threads. Then
`messages` synchronous puts follow one after another. Each is timed until its pull returns.

Raises: WorkError if a pull gets another message, or if a message wakes another pull.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import timerstore
import timerstore.aio
from benchmarks import harness
from benchmarks.harness import Result, need, spread
from benchmarks.rounds import watched
from timerstore import PullResult, StoreConfig, TimerStore

TOPIC_QUEUES = 1000
WAIT_S = 1e6
FULL: dict[str, Any] = {"n": 10_000, "threads": 1000, "messages": 300}
SMOKE: dict[str, Any] = {"n": 50, "threads": 20, "messages": 5}


def queues(count: int) -> list[tuple[str, int]]:
    """So many queues, some topics of them."""
    return [(f"wait{k // TOPIC_QUEUES}", k % TOPIC_QUEUES) for k in range(count)]


def chosen(parameters: dict[str, Any], count: int) -> list[int]:
    """Which pulls get a message: spread over all, never one twice."""
    messages = min(parameters["messages"], count)
    return [k * count // messages for k in range(messages)]


def make_topics(store: TimerStore, count: int) -> None:
    """One queue more of each topic makes them all."""
    for topic in sorted({topic for topic, _ in queues(count)}):
        store.put(topic, b"makes the topic", queue_id=TOPIC_QUEUES)


def check(store: TimerStore, result: PullResult, body: bytes, done: int) -> None:
    """Check that the pull has its message, and that no other pull was woken."""
    need([message.body for message in result.messages] == [body], f"{body!r} is not there")
    woken = store.stats()["pull_woken"]
    need(woken == done, f"{woken} pulls woken by {done} messages")


def result_of(
    parameters: dict[str, Any], how: str, count: int, enter_s: float, close_s: float, took: Any
) -> Result:
    """One line: the rate is of beginning to wait."""
    return Result(
        f"wait_{how}",
        parameters,
        count,
        count / enter_s,
        "ms",
        spread([1000 * one for one in took]),
        "sync",
        harness.digest(f"{how} {count} {len(took)}"),
        {"enter_seconds": enter_s, "close_seconds": close_s},
    )


def from_asyncio(config: StoreConfig, parameters: dict[str, Any], root: Path) -> Result:
    """Every pull is a task."""
    return asyncio.run(_from_asyncio(root, config, parameters))


async def _from_asyncio(root: Path, config: StoreConfig, parameters: dict[str, Any]) -> Result:
    count = parameters["n"]
    took = []
    store = await timerstore.aio.open(root / "asyncio", config)
    make_topics(store.blocking, count)
    began = time.perf_counter()
    tasks = [asyncio.create_task(store.pull(*one, 0, wait=WAIT_S)) for one in queues(count)]
    while (await store.stats())["pull_waits"] < count:
        await asyncio.sleep(0)
    enter_s = time.perf_counter() - began
    for done, k in enumerate(chosen(parameters, count), 1):
        topic, queue_id = queues(count)[k]
        began = time.perf_counter()
        await store.put(topic, b"%d" % k, queue_id=queue_id)
        result = await tasks[k]
        took.append(time.perf_counter() - began)
        check(store.blocking, result, b"%d" % k, done)
    began = time.perf_counter()
    await store.close()
    await asyncio.gather(*tasks)
    close_s = time.perf_counter() - began
    return result_of(parameters, "asyncio", count, enter_s, close_s, took)


def from_threads(config: StoreConfig, parameters: dict[str, Any], root: Path) -> Result:
    """Every pull has a thread."""
    count = parameters["threads"]
    took = []
    answers: dict[int, PullResult] = {}
    store = timerstore.open(root / "threads", config)
    make_topics(store, count)

    def wait(k: int) -> None:
        answers[k] = store.pull(*queues(count)[k], 0, wait=WAIT_S)

    threads = [threading.Thread(target=wait, args=(k,)) for k in range(count)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    while store.stats()["pull_waits"] < count:
        time.sleep(0.001)
    enter_s = time.perf_counter() - began
    for done, k in enumerate(chosen(parameters, count), 1):
        topic, queue_id = queues(count)[k]
        began = time.perf_counter()
        store.put(topic, b"%d" % k, queue_id=queue_id)
        threads[k].join()
        took.append(time.perf_counter() - began)
        check(store, answers[k], b"%d" % k, done)
    began = time.perf_counter()
    store.close()
    for thread in threads:
        thread.join()
    close_s = time.perf_counter() - began
    return result_of(parameters, "threads", count, enter_s, close_s, took)


def run(parameters: dict[str, Any], smoke: bool, directory: Path | None) -> Iterator[Result]:
    """A line for asyncio, one for threads."""
    make = harness.small_config if smoke else partial(StoreConfig, queue_segment_bytes=20_000)
    for measure in (from_asyncio, from_threads):
        job = partial(measure, make(flush="sync"), parameters)
        yield watched(job, 0, smoke=smoke, directory=directory)


def main(argv: list[str] | None = None) -> int:
    """Print the lines."""
    return harness.main_of(__doc__, FULL, SMOKE, run, argv)


if __name__ == "__main__":
    sys.exit(main())
