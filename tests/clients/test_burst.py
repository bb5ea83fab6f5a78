"""A burst of messages due in one second, and push consumers of all clients that share a group."""

import queue
import time
from collections.abc import Iterator

import pytest

import timerstore
from tests.clients.client_driver import ClientDriver
from tests.clients.conftest import need_fetched
from tests.clients.served_store import ServedStore

pytestmark = [pytest.mark.more, pytest.mark.timeout(900)]

CONSUMERS = ("java-5.2.0", "java-5.0.7", "python", "node")
COUNT = 100_000
SPREAD_MS = 1000
START_MS = 40_000
"""For the start of the server and of the clients."""


def taken(driver: ClientDriver) -> Iterator[dict[str, str]]:
    """Yield the messages that a driver has got since the last call."""
    while True:
        try:
            yield driver.pushed.get_nowait()
        except queue.Empty:
            return


def test_burst_reaches_push_consumers_once(served: ServedStore) -> None:
    for name in CONSUMERS:
        need_fetched(name)
    served.stop()
    due_ms = int(time.time() * 1000) + START_MS
    with timerstore.open(served.path) as store:
        for begin in range(0, COUNT, 10_000):
            numbers = range(begin, begin + 10_000)
            store.put_many("t", [b"%d" % k for k in numbers],
                           message_ids=[f"m{k}" for k in numbers],
                           deliver_ms=[due_ms + k % SPREAD_MS for k in numbers])  # fmt: skip
    served.start()
    drivers = [ClientDriver(name, served.address) for name in CONSUMERS]
    try:
        for one in drivers:
            one.call("push", topic="t", group="g")
        assert time.time() * 1000 < due_ms, "the consumers were not there in time"
        counts, early = [0] * COUNT, []
        missing, end = COUNT, time.monotonic() + 600
        while missing:
            assert time.monotonic() < end, missing
            found = [message for one in drivers for message in taken(one)]
            if not found:
                time.sleep(0.01)
            for message in found:
                number = int(message["body"])
                missing -= not counts[number]
                counts[number] += 1
                if int(message["at_ms"]) < due_ms + number % SPREAD_MS - 2:
                    early.append(number)
        for one in drivers:
            one.close()
            for message in taken(one):
                counts[int(message["body"])] += 1
    finally:
        for one in drivers:
            one.kill()
    assert not early
    assert [number for number, count in enumerate(counts) if count != 1] == []
    served.stop()
    with timerstore.open(served.path) as store:
        backlog = store.backlog("t", "g")
    assert (backlog.ready, backlog.leased, backlog.in_backoff) == (0, 0, 0), "all are acknowledged"
