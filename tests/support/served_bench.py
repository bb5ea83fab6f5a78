"""A bench whose store is served on a unix socket, and raw connections to it."""

import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

import timerstore
import timerstore.net
from tests.support.bench import Bench
from timerstore.net.endpoints import unix_address
from timerstore.net.frames import frame
from timerstore.net.remote_store import RemoteStore


class RawClient:
    """A connection that sends what a test wants, also what no client would send."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        with unix_address(path) as address:
            self.socket.connect(address)

    def send(self, message: object) -> None:
        self.socket.sendall(frame(msgspec.msgpack.encode(message)))

    def send_all(self, messages: Iterable[object]) -> None:
        """Send messages in one packet, as far as it is large enough."""
        self.socket.sendall(b"".join(frame(msgspec.msgpack.encode(one)) for one in messages))

    def hello(self, **more: Any) -> list[Any]:
        self.send([1, 1, [], more.get("token"), more.get("return_leases", False)])
        return self.reply()

    def reply(self) -> list[Any]:
        """Return the next message; raise ConnectionResetError at the end."""
        found: list[Any] = msgspec.msgpack.decode(self._exactly(int.from_bytes(self._exactly(4))))
        return found

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionResetError("the end")
            data += part
        return bytes(data)

    def is_closed_by_server(self) -> bool:
        """Read the rest; return whether the server closed the connection."""
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except ConnectionResetError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()


class ServedBench:
    """A bench, its server, and the clients that were made here."""

    def __init__(self, bench: Bench, path: Path, **options: Any) -> None:
        self.bench = bench
        self.path = path
        self.server = timerstore.net.serve(bench.store, socket=path, **options)
        self._clients: list[RemoteStore | RawClient] = []

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def connect(self, **options: Any) -> RemoteStore:
        one = timerstore.connect(self.url, **options)
        self._clients.append(one)
        return one

    def raw(self) -> RawClient:
        one = RawClient(self.path)
        self._clients.append(one)
        return one

    @property
    def raws(self) -> list[RawClient]:
        return [one for one in self._clients if isinstance(one, RawClient)]

    def close_clients(self) -> None:
        for one in self._clients:
            one.close()
        self._clients.clear()

    def close(self) -> None:
        self.close_clients()
        self.server.close()
        self.bench.close()
