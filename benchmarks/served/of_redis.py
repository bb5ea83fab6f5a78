"""Redis streams: XADD, XREADGROUP, XACK, through redis-py. Settled entries stay in the stream."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.contract import module_missing
from benchmarks.served.contract import Served, program_missing, start_process

STREAM, GROUP = "net", "group"
CONNECTIONS_MAX = 64  # of a client for asyncio: one for each command in flight


def server_command(fsync: str, socket: Path) -> list[str]:
    """Return the command of a server with an append-only file, on a socket in its directory."""
    return ["redis-server", "--port", "0", "--unixsocket", str(socket), "--dir", str(socket.parent),
            "--save", "", "--appendonly", "yes", "--appendfsync", fsync]  # fmt: skip


class RedisStream:
    """A server of its own, on a socket in its directory."""

    def __init__(self, fsync: str, root: Path) -> None:
        self._socket = root / "redis.sock"
        command = server_command(fsync, self._socket)
        self._process = start_process(command, self._socket, root / "redis.log")
        self._names = itertools.count()
        caller = self.caller()
        caller.client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        caller.close()

    def caller(self) -> RedisCaller:
        import redis  # noqa: PLC0415  # it may be missing

        return RedisCaller(redis.Redis(unix_socket_path=str(self._socket)), f"c{next(self._names)}")

    async def async_caller(self) -> AsyncRedisCaller:
        import redis.asyncio  # noqa: PLC0415  # it may be missing

        pool = redis.asyncio.BlockingConnectionPool(
            max_connections=CONNECTIONS_MAX,
            connection_class=redis.asyncio.UnixDomainSocketConnection,
            path=str(self._socket),
        )
        return AsyncRedisCaller(redis.asyncio.Redis(connection_pool=pool), f"c{next(self._names)}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _entries(found: Any) -> list[tuple[bytes, bytes]]:
    """Return ids and bodies."""
    return [(name, fields[b"b"]) for _, entries in found for name, fields in entries]


class RedisCaller:
    """redis-py."""

    def __init__(self, client: Any, name: str) -> None:
        self.client = client
        self._name = name

    def put(self, body: bytes) -> None:
        self.client.xadd(STREAM, {"b": body})

    def take(self, count: int) -> list[bytes]:
        found = _entries(self.client.xreadgroup(GROUP, self._name, {STREAM: ">"}, count=count))
        if found:
            self.client.xack(STREAM, GROUP, *(name for name, _ in found))
        return [body for _, body in found]

    def close(self) -> None:
        self.client.close()


class AsyncRedisCaller:
    """redis-py for asyncio."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._name = name

    async def put(self, body: bytes) -> None:
        await self._client.xadd(STREAM, {"b": body})

    async def take(self, count: int) -> list[bytes]:
        found = _entries(
            await self._client.xreadgroup(GROUP, self._name, {STREAM: ">"}, count=count)
        )
        if found:
            await self._client.xack(STREAM, GROUP, *(name for name, _ in found))
        return [body for _, body in found]

    async def close(self) -> None:
        await self._client.aclose()
        await self._client.connection_pool.disconnect()


def missing() -> str | None:
    """The server or the client."""
    return program_missing("redis-server") or module_missing("redis")


SERVED = (
    Served("redis-always", "Redis, AOF always", "each call", True,
           partial(RedisStream, "always"), missing),
    Served("redis-everysec", "Redis, AOF everysec", "up to 1 s is lost in a power cut", False,
           partial(RedisStream, "everysec"), missing),
)  # fmt: skip
