"""What the loop of a server does itself: puts without a task, quick syncs and leases."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.support.bench import Bench, small
from tests.support.inside import inside
from tests.support.served_bench import ServedBench
from timerstore import AckResult
from timerstore.aio import quick_work
from timerstore.errors import FailedError, MessageError
from timerstore.net.server_limits import ServerLimits

PATIENCE_S = 30.0
LOOP, POOL, SYNC = "timerstore-net", "timerstore-net_", "timerstore-aio-sync"
"""How the names of threads begin."""


class HeldSync:
    """Replaces the sync of the log: it waits until it is released, or fails."""

    def __init__(self, served: ServedBench) -> None:
        self._segments = inside(served.bench.store).log.segments
        self._sync: Callable[[], None] = self._segments.sync
        self.threads: list[str] = []  # that synced
        self.is_reached, self.is_released = threading.Event(), threading.Event()
        self.error: FailedError | None = None
        self._segments.sync = self._held

    def _held(self) -> None:
        self.threads.append(threading.current_thread().name)
        self.is_reached.set()
        assert self.is_released.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        self._sync()


@pytest.fixture(params=["quick", "slow"])
def synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[ServedBench]:
    """A server of a store that syncs each put, and whose topic exists.

    quick: each sync seems to take no time. slow: a second, so that a thread makes the next one.
    """
    step_s = 0 if request.param == "quick" else 1
    monkeypatch.setattr(quick_work, "perf_counter", partial(next, count(0, step_s)))
    one = ServedBench(Bench(tmp_path / "store", small(flush="sync")), tmp_path / "x.sock")
    one.connect().put("t", b"first", message_id="first")
    yield one
    one.close()


def _is_quick(request: pytest.FixtureRequest) -> bool:
    return request.node.callspec.params["synced"] == "quick"  # type: ignore[no-any-return]


def _running(served: ServedBench) -> int:
    return served.server.stats()["net_running_requests"]


def _waiting(served: ServedBench) -> int:
    return served.server.stats()["net_waiting_requests"]


def test_puts_in_one_packet_share_a_sync(
    synced: ServedBench, request: pytest.FixtureRequest
) -> None:
    raw = synced.raw()
    raw.hello()
    held = HeldSync(synced)
    held.is_released.set()
    raw.send_all([2, k, "put", ["t", b"x"], {"message_id": f"m{k}"}] for k in range(1, 101))
    assert [raw.reply()[:2] for _ in range(100)] == [[5, k] for k in range(1, 101)]
    (name,) = held.threads
    assert name == LOOP if _is_quick(request) else name.startswith(SYNC)


def test_leases_are_made_by_the_loop_if_that_is_quick(
    synced: ServedBench, request: pytest.FixtureRequest
) -> None:
    remote = synced.connect()
    remote.ack_many(remote.receive("t", "g"))  # makes the group and its queues
    remote.put("t", b"x")
    held = HeldSync(synced)
    held.is_released.set()
    found = remote.receive("t", "g")
    assert [one.body for one in found] == [b"x"]
    assert remote.ack_many(found) == [AckResult.ACKED]
    assert len(held.threads) == 2
    for name in held.threads:
        assert name == LOOP if _is_quick(request) else name.startswith(POOL)


def test_failed_sync_raises_in_the_client(synced: ServedBench) -> None:
    remote = synced.connect()
    held = HeldSync(synced)
    held.error = FailedError("no such luck", where=synced.bench.root)
    held.is_released.set()
    with pytest.raises(FailedError, match="no such luck"):
        remote.put("t", b"x")
    assert _running(synced) == 0


@pytest.mark.parametrize("synced", ["slow"], indirect=True)
def test_put_that_waits_for_its_sync_is_answered_before_the_server_ends(
    synced: ServedBench,
) -> None:
    remote = synced.connect()
    raw = synced.raw()
    raw.hello()
    raw.send([2, 1, "receive", ["other", "g"], {"wait": 60.0}])
    while not _waiting(synced):
        pass
    held = HeldSync(synced)
    with ThreadPoolExecutor(2) as pool:
        putting = pool.submit(remote.put, "t", b"x")
        assert held.is_reached.wait(PATIENCE_S)
        closing = pool.submit(synced.server.close)
        while _waiting(synced):  # the end of the server ends it
            pass
        held.is_released.set()
        assert putting.result(PATIENCE_S).message_id
        closing.result(PATIENCE_S)


def test_put_of_a_closed_connection_is_stored(synced: ServedBench) -> None:
    raw = synced.raw()
    raw.hello()
    held = HeldSync(synced)
    raw.send([2, 1, "put", ["t", b"not answered"], {"message_id": "m"}])
    assert held.is_reached.wait(PATIENCE_S)
    raw.close()
    held.is_released.set()
    while _running(synced):
        pass
    synced.bench.turn()
    assert synced.bench.bodies("t") == [b"first", b"not answered"]


@pytest.mark.parametrize("synced", ["slow"], indirect=True)
def test_slow_sync_does_not_block_other_calls(synced: ServedBench) -> None:
    remote = synced.connect()
    held = HeldSync(synced)
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(remote.put, "t", b"x")
        assert held.is_reached.wait(PATIENCE_S)
        assert "t" in synced.connect().topics()
        assert not putting.done()
        held.is_released.set()
        putting.result(PATIENCE_S)


def test_running_puts_count_for_the_limit_of_calls(tmp_path: Path) -> None:
    limits = ServerLimits(in_flight_max=3)
    bench = Bench(tmp_path / "store", small(flush="sync"))
    served = ServedBench(bench, tmp_path / "x.sock", limits=limits)
    served.connect().put("t", b"first", message_id="first")
    raw = served.raw()
    raw.hello()
    held = HeldSync(served)
    raw.send_all([2, k, "put", ["t", b"%d" % k], {"message_id": f"m{k}"}] for k in range(1, 11))
    assert held.is_reached.wait(PATIENCE_S)
    assert _running(served) == 3
    held.is_released.set()
    assert [raw.reply()[1] for _ in range(10)] == list(range(1, 11))
    served.close()


def test_receipt_longer_than_a_frame_is_an_error(tmp_path: Path) -> None:
    limits = ServerLimits(frame_bytes_max=90)
    served = ServedBench(Bench(tmp_path / "store"), tmp_path / "x.sock", limits=limits)
    remote = served.connect(retry_for=0)
    with pytest.raises(MessageError, match="longer than a frame, which has at most 90 bytes"):
        remote.put("t" * 50, b"x")  # the topic is made by a task
    with pytest.raises(MessageError, match="longer than a frame, which has at most 90 bytes"):
        remote.put("t" * 50, b"x")
    assert _running(served) == 0
    served.close()
