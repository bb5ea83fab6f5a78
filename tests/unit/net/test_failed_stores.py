"""A store that fails: its server ends, its owner lets go, and the next opening recovers it."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.net
from tests.support.bench import Bench, small
from tests.support.inside import inside
from tests.support.served_bench import ServedBench
from tests.unit.net.test_tls import Tls
from timerstore import (
    ConfigError,
    ConnectionLostError,
    CorruptError,
    FailedError,
    TimerStore,
    TimerStoreError,
)
from timerstore._engine.engine import Engine
from timerstore.net import store_server
from timerstore.net.attempt_limits import ClientTimes
from timerstore.net.remote_store import RemoteStore
from timerstore.net.shared_store import SharedConnector, SharedStore, open_shared

PATIENCE_S = 60


def _failed_sync(store: TimerStore) -> None:
    """Have the next sync fail; a put of any client makes it."""

    def fail() -> None:
        raise FailedError("sync: Input/output error (5)")

    inside(store).log.segments.sync = fail


def _engine(store: TimerStore) -> Engine:
    return store._engine


WAYS: dict[str, Callable[[TimerStore], None]] = {
    "a sync": _failed_sync,
    "a write": lambda store: _engine(store).log.fail(FailedError("write: Input/output error")),
    "a service": lambda store: _engine(store).fail_by("flush", OSError(5, "Input/output error")),
    "damage": lambda store: _engine(store).fail_by("dequeue-put", CorruptError("a record")),
}


@pytest.fixture(params=WAYS)
def fail(request: pytest.FixtureRequest) -> Callable[[TimerStore], None]:
    """Let a store fail, on a thread of its own."""

    def failing(store: TimerStore) -> None:
        one = threading.Thread(target=WAYS[request.param], args=(store,))
        one.start()
        one.join()

    return failing


def _error_of(call: Callable[[], object]) -> TimerStoreError:
    with pytest.raises(TimerStoreError) as found:
        call()
    return found.value


def _ended(server: Any) -> FailedError:
    with pytest.raises(FailedError) as found:
        server.wait(PATIENCE_S)
    return found.value


def test_server_of_a_failed_store_ends(
    served: ServedBench, remote: RemoteStore, fail: Callable[[TimerStore], None]
) -> None:
    remote.put("t", b"before", flush="sync")
    waiting, raw = served.connect(retry_for=0), served.raw()
    raw.hello()
    with ThreadPoolExecutor(1) as pool:
        receiving = pool.submit(_error_of, lambda: waiting.receive("u", "g", wait=3600))
        while not served.server.stats()["net_waiting_requests"]:
            pass
        fail(served.bench.store)
        with pytest.raises(TimerStoreError):  # as far as the server was still there
            served.connect(retry_for=0).put("t", b"x", flush="sync")
        error = receiving.result(PATIENCE_S)
    assert isinstance(error, ConnectionLostError)
    assert "has failed" in str(error) or "Input/output error" in str(error)
    assert "must be reopened" in str(_ended(served.server))
    assert raw.is_closed_by_server()
    assert not served.path.exists()
    served.bench.store.close()  # releases the lock
    served.bench.open()
    again = timerstore.net.serve(served.bench.store, socket=served.path)
    assert remote.put("t", b"after", flush="sync").topic == "t"
    again.close()


def test_client_sends_the_put_of_a_failed_sync_to_the_next_server(
    served: ServedBench, remote: RemoteStore
) -> None:
    remote.put("t", b"0", flush="sync")
    _failed_sync(served.bench.store)
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(remote.put, "t", b"1", flush="sync")
        _ended(served.server)
        served.bench.store.close()
        served.bench.open()
        with timerstore.net.serve(served.bench.store, socket=served.path):
            assert putting.result(PATIENCE_S).topic == "t"
    served.bench.turn()
    assert served.bench.bodies("t") == [b"0", b"1"]


def test_server_of_a_store_that_has_failed_before_ends(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    WAYS["a write"](bench.store)
    server = timerstore.net.serve(bench.store, socket=tmp_path / "x.sock")
    assert "Input/output error" in str(_ended(server))
    server.close()
    bench.store.close()


def test_failed_store_ends_tls_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client reads, one ended its handshake and reads nothing, one never began it."""
    monkeypatch.setattr(store_server, "_FAILED_GOODBYE_S", 0.1)
    tls = Tls(tmp_path)
    reading = tls.connect(retry_for=0)
    port = int(tls.url.rpartition(":")[2])
    silent = socket.create_connection(("127.0.0.1", port))
    begun = tls.trusting.wrap_socket(
        socket.create_connection(("127.0.0.1", port)), server_hostname="localhost"
    )
    with ThreadPoolExecutor(1) as pool:
        receiving = pool.submit(_error_of, lambda: reading.receive("t", "g", wait=3600))
        while not tls.server.stats()["net_waiting_requests"]:
            pass
        WAYS["a service"](tls.bench.store)
        assert isinstance(receiving.result(PATIENCE_S), ConnectionLostError)
    _ended(tls.server)
    for one in (silent, begun):
        one.settimeout(PATIENCE_S)
        assert _is_ended(one)
        one.close()
    reading.close()
    tls.bench.store.close()


def _is_ended(one: socket.socket) -> bool:
    try:
        while one.recv(65536):
            pass
    except (ConnectionResetError, ssl.SSLError):
        pass
    return True


def test_close_ends_connections_that_read_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transport waited for the client, and the socket stayed open after the server's end."""
    monkeypatch.setattr(store_server, "_GOODBYE_S", 0.1)
    served = ServedBench(Bench(tmp_path / "store"), tmp_path / "x.sock")
    served.connect().put_many("t", [bytes(50_000)] * 40)
    served.bench.turn()
    raw = served.raw()
    raw.hello()
    raw.send([2, 1, "pull", ["t", 0, 0], {"max_count": 40}])
    while not served.server.stats()["net_sent_bytes"] > 1_000_000:
        pass
    served.server.close()
    assert raw.is_closed_by_server()
    served.close()


# --- shared stores ---


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def pair(path: Path) -> Iterator[tuple[SharedStore, SharedStore]]:
    config = small(flush="sync")
    with open_shared(path, config) as owner, open_shared(path, config) as other:
        yield owner, other


def _owned(store: SharedStore) -> TimerStore:
    assert store._shared._owned is not None
    return store._shared._owned[0]


def test_owner_of_a_failed_store_lets_go(
    pair: tuple[SharedStore, SharedStore], fail: Callable[[TimerStore], None]
) -> None:
    owner, other = pair
    other.put("t", b"0", delay=3600)
    failed = _owned(owner)
    with ThreadPoolExecutor(1) as pool:
        receiving = pool.submit(other.receive, "u", "g", wait=PATIENCE_S)
        while not failed.stats()["net_waiting_requests"]:
            pass
        fail(failed)
        other.put("t", b"1", delay=3600)
        owner.put("u", b"2")
        assert [one.body for one in receiving.result(PATIENCE_S)] == [b"2"]
    assert failed._is_released()
    assert owner.is_owner != other.is_owner
    found = sorted(one.message_id for one in other.pending(topic="t"))
    assert len(found) == 2, "each put once"


def test_another_takes_over_after_a_close_that_fails(
    pair: tuple[SharedStore, SharedStore],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner, other = pair
    failed, close_files = _owned(owner), Engine._close_files

    def failing(engine: Engine, *, is_clean: bool) -> None:
        close_files(engine, is_clean=is_clean)
        raise FailedError("close: Input/output error")

    monkeypatch.setattr(Engine, "_close_files", failing)
    WAYS["a write"](failed)
    assert other.put("t", b"1").topic == "t"
    monkeypatch.undo()
    assert failed._is_released()
    assert "close: Input/output error" in caplog.text


def _no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def failing(self: threading.Thread) -> None:
        if self.name == "timerstore-net":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", failing)


def test_shared_open_without_a_server_leaves_no_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket_path = path / "timerstore" / "server.sock"
    socket_path.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"cannot listen on .*server\.sock"):
        open_shared(path, small())
    timerstore.open(path, small()).close()
    socket_path.rmdir()
    with monkeypatch.context() as patched:
        _no_thread(patched)
        with pytest.raises(timerstore.BusyError, match="can't start new thread"):
            open_shared(path, small())
    assert not socket_path.exists()
    timerstore.open(path, small()).close()
    with monkeypatch.context() as patched:
        patched.setattr(SharedConnector, "longest_pause_s", 0.01)
        patched.setattr("timerstore.net.shared_store._TIMES", ClientTimes(0.05, 0.05, 5.0))
        patched.setattr("timerstore.net.store_server.asyncio.run", _no_loop)
        with pytest.raises(timerstore.UnavailableError, match="Too many open files"):
            open_shared(path, small())
    timerstore.open(path, small()).close()


def _no_loop(main: Any) -> None:
    main.close()
    raise OSError(24, "Too many open files")


def test_serve_without_a_thread_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "store")
    with monkeypatch.context() as patched:
        _no_thread(patched)
        with pytest.raises(timerstore.BusyError, match="can't start new thread"):
            timerstore.net.serve(bench.store, socket=tmp_path / "x.sock")
    assert not (tmp_path / "x.sock").exists()
    with timerstore.net.serve(bench.store, socket=tmp_path / "x.sock") as server:
        assert server.urls
    bench.close()
