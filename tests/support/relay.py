"""A relay in front of a server, which loses what a test wants and changes the server's welcome."""

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from timerstore.net.frames import frame

_CALL, _WELCOME = 2, 4
_WINDOW = 5  # the place of the window in a welcome


class Relay:
    """Passes frames between clients, each of which makes one call at a time, and a server.

    `windows_ms`: the window of deduplication that each further connection states; those of the
    server when the list is empty.
    `losses`: the lost part of each further call: "call" (the server does not get it), "answer", or
    "half" (the client gets half of the answer). No part is lost when the list is empty.
    """

    def __init__(self, target: Path, path: Path) -> None:
        self.path = path
        self.windows_ms: list[int] = []
        self.losses: list[str] = []
        self.calls: list[str] = []
        """The names of the calls that the server got."""
        self.before_loss: Callable[[], None] = lambda: None
        self._target = target
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._start(self._accept)

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def stop_listening(self) -> None:
        """Refuse further connections."""
        self._listening.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for one in (self._listening, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(20)
        for one in (self._listening, *self._sockets):
            one.close()
        self.path.unlink()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=target, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # `close` ends it
            while True:
                client, _ = self._listening.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._target))
                self._sockets += [client, server]
                self._start(self._serve, client, server)

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while (request := _payload(client)) and self._pass_on(request, client, server):
                pass
        except OSError:
            pass  # one of them ended
        finally:
            for one in (client, server):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _pass_on(self, request: bytes, client: socket.socket, server: socket.socket) -> bool:
        call = msgspec.msgpack.decode(request)
        loss = self.losses.pop(0) if call[0] == _CALL and self.losses else ""
        if loss == "call":
            self.before_loss()
            return False
        if call[0] == _CALL:
            self.calls.append(call[2])
        server.sendall(frame(request))
        answer = _payload(server)
        if loss:
            self.before_loss()
            client.sendall(frame(answer)[: len(answer) // 2] if loss == "half" else b"")
            return False
        client.sendall(frame(self._changed(answer)))
        return bool(answer)

    def _changed(self, answer: bytes) -> bytes:
        message = msgspec.msgpack.decode(answer)
        if message[0] == _WELCOME and self.windows_ms:
            message[_WINDOW] = self.windows_ms.pop(0)
            return msgspec.msgpack.encode(message)
        return answer


def _payload(one: socket.socket) -> bytes:
    """Return the payload of the next frame; raise ConnectionResetError at the end."""
    return _exactly(one, int.from_bytes(_exactly(one, 4)))


def _exactly(one: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = one.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the end")
        data += part
    return data
