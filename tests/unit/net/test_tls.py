"""TCP with TLS and a token."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.aio
import timerstore.net
from tests.support.bench import Bench
from tests.support.certificates import TOKEN, make_secrets
from tests.support.held_sync import PATIENCE_S
from timerstore import AccessError, ConfigError, UnavailableError
from timerstore.net.access import ServerAccess
from timerstore.net.connections import REJECTING_MAX
from timerstore.net.server_limits import ServerLimits
from timerstore.net.tls_stream import TlsStream
from timerstore.net.wire_messages import PROTOCOL_VERSION, Hello


class Tls:
    def __init__(self, folder: Path, limits: ServerLimits | None = None) -> None:
        cert, key, token = make_secrets(folder)
        self.bench = Bench(folder / "store")
        self.server = timerstore.net.serve(
            self.bench.store,
            tcp="127.0.0.1:0",
            tls=(cert, key),
            token_file=token,
            limits=limits,
        )
        self.trusting = ssl.create_default_context(cafile=str(cert))
        self.url = self.server.urls[0]

    def connect(self, **options: Any) -> Any:
        return timerstore.connect(self.url, **{"token": TOKEN, "tls": self.trusting, **options})


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[Tls]:
    one = Tls(tmp_path)
    yield one
    one.server.close()
    one.bench.close()


def test_calls_of_many_threads_over_tls(tls: Tls) -> None:
    assert tls.url.startswith("tls://127.0.0.1:")
    with tls.connect() as store:
        bodies = [bytes([k]) * 50_000 for k in range(8)]

        def work(k: int) -> None:
            for _ in range(10):
                store.put("t", bodies[k], queue_id=k)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        tls.bench.turn()
        for k in range(8):
            found = store.pull("t", k, 0).messages
            assert [one.body for one in found] == [bodies[k]] * 10


def test_asyncio_over_tls(tls: Tls) -> None:
    async def main() -> None:
        async with timerstore.aio.connect(tls.url, token=TOKEN, tls=tls.trusting) as store:
            receipts = await asyncio.gather(*[store.put("t", bytes(9000)) for _ in range(50)])
            assert sorted(one.queue_offset for one in receipts) == list(range(50))

    asyncio.run(main())


def test_end_of_the_connection_without_an_end_of_tls_is_an_error(tmp_path: Path) -> None:
    """As a process that is killed ends it. Waiting for more bytes would never end."""
    cert, key, _ = make_secrets(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    here, there = socket.socketpair()
    serving = threading.Thread(target=lambda: context.wrap_socket(there, server_side=True).close())
    serving.start()
    trusting = ssl.create_default_context(cafile=cert)
    stream = TlsStream(here, trusting, "127.0.0.1", time.monotonic() + PATIENCE_S)
    serving.join()
    with pytest.raises(ssl.SSLEOFError):
        any(stream.receive([], PATIENCE_S) for _ in range(9))  # first the tickets of the session
    here.close()


def test_socket_stays_open_until_the_reader_of_tls_has_ended(
    tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would read the bytes of another file that got the number of the socket."""
    is_reached, is_released = threading.Event(), threading.Event()
    receive = TlsStream.receive

    def held(self: TlsStream, chunks: list[bytes], left_s: float) -> bool:
        is_reached.set()
        assert is_released.wait(PATIENCE_S)
        return receive(self, chunks, left_s)

    others = set(threading.enumerate())  # also of clients of earlier tests, which end now
    store = tls.connect()
    channel = store._connector.channel()
    new = set(threading.enumerate()) - others
    (reader,) = (one for one in new if one.name == "timerstore-tls")
    monkeypatch.setattr(TlsStream, "receive", held)
    assert is_reached.wait(PATIENCE_S)
    store.close()
    number = channel.fileno()
    is_released.set()
    reader.join(PATIENCE_S)
    assert number >= 0
    assert channel.fileno() == -1


def test_connections_in_a_handshake_count(tmp_path: Path) -> None:
    """A client that connects and sends nothing was not counted until its handshake ended."""
    tls = Tls(tmp_path, ServerLimits(connections_max=3))
    port = int(tls.url.rpartition(":")[2])

    def silent() -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), 20)

    first, second = silent(), silent()
    with tls.connect():
        assert tls.server.stats()["net_connections"] == 3
        with pytest.raises(UnavailableError, match="accepts no more connections"):
            tls.connect(retry_for=0)
        first.close()
        with tls.connect(retry_for=20) as other:  # when the server has noticed the end
            other.put("t", b"x")
            rejected_count = tls.server.stats()["net_rejected_connections"]
            more = [silent() for _ in range(REJECTING_MAX + 2)]
            ends = [one for one in more[REJECTING_MAX:] if one.recv(1) == b""]
            assert len(ends) == 2, "too many connections are open to get the error"
            assert tls.server.stats()["net_connections"] == 3
            assert tls.server.stats()["net_rejected_connections"] - rejected_count == 2
            more[0].setblocking(False)
            with pytest.raises(BlockingIOError):
                more[0].recv(1)
            other.put("t", b"y")
    tls.server.close()
    assert tls.server.stats()["net_connections"] == 0
    for one in (second, *more):
        assert one.recv(1) == b"" if one.getblocking() else True
        one.close()
    tls.bench.close()


def test_oldest_handshake_is_dropped_for_a_new_connection(tmp_path: Path) -> None:
    tls = Tls(tmp_path, ServerLimits(greeting_max=1, hello_s=600))
    port = int(tls.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 20) as silent:
        while not tls.server.stats()["net_connections"]:
            pass
        with tls.connect() as other:
            assert silent.recv(1) == b""
            other.put("t", b"x")
    tls.server.close()
    tls.bench.close()


def test_wrong_token_and_untrusted_certificate_are_errors(tls: Tls) -> None:
    with pytest.raises(AccessError, match="the token is wrong"):
        tls.connect(token="another")
    with pytest.raises(UnavailableError, match="certificate"):
        tls.connect(tls=None)
    plain = tls.url.replace("tls://", "tcp://")
    with pytest.raises(UnavailableError):
        timerstore.connect(plain, token=TOKEN, retry_for=0)


def test_unsafe_arguments_are_config_errors(tls: Tls, tmp_path: Path) -> None:
    store = tls.bench.store
    with pytest.raises(ConfigError) as error:
        timerstore.net.serve(store, tcp="0.0.0.0:0")
    assert [one.partition(":")[0] for one in error.value.problems] == [
        "token_file",
        "tls",
        "insecure",
    ]
    with pytest.raises(ConfigError, match="token_file: wanted one"):
        timerstore.net.serve(store, tcp="127.0.0.1:0")
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0 is not loopback"):
        timerstore.net.serve(store, tcp="0.0.0.0:0", token_file=tmp_path / "token")
    with pytest.raises(ConfigError, match="cannot be used"):
        timerstore.net.serve(store, tcp="127.0.0.1:0", tls=(tmp_path / "no", tmp_path / "no"))
    with (
        timerstore.net.serve(store, tcp="127.0.0.1:0", insecure=True) as server,
        timerstore.connect(server.urls[0]) as remote,
    ):
        assert remote.put("t", b"x").topic == "t"
    short = tmp_path / "short"
    short.write_text("short")
    short.chmod(0o600)
    with pytest.raises(ConfigError, match="16 to 4096 characters, got 5"):
        timerstore.net.serve(store, tcp="127.0.0.1:0", token_file=short)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"socket": "x.sock", "token_file": "token"}, "token_file"),
        ({"socket": "x.sock", "insecure": True}, "insecure"),
        ({"tcp": "127.0.0.1:0", "insecure": True, "users": [7]}, "users"),
    ],
)
def test_options_that_protect_nothing_are_config_errors(
    tls: Tls, tmp_path: Path, options: dict[str, Any], name: str
) -> None:
    if "socket" in options:
        options = {**options, "socket": tmp_path / "x.sock"}
    with pytest.raises(ConfigError, match=f"{name}: wanted"):
        timerstore.net.serve(tls.bench.store, **options)


@pytest.mark.parametrize(
    "given",
    [None, "", TOKEN[:1], TOKEN[:-1], TOKEN[1:], TOKEN + "x", TOKEN * 2, TOKEN.swapcase(),
     f" {TOKEN}", f"{TOKEN}\n", f"{TOKEN}\0", "\0" * len(TOKEN), TOKEN[::-1]],
)  # fmt: skip
def test_only_the_whole_token_is_accepted(given: str | None) -> None:
    access = ServerAccess(None, TOKEN)
    access.check_hello(Hello(PROTOCOL_VERSION, [], TOKEN, False))
    with pytest.raises(AccessError, match="the token is wrong"):
        access.check_hello(Hello(PROTOCOL_VERSION, [], given, False))
