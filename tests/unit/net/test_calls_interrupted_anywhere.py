"""An exception at each bytecode of a call ends this call only: the client goes on, calls of other
threads are answered, and messages that were leased for it are given back.
"""

import contextlib
import gc
import itertools
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.net
from tests.support.any_bytecode import interrupted
from tests.support.bench import small
from tests.support.certificates import TOKEN, make_secrets
from timerstore import ConnectionLostError, TimerStoreError
from timerstore.net.remote_store import RemoteStore

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] == (3, 12),
    reason="NOT RUN: the trace of this test gets no bytecodes there",
)

_CHANNEL = frozenset(
    {"channel.py", "byte_stream.py", "tls_stream.py", "frames.py", "surviving_lock.py"}
)
_CLIENT = _CHANNEL | {
    "connector.py", "attempt_limits.py", "endpoints.py", "repeating.py", "remote_store.py",
    "remote_consumer.py",
}  # fmt: skip
_PATIENCE_S = 20.0


@pytest.fixture
def client(tmp_path: Path) -> Iterator[RemoteStore]:
    with (
        timerstore.open(tmp_path / "store", small(flush="async")) as store,
        timerstore.net.serve(store, socket=tmp_path / "x.sock") as server,
        timerstore.connect(server.urls[0], call_timeout=60) as one,
    ):
        yield one


@pytest.fixture
def tls_client(tmp_path: Path) -> Iterator[RemoteStore]:
    cert, key, token = make_secrets(tmp_path)
    with (
        timerstore.open(tmp_path / "store", small(flush="async")) as store,
        timerstore.net.serve(store, tcp="127.0.0.1:0", tls=(cert, key), token_file=token) as server,
        timerstore.connect(
            server.urls[0],
            token=TOKEN,
            tls=ssl.create_default_context(cafile=cert),
            call_timeout=60,
        ) as one,
    ):
        yield one


def _elsewhere(call: Callable[[], Any]) -> Any:
    """Make a call on another thread, and return its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    assert results, "the call of another thread did not end"
    return results[0]


@contextlib.contextmanager
def _busy_thread(client: RemoteStore) -> Iterator[None]:
    """A thread whose calls cannot be sent again: they raise if the connection is lost."""
    stop, errors = threading.Event(), []
    receipt = client.put("busy", b"", delay=3600)

    def work() -> None:
        one = receipt
        try:
            while not stop.is_set():
                one = client.reschedule(one, delay=3600)
        except TimerStoreError as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_PATIENCE_S)
    assert not thread.is_alive()
    assert errors == []


def _interrupt_everywhere(client: RemoteStore, call: Callable[[], Any], step: int = 1) -> int:
    for at in itertools.count(0, step):
        if not interrupted(call, at, _CLIENT):
            return at
        assert _elsewhere(client.topics) is not None, f"after bytecode {at}"
    raise AssertionError


def test_client_survives_an_exception_at_any_bytecode(client: RemoteStore) -> None:
    channel = client._connector.channel()
    assert _interrupt_everywhere(client, client.topics) > 300
    assert client._connector.channel() is channel, "an interrupted call costs no connection"
    assert not channel._slots


def test_client_of_tls_survives_an_exception_at_any_bytecode(tls_client: RemoteStore) -> None:
    channel = tls_client._connector.channel()
    assert _interrupt_everywhere(tls_client, tls_client.topics) > 300
    assert tls_client._connector.channel() is channel
    assert not channel._slots


def test_calls_of_other_threads_are_answered(client: RemoteStore) -> None:
    with _busy_thread(client):
        _interrupt_everywhere(client, client.topics, step=3)


def test_calls_of_other_threads_are_answered_over_tls(tls_client: RemoteStore) -> None:
    with _busy_thread(tls_client):
        _interrupt_everywhere(tls_client, tls_client.topics, step=3)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # of a socket in the making
@pytest.mark.parametrize("name", ["client", "tls_client"])
def test_connecting_survives_an_exception_at_any_bytecode(
    request: pytest.FixtureRequest, name: str
) -> None:
    client: RemoteStore = request.getfixturevalue(name)

    def reconnect() -> None:
        client._connector.channel()._lose(ConnectionLostError("lost"))
        client.topics()

    assert _interrupt_everywhere(client, reconnect, step=7) > 300
    gc.collect()  # the sockets


def test_consumer_survives_an_exception_at_any_bytecode(client: RemoteStore) -> None:
    """No handler runs at the `return` of a poll, the last bytecodes, where its message is lost."""
    client.put_many("t", [b"%d" % k for k in range(3)])
    consumer = client.consumer("t", "g")
    lost: list[int] = []
    for at in itertools.count(0, 5):
        if not interrupted(lambda: consumer.poll(1), at, _CLIENT):
            break
        found = [one.body for one in _elsewhere(lambda: consumer.poll(3, 20))]
        if found != [b"0", b"1", b"2"]:
            lost.append(at)
        assert found[-2:] == [b"1", b"2"]
        assert _elsewhere(consumer.commit) == {0: 3}
        consumer.seek(offset=0)
        consumer.commit({0: 0})
    assert lost in ([], [at - 5])
    consumer.close()


@pytest.mark.parametrize("name", ["client", "tls_client"])
def test_messages_of_an_interrupted_receive_are_given_back(
    request: pytest.FixtureRequest, name: str
) -> None:
    client: RemoteStore = request.getfixturevalue(name)
    step = 3 if name == "client" else 11
    for at in itertools.count(0, step):
        client.put("t", b"%d" % at)
        if not interrupted(lambda: client.receive("t", "g", lease=3600), at, _CHANNEL):
            break
        (one,) = _elsewhere(lambda: client.receive("t", "g", lease=3600, wait=_PATIENCE_S))
        assert one.body == b"%d" % at
        client.ack(one)
    else:
        raise AssertionError
    assert at > (300 if name == "client" else 200)
    channel = client._connector.channel()
    for one in threading.enumerate():
        if one.name == "timerstore-abandon":
            one.join(_PATIENCE_S)
            assert not one.is_alive(), "it waits for the answer to a call that was never sent"
    assert not channel._slots
