"""A call whose answer an event loop of others waits for: a descriptor in place of a thread."""

import contextlib
import gc
import os
import select
import threading
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.net
from tests.support.certificates import TOKEN
from tests.support.consuming import Running, until
from tests.support.served_bench import ServedBench
from tests.unit.net.test_tls import Tls
from timerstore import (
    AckResult,
    ClosedError,
    ConfigError,
    ConnectionLostError,
    ForkedError,
    UnavailableError,
)
from timerstore.net.remote_store import RemoteStore

_PATIENCE_MS = 20_000


def _answer(wait: Any) -> Any:
    """Wait for the descriptor, as an event loop does, until the answer is there."""
    poll = select.poll()
    poll.register(wait.fileno(), select.POLLIN)
    while True:
        assert poll.poll(_PATIENCE_MS), "the descriptor does not become readable"
        if (found := wait.take()) is not None:
            return found


def _is_readable(wait: Any) -> bool:
    poll = select.poll()
    poll.register(wait.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def test_receive_answers_on_a_descriptor_without_a_thread(
    served: ServedBench, remote: RemoteStore
) -> None:
    before = set(threading.enumerate())
    wait = remote.begin_receive(["t", "u"], "g", wait=60, max_count=2)
    assert wait.take() is None
    assert not _is_readable(wait)
    new = [one.name for one in set(threading.enumerate()) - before]
    assert [name for name in new if not name.startswith(("timerstore-net", "timerstore-aio"))] == []
    served.bench.store.put_many("u", [b"1", b"2", b"3"])
    served.bench.turn()
    found = _answer(wait)
    assert [one.body for one in found] == [b"1", b"2"]
    assert wait.take() is None  # each answer is taken once
    assert remote.ack_many(found) == [AckResult.ACKED] * 2


def test_pull_answers_on_a_descriptor(served: ServedBench, remote: RemoteStore) -> None:
    remote.put("t", b"first")
    served.bench.turn()
    wait = remote.begin_pull("t", 0, 1, wait=60, tags="a")
    assert wait.take() is None
    served.bench.store.put("t", b"no", tags="b")
    served.bench.store.put("t", b"yes", tags="a")
    served.bench.turn()
    assert [one.body for one in _answer(wait).messages] == [b"yes"]


def test_answer_that_another_call_reads_is_signalled(
    served: ServedBench, remote: RemoteStore
) -> None:
    wait = remote.begin_receive("t", "g", wait=60)
    served.bench.store.put("t", b"x")
    served.bench.turn()
    while not _is_readable(wait):
        pass
    remote.topics()  # reads the answer of the other call, too
    assert [one.body for one in _answer(wait)] == [b"x"]


def test_take_does_not_wait_when_the_answer_of_another_call_has_come(
    served: ServedBench, remote: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    without, answered = (remote.begin_receive(topic, "g", wait=60) for topic in ("t", "u"))
    served.bench.store.put("u", b"x")
    served.bench.turn()
    while not _is_readable(answered):
        pass
    stream, had_bytes = remote._connector.channel()._stream, []
    receive = stream.receive

    def recorded(chunks: list[bytes], left_s: float) -> bool:
        had_bytes.append(stream.has_bytes())
        return receive(chunks, left_s)

    monkeypatch.setattr(stream, "receive", recorded)
    assert without.take() is None
    assert [one.body for one in _answer(answered)] == [b"x"]
    assert set(had_bytes) == {True}


def test_cancelled_receive_gives_its_messages_back(
    served: ServedBench, remote: RemoteStore
) -> None:
    wait = remote.begin_receive("t", "g", wait=60, lease=3600, max_attempts=1)
    served.bench.store.put("t", b"x")
    served.bench.turn()
    while not _is_readable(wait):
        pass  # the answer is on its way
    wait.cancel()
    wait.cancel()
    while served.server.stats()["net_returned_leases"] < 1:
        pass
    served.bench.turn()
    (again,) = remote.receive("t", "g", max_attempts=1, wait=20)
    assert (again.body, again.attempt) == (b"x", 1)


def test_lost_connection_is_the_answer_and_the_next_one_begins_again(
    served: ServedBench, remote: RemoteStore
) -> None:
    wait = remote.begin_receive("t", "g", wait=60)
    served.server.close()
    with pytest.raises(ConnectionLostError, match="the server closed the connection"):
        _answer(wait)
    served.server = timerstore.net.serve(served.bench.store, socket=served.path)
    again = remote.begin_receive("t", "g", wait=60)
    served.bench.store.put("t", b"x")
    served.bench.turn()
    assert [one.body for one in _answer(again)] == [b"x"]


def test_no_server_is_an_error_of_the_beginning(served: ServedBench) -> None:
    store = served.connect(retry_for=0)
    served.server.close()

    def begin_until_it_fails() -> None:
        while True:  # the end of the connection is not known at once
            store.begin_receive("t", "g", wait=60).cancel()

    with pytest.raises(UnavailableError):
        begin_until_it_fails()


def test_silent_server_ends_the_wait(served: ServedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = served.connect()
    store.topics()
    store._connector.channel()._call_timeout_s = 0.1
    wait = store.begin_receive("t", "g", wait=0.01)
    monkeypatch.setattr("timerstore.net.channel.Channel.read_for", lambda _channel, _slot: None)

    def take() -> None:
        while wait.take() is None:
            pass

    with pytest.raises(ConnectionLostError, match=r"did not answer in 0\.11 s"):
        take()


def test_close_ends_a_call_that_nothing_takes(served: ServedBench, remote: RemoteStore) -> None:
    wait = remote.begin_receive("t", "g", wait=60)
    channel = remote._connector.channel()
    remote.close()
    assert channel.fileno() == -1
    with pytest.raises(ClosedError):
        _answer(wait)


def test_child_does_not_take_the_answer_of_its_parent(
    served: ServedBench, remote: RemoteStore
) -> None:
    wait = remote.begin_receive("t", "g", wait=60)
    read, write = os.pipe()
    if not os.fork():
        try:
            wait.take()
        except ForkedError as error:
            os.write(write, str(error).encode())
            wait.cancel()
        finally:
            os._exit(0)
    os.wait()
    os.close(write)
    assert os.read(read, 1000) == (
        b"the call began in the parent process; begin one in this process"
    )
    os.close(read)
    served.bench.store.put("t", b"x")
    served.bench.turn()
    assert [one.body for one in _answer(wait)] == [b"x"]


def test_receive_over_tls_answers_on_a_descriptor(tmp_path: Path) -> None:
    tls = Tls(tmp_path)
    with timerstore.connect(tls.url, token=TOKEN, tls=tls.trusting) as store:
        wait = store.begin_receive("t", "g", wait=60)
        assert wait.take() is None
        tls.bench.store.put("t", b"x")
        tls.bench.turn()
        assert [one.body for one in _answer(wait)] == [b"x"]
    tls.server.close()
    tls.bench.close()


def _anonymous_descriptors() -> int:
    """Return how many descriptors of events this process has."""
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found += "[event" in str(one.readlink())
    return found


def test_descriptors_are_closed_at_the_end(served: ServedBench, remote: RemoteStore) -> None:
    remote.topics()
    gc.collect()  # stores that earlier tests left to the collector
    before = _anonymous_descriptors()
    for _ in range(50):
        served.bench.store.put("t", b"x")
        served.bench.turn()
        wait = remote.begin_receive("t", "g", wait=60)
        remote.ack_many(_answer(wait))
    del wait
    assert _anonymous_descriptors() <= before


# --- shared stores ---


def test_shared_store_returns_the_leases_of_a_process_that_ends(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", shared=True) as owner:
        owner.put("t", b"x")
        pid = os.fork()
        if not pid:
            store = timerstore.open(tmp_path / "s", shared=True, return_leases=True)
            store.receive("t", "g", lease=3600, wait=20)
            os.kill(os.getpid(), 9)
        os.waitpid(pid, 0)
        (again,) = owner.receive("t", "g", wait=20)
        assert (again.body, again.attempt) == (b"x", 2)


def test_return_leases_needs_a_shared_store(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="return_leases: it goes with shared=True"):
        timerstore.open(tmp_path / "s", return_leases=True)  # type: ignore[call-overload]


def test_next_reader_is_found_behind_a_call_without_a_thread(
    served: ServedBench, remote: RemoteStore
) -> None:
    """The first call of the connection waits in no thread, so it can read for no other."""
    wait = remote.begin_receive("first", "g", wait=60)
    calls = {
        topic: Running(lambda topic=topic: remote.receive(topic, "g", wait=60))  # type: ignore[misc]
        for topic in ("a", "b")
    }
    until(lambda: served.server.stats()["net_waiting_requests"] == 3)
    for topic in ("a", "b"):
        served.bench.store.put(topic, topic.encode())
        served.bench.turn()
        assert [one.body for one in calls[topic].answer()] == [topic.encode()]
    wait.cancel()
