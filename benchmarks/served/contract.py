"""What `bench_net` asks of a message server and of its Python client."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from benchmarks.harness import need

STARTS_S = 30.0


class Caller(Protocol):
    """A client of one thread."""

    def put(self, body: bytes) -> None:
        """Store a message that is due at once. On return it is as durable as the server says."""
        ...

    def take(self, count: int) -> list[bytes]:
        """Receive up to `count` messages without waiting, and return the bodies. They are settled
        by this call, by the next one or by `close`.
        """
        ...

    def close(self) -> None:
        """Settle the taken messages, and close the connection."""
        ...


class AsyncCaller(Protocol):
    """A client of all tasks of a loop."""

    async def put(self, body: bytes) -> None:
        """As Caller.put."""
        ...

    async def take(self, count: int) -> list[bytes]:
        """As Caller.take."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class Server(Protocol):
    """A running server."""

    def caller(self) -> Caller:
        """Return a client for one thread."""
        ...

    async def async_caller(self) -> AsyncCaller:
        """Return a client for a loop. It need not exist: see `Served.has_tasks`."""
        ...

    def close(self) -> None:
        """Kill the server."""
        ...


class Served(NamedTuple):
    """One server with one setting of durability."""

    key: str
    name: str
    durability: str
    syncs_each: bool
    """Whether a put that returned survives a power cut."""
    start: Callable[[Path], Server]
    missing: Callable[[], str | None]
    """Why it cannot be measured here, or None."""
    has_tasks: bool = True
    """Whether there is a client for asyncio."""


def start_process(command: Sequence[str], socket: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a server, and wait until its socket is there."""
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out)
    until = time.monotonic() + STARTS_S
    while not socket.exists():
        is_up = time.monotonic() < until and server.poll() is None
        need(is_up, f"{command[0]} did not start: {log.read_text('utf-8', 'replace')[-500:]}")
        time.sleep(0.005)
    return server


def program_missing(name: str) -> str | None:
    """Return the reason if the program is not in PATH."""
    if shutil.which(name) is None:
        return f"no {name} in PATH (`make bench-peers` installs it)"
    return None
