"""Servers that do not answer, that cannot be reached, and the time limits of a client."""

import asyncio
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import timerstore
import timerstore.aio
import timerstore.net
from tests.support.bench import Bench, small
from tests.support.certificates import TOKEN, Secrets, make_secrets
from tests.support.consuming import Running
from tests.support.served_bench import ServedBench
from timerstore import (
    ClosedError,
    ConfigError,
    ConnectionLostError,
    ProtocolError,
    TimerStoreError,
    UnavailableError,
)
from timerstore.net import async_channel, shared_store
from timerstore.net.attempt_limits import ClientTimes
from timerstore.net.frames import frame
from timerstore.net.shared_store import open_shared

_FOR_EVER_S = 3600  # an attempt that is repeated ends the test


class _HalfServer:
    """Greets, answers `topics`, and no other call. Reads nothing after the greeting if it is
    `deaf`. Does not even greet if it is `silent`. Answers no call that there is if it is `wrong`.
    """

    def __init__(self, path: Path, kind: str = "") -> None:
        self.kind = kind
        self.url = f"unix://{path}"
        self.connections = 0
        self.abandoned: list[int] = []
        """The ids of the calls whose results are not wanted any more."""
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._sockets = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        try:
            while True:
                one, _ = self._listening.accept()
                self.connections += 1
                self._sockets.append(one)
                if self.kind != "silent":
                    threading.Thread(target=self._serve, args=(one,), daemon=True).start()
        except OSError:
            return  # closed

    def _serve(self, one: socket.socket) -> None:
        try:
            with one.makefile("rb") as stream:
                while len(head := stream.read(4)) == 4:
                    message = msgspec.msgpack.decode(stream.read(int.from_bytes(head)))
                    if message[0] == 1:
                        reply: list[Any] = [4, 1, [], 1 << 25, 1024, 3_600_000, "/"]
                        one.sendall(frame(msgspec.msgpack.encode(reply)))
                    elif message[0] == 3:
                        self.abandoned.append(message[1])
                    elif message[2] == "topics":
                        call_id = 0 if self.kind == "wrong" else message[1]
                        one.sendall(frame(msgspec.msgpack.encode([5, call_id, {}])))
                    if self.kind == "deaf":
                        return
        except OSError:
            return  # closed

    def close(self) -> None:
        for one in self._sockets:
            one.close()


@pytest.fixture
def half(tmp_path: Path) -> Iterator[_HalfServer]:
    one = _HalfServer(tmp_path / "half.sock")
    yield one
    one.close()


def _blocking(url: str, name: str, *args: Any, options: dict[str, Any], **more: Any) -> Any:
    with timerstore.connect(url, **options) as store:
        return getattr(store, name)(*args, **more)


def _awaited(url: str, name: str, *args: Any, options: dict[str, Any], **more: Any) -> Any:
    async def main() -> Any:
        async with timerstore.aio.connect(url, **options) as store:
            return await getattr(store, name)(*args, **more)

    return asyncio.run(asyncio.wait_for(main(), 60))


_CLIENTS = pytest.mark.parametrize("made", [_blocking, _awaited])
Made = Callable[..., Any]


@_CLIENTS
@pytest.mark.parametrize(
    ("name", "args", "more", "limit"),
    [
        ("put", ("t", b"x"), {}, "0.2 s"),
        ("receive", ("t", "g"), {"wait": 0.1}, "0.3 s"),
        ("pull", ("t", 0, 0), {"wait": 0.1}, "0.3 s"),
        ("requeue", ("t",), {}, "0.2 s"),
    ],
)
def test_call_without_an_answer_ends(
    half: _HalfServer, made: Made, name: str, args: Any, more: Any, limit: str
) -> None:
    options = {"retry_for": 0, "connect_timeout": 20, "call_timeout": 0.2}
    with pytest.raises(ConnectionLostError, match=f"{name}: the server did not answer in {limit}"):
        made(half.url, name, *args, options=options, **more)


@_CLIENTS
def test_call_without_an_answer_is_repeated_within_the_limit(half: _HalfServer, made: Made) -> None:
    options = {"retry_for": 0.3, "connect_timeout": 20, "call_timeout": 0.2}
    with pytest.raises(ConnectionLostError, match="lost during the call"):
        made(half.url, "put", "t", b"x", options=options)
    assert 2 <= half.connections <= 4


def test_call_that_is_too_slow_ends_alone(half: _HalfServer) -> None:
    """A server that answers others is not stopped: their connection goes on. So does a call that
    takes long.
    """
    # Other calls must be answered within this time, also on a busy machine.
    with timerstore.connect(half.url, retry_for=0, connect_timeout=20, call_timeout=1) as store:
        channel, stop = store._connector.channel(), threading.Event()
        ends: list[type[Exception]] = []

        def ask() -> None:
            while not stop.is_set():
                store.topics()

        def take_long() -> None:
            try:
                store.verify()
            except TimerStoreError as error:
                ends.append(type(error))

        others = [threading.Thread(target=one) for one in (take_long, ask)]
        others[0].start()
        while not channel._slots:
            pass
        others[1].start()
        for call in (lambda: store.put("t", b"x"), lambda: store.receive("t", "g")):
            with pytest.raises(ConnectionLostError, match="did not answer"):
                call()
        while not half.abandoned:  # the server ends the `receive`, too
            pass
        assert store.topics() == {}
        assert store._connector.channel() is channel
        stop.set()
        others[1].join()
    others[0].join()
    assert ends == [ClosedError]


_WAITS = pytest.mark.parametrize(
    ("name", "args"), [("receive", ("t", "g")), ("pull", ("t", 0, 0)), ("pull_batch", ("t", 0, 0))]
)


@_WAITS
def test_awaited_call_has_its_whole_wait_and_the_limit(
    half: _HalfServer, monkeypatch: pytest.MonkeyPatch, name: str, args: Any
) -> None:
    monkeypatch.setattr(async_channel, "_RELEASE_S", 0)  # this server ends no abandoned call

    async def main() -> None:
        loop, passed_s = asyncio.get_running_loop(), 0.0
        now = loop.time
        loop.time = lambda: now() + passed_s  # type: ignore[method-assign]
        async with timerstore.aio.connect(half.url, retry_for=0) as store:
            call = asyncio.create_task(getattr(store, name)(*args, wait=100))
            await asyncio.sleep(0)
            for at_s in (6, 99, 104):
                passed_s = at_s
                await store.topics()  # so the connection is not lost
                await asyncio.sleep(0.001)
                assert not call.done()
            passed_s = 106
            await store.topics()
            with pytest.raises(ConnectionLostError, match=r"did not answer in 105 s"):
                await asyncio.wait_for(call, 20)

    asyncio.run(main())


@_WAITS
def test_call_has_its_whole_wait_and_the_limit(
    half: _HalfServer, monkeypatch: pytest.MonkeyPatch, name: str, args: Any
) -> None:
    passed_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s)
    monkeypatch.setattr("timerstore.net.channel.time", clock)
    with timerstore.connect(half.url, retry_for=0) as store:
        call = Running(lambda: getattr(store, name)(*args, wait=100))
        while not store._connector.channel()._slots:
            pass
        for at_s in (6, 99, 104):
            passed_s = at_s
            store.topics()  # read by the thread that waits
            assert not call.is_done(0.001)
        passed_s = 106
        store.topics()
        found = call.answer()
    assert isinstance(found, ConnectionLostError)
    assert "did not answer in 105 s" in str(found)


@_CLIENTS
def test_server_that_reads_nothing_ends_the_call(tmp_path: Path, made: Made) -> None:
    one = _HalfServer(tmp_path / "half.sock", "deaf")
    options = {"retry_for": 0, "connect_timeout": 20, "call_timeout": 0.3}
    with pytest.raises(ConnectionLostError):
        made(one.url, "put", "t", bytes(4 << 20), options=options)
    one.close()


def test_awaited_call_that_is_too_slow_ends_in_the_server(
    half: _HalfServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_channel, "_RELEASE_S", 0)  # this server ends no abandoned call

    async def main() -> None:
        # `topics` must be answered within the last time, also on a busy machine.
        options: dict[str, Any] = {"retry_for": 0, "connect_timeout": 20, "call_timeout": 1}
        async with timerstore.aio.connect(half.url, **options) as store:
            call = asyncio.create_task(store.receive("t", "g"))
            await asyncio.sleep(0)
            await store.topics()  # so the connection is not lost
            with pytest.raises(ConnectionLostError, match="did not answer"):
                await call
            while not half.abandoned:
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_call_that_waits_for_a_server_to_read_ends_with_the_connection(tmp_path: Path) -> None:
    one = _HalfServer(tmp_path / "half.sock", "deaf")

    async def main() -> None:
        options: dict[str, Any] = {"retry_for": 0, "connect_timeout": 20, "call_timeout": 60}
        async with timerstore.aio.connect(one.url, **options) as store:
            channel = await store._channel()
            calls = [asyncio.create_task(store.put("t", bytes(4 << 20)))]
            while channel._writable.is_set():
                await asyncio.sleep(0)
            calls.append(asyncio.create_task(store.topics()))
            await asyncio.sleep(0)
            one.close()
            for call in calls:
                with pytest.raises(ConnectionLostError):
                    await asyncio.wait_for(call, 20)

    asyncio.run(main())


@pytest.mark.parametrize(
    "wait",
    [lambda store: store.receive("t", "g", wait=3600), lambda store: store.verify()],
    ids=["receive", "verify"],
)
def test_call_during_a_long_wait_ends_within_its_own_limit(
    half: _HalfServer, monkeypatch: pytest.MonkeyPatch, wait: Callable[[Any], Any]
) -> None:
    """The timer of the first call must not sleep until its end."""
    monkeypatch.setattr(async_channel, "_RELEASE_S", 0)  # this server ends no abandoned call

    async def main() -> None:
        options: dict[str, Any] = {"retry_for": 0, "connect_timeout": 20, "call_timeout": 0.5}
        async with timerstore.aio.connect(half.url, **options) as store:
            waiting = asyncio.create_task(wait(store))
            for _ in range(2):
                put = asyncio.create_task(store.put("t", b"x"))
                await asyncio.sleep(0)
                await store.topics()  # so the connection is not lost, and the wait goes on
                with pytest.raises(ConnectionLostError, match=r"did not answer in 0.5 s"):
                    await asyncio.wait_for(put, 20)
            assert not waiting.done()
            waiting.cancel()

    asyncio.run(main())


def test_connection_ends_if_the_server_reads_no_calls(tmp_path: Path) -> None:
    """So the next call looks for another one."""
    one = _HalfServer(tmp_path / "half.sock", "deaf")

    async def main() -> None:
        options: dict[str, Any] = {"retry_for": 0, "connect_timeout": 20, "call_timeout": 0.3}
        async with timerstore.aio.connect(one.url, **options) as store:
            channel = await store._channel()
            putting = asyncio.create_task(store.put("t", bytes(4 << 20)))
            while channel._writable.is_set():
                await asyncio.sleep(0)
            channel._timer.cancel()  # the end of the put would end the connection, too
            with pytest.raises(ConnectionLostError):
                await store.topics()
            assert channel.is_lost
            with pytest.raises(ConnectionLostError):
                await putting

    asyncio.run(asyncio.wait_for(main(), 20))
    one.close()


@_CLIENTS
def test_answer_to_no_call_is_a_protocol_error(tmp_path: Path, made: Made) -> None:
    one = _HalfServer(tmp_path / "half.sock", "wrong")
    with pytest.raises(ProtocolError, match="an answer has the id of no call"):
        made(one.url, "topics", options={"retry_for": 0})
    one.close()


@_CLIENTS
def test_server_that_does_not_greet_is_unavailable(tmp_path: Path, made: Made) -> None:
    one = _HalfServer(tmp_path / "half.sock", "silent")
    options = {"connect_timeout": 0, "call_timeout": 0.2}
    with pytest.raises(UnavailableError, match=f"process {os.getpid()}, which listens there"):
        made(one.url, "topics", options=options)
    one.close()


@_CLIENTS
def test_handshake_of_tls_is_limited(made: Made) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"tls://127.0.0.1:{listening.getsockname()[1]}"
        options = {"connect_timeout": 0, "call_timeout": 0.2}
        with pytest.raises(UnavailableError, match="does not answer"):
            made(url, "topics", options=options)


@_CLIENTS
def test_connect_timeout_limits_the_first_search(tmp_path: Path, made: Made) -> None:
    options = {"connect_timeout": 0.2, "retry_for": _FOR_EVER_S}
    with pytest.raises(UnavailableError, match=r"no server was found in \d(\.\d)? s"):
        made(f"unix://{tmp_path}/none", "topics", options=options)
    with pytest.raises(UnavailableError, match=r"no server was found in \d(\.\d)? s"):
        made(f"unix://{tmp_path}/none", "topics", options={"retry_for": 0})


def test_retry_for_limits_later_searches(tmp_path: Path) -> None:
    served = ServedBench(Bench(tmp_path / "store"), tmp_path / "x.sock")
    remote = served.connect(retry_for=0.2, connect_timeout=_FOR_EVER_S)
    remote._connector.channel()
    served.server.close()
    with pytest.raises((UnavailableError, ConnectionLostError)):
        remote.topics()
    served.close()


def test_retry_for_limits_later_searches_of_an_awaited_client(tmp_path: Path) -> None:
    served = ServedBench(Bench(tmp_path / "store"), tmp_path / "x.sock")
    options: dict[str, Any] = {"retry_for": 0.2, "connect_timeout": _FOR_EVER_S}

    async def main() -> None:
        async with timerstore.aio.connect(served.url, **options) as store:
            channel = await store._channel()
            await asyncio.to_thread(served.server.close)
            while not channel.is_lost:
                await asyncio.sleep(0)
            with pytest.raises(UnavailableError, match=r"no server was found in \d(\.\d)? s"):
                await asyncio.wait_for(store.topics(), 20)

    asyncio.run(main())
    served.close()


def test_stopped_owner_of_a_shared_store_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(600)  # if the parent ends before it kills this child
        try:
            owner = open_shared(tmp_path / "s", small(flush="async"))
            owner.put("owner", b"owner", delay=3600)
            os.write(write, b"x")
            signal.pause()
        finally:
            os._exit(1)
    try:
        os.close(write)
        assert os.read(read, 1) == b"x", "the child ended"
        times = ClientTimes(_FOR_EVER_S, _FOR_EVER_S, _FOR_EVER_S)
        monkeypatch.setattr(shared_store, "_TIMES", times)
        store = open_shared(tmp_path / "s", small(flush="async"))
        assert "owner" in store.topics()
        store._connector.channel()._call_timeout_s = 0.5
        monkeypatch.setattr(shared_store, "_SILENT_S", 0.3)
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)  # until all of its threads have stopped
        reason = f"the owner of the store does not answer .process {pid}"
        with pytest.raises(ConnectionLostError, match=reason):
            store.put("t", b"x")
        with pytest.raises(UnavailableError, match=reason):
            store.put("t", b"y")
        with pytest.raises(UnavailableError, match=reason):
            open_shared(tmp_path / "s", small(flush="async"))
    finally:
        os.close(read)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert store.put("t", b"z").topic == "t", "another process takes over when the owner is killed"
    assert store.is_owner
    store.close()


# --- errors that cannot pass ---


class _Servers:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secrets: Secrets = make_secrets(folder)
        self.bench = Bench(folder / "store")
        cert, key, token = self.secrets
        self.tls = timerstore.net.serve(
            self.bench.store, tcp="127.0.0.1:0", tls=(cert, key), token_file=token
        )
        self.plain = timerstore.net.serve(self.bench.store, tcp="127.0.0.1:0", insecure=True)
        self.trusting = ssl.create_default_context(cafile=cert)
        (folder / "file").touch()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[_Servers]:
    one = _Servers(tmp_path)
    yield one
    one.bench.close()


_LASTING: dict[str, tuple[Callable[[_Servers], str], str]] = {
    "folder": (lambda one: f"unix://{one.folder}", "no socket, but a folder"),
    "file": (lambda one: f"unix://{one.folder}/file", "no socket, but a file"),
    "in a file": (lambda one: f"unix://{one.folder}/file/x", "Not a directory"),
    "TLS to a port without": (
        lambda one: one.plain.urls[0].replace("tcp:", "tls:"),
        "does not speak TLS",
    ),
    "port with TLS without it": (
        lambda one: one.tls.urls[0].replace("tls:", "tcp:"),
        "the server speaks TLS; .* wanted tls://",
    ),
    "other certificate": (lambda one: one.tls.urls[0], "certificate is not trusted"),
    "other name": (
        lambda one: one.tls.urls[0].replace("127.0.0.1", "127.0.0.2"),
        "certificate is not trusted|Connection refused",
    ),
}


@_CLIENTS
@pytest.mark.parametrize("kind", [one for one in _LASTING if one != "other name"])
def test_error_that_cannot_pass_is_raised_at_once(servers: _Servers, made: Made, kind: str) -> None:
    url, reason = _LASTING[kind]
    tls = ssl.create_default_context() if kind == "other certificate" else servers.trusting
    options = {"retry_for": _FOR_EVER_S, "tls": tls, "token": TOKEN}
    with pytest.raises(UnavailableError, match=reason) as error:
        made(url(servers), "topics", options=options)
    assert not error.value.retryable
    assert "no server was found" not in str(error.value)


@_CLIENTS
@pytest.mark.parametrize("number", ["EACCES", "EPERM", "ELOOP", "EPROTOTYPE"])
def test_missing_permission_is_raised_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Made, number: str
) -> None:
    """The user of the tests may have every permission."""
    import errno

    def connect(*_given: Any) -> None:
        code = getattr(errno, number)
        raise OSError(code, os.strerror(code))

    async def connecting(*_given: Any, **_more: Any) -> None:
        connect()

    monkeypatch.setattr("timerstore.net.channel.connected_socket", connect)
    monkeypatch.setattr(asyncio.SelectorEventLoop, "create_unix_connection", connecting)
    with pytest.raises(UnavailableError, match="the server cannot be reached"):
        made(f"unix://{tmp_path}/x", "topics", options={"retry_for": _FOR_EVER_S})


@_CLIENTS
def test_other_servers_are_named_at_once(tmp_path: Path, made: Made) -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        one, _ = listening.accept()
        with one:
            one.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            one.recv(1000)

    thread = threading.Thread(target=serve)
    thread.start()
    url = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
    with pytest.raises(ProtocolError, match="the other side is no server of timerstore"):
        made(url, "topics", options={"retry_for": _FOR_EVER_S})
    thread.join()
    listening.close()


# --- arguments ---


@_CLIENTS
@pytest.mark.parametrize(
    ("name", "valid", "wrong"),
    [
        ("retry_for", [0, 86_400, 0.5], [-0.001, 86_400.001, True, None, "1"]),
        ("connect_timeout", [0, 86_400, None], [-0.001, 86_400.001, False, "1"]),
        ("call_timeout", [0.1, 86_400], [0.099, 86_400.001, 0, None, True]),
    ],
)
def test_time_limits_have_ranges(
    served: ServedBench, made: Made, name: str, valid: list[Any], wrong: list[Any]
) -> None:
    for one in valid:
        assert made(served.url, "topics", options={"retry_for": 1, name: one}) is not None
    for one in wrong:
        with pytest.raises(ConfigError, match=f"{name}: wanted"):
            made(served.url, "topics", options={"retry_for": 1, name: one})


@_CLIENTS
@pytest.mark.parametrize(
    "rest",
    ["user@h:1", "user:secret@h:1", ":secret@h:1", "@h:1", "h:1#x", "h:1#", "h:1?x=1", "h:1?",
     "h:1/", "h:1/x", "h:1 ", "h:\n1"],
)  # fmt: skip
@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_url_with_more_than_an_address_is_rejected(made: Made, rest: str, scheme: str) -> None:
    with pytest.raises(ConfigError, match="url: wanted") as error:
        made(f"{scheme}://{rest}", "topics", options={"retry_for": _FOR_EVER_S})
    assert "secret" not in str(error.value), "a password is not repeated"


@_CLIENTS
@pytest.mark.parametrize(
    ("url", "warns"),
    [
        ("tcp://192.0.2.1:1", True),
        ("tcp://[2001:db8::1]:1", True),
        ("tcp://host.invalid:1", True),
        ("tcp://127.0.0.1:1", False),
        ("tcp://[::1]:1", False),
        ("tcp://localhost:1", False),
        ("tls://192.0.2.1:1", False),
        ("unix:///nowhere", False),
    ],
)
def test_token_in_plain_text_warns(
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
    made: Made,
    url: str,
    warns: bool,
) -> None:
    def unreachable(*_given: Any) -> None:
        raise PermissionError(13, "no network in tests")

    async def unreachable_too(*_given: Any, **_more: Any) -> None:
        unreachable()

    monkeypatch.setattr("timerstore.net.channel.connected_socket", unreachable)
    for name in ("create_connection", "create_unix_connection"):
        monkeypatch.setattr(asyncio.SelectorEventLoop, name, unreachable_too)
    for token in (None, TOKEN):
        with pytest.raises(UnavailableError):
            made(url, "topics", options={"retry_for": 0, "token": token})
        found = [one for one in recwarn if "plain text" in str(one.message)]
        assert bool(found) == (warns and token is not None)
        assert all(one.filename == __file__ for one in found), "it names the caller"
