"""A served store and its users through kombu."""

import socket
from pathlib import Path
from typing import Any

import kombu
import pytest

import timerstore
import timerstore.contrib.celery
import timerstore.net
from tests.support.bench import small

PATIENCE_S = 20.0


class KombuBench:
    """A store on the real clock, its server, and connections that are closed with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._connections: list[kombu.Connection] = []
        self.socket = folder / "x.sock"
        self.open()

    def open(self) -> None:
        self.store = timerstore.open(self._folder / "s", small(flush="sync"))
        self.server = timerstore.net.serve(self.store, socket=self.socket)

    def stop(self) -> None:
        """End the server, as for a restart."""
        self.server.close()
        self.store.close()

    def restart(self) -> None:
        self.stop()
        self.open()

    @property
    def url(self) -> str:
        return f"timerstore://{self.socket}"

    def connect(self, **options: Any) -> kombu.Connection:
        one = kombu.Connection(self.url, transport_options=options)
        self._connections.append(one)
        return one

    def close(self) -> None:
        for one in self._connections:
            one.release()
        self.stop()


class Received:
    """The messages that a consumer got."""

    def __init__(self, *, settles: bool = True) -> None:
        self.messages: list[kombu.Message] = []
        self._settles = settles

    @property
    def bodies(self) -> list[Any]:
        return [one.payload for one in self.messages]

    def __call__(self, _body: object, message: kombu.Message) -> None:
        self.messages.append(message)
        if self._settles:
            message.ack()


def drain(connection: kombu.Connection, received: Received, count: int) -> None:
    """Wait until a consumer has so many messages."""
    while len(received.messages) < count:
        connection.drain_events(timeout=PATIENCE_S)


def assert_no_more(connection: kombu.Connection) -> None:
    """Fail if a message comes within the time of a few calls."""
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=0.05)
