"""Redis: a sorted set of pending messages, a list of ready ones, and a script that moves them.

Members begin with the row, big-endian, so that equal due times come in order of rows.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import need
from benchmarks.peers import contract
from benchmarks.peers.contract import Peer

MOVE = """
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for at = 1, #due, 5000 do
  redis.call('RPUSH', KEYS[2], unpack(due, at, math.min(at + 4999, #due)))
end
if #due > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #due - 1) end
return #due
"""
PART = 1000  # members a ZADD
STARTS_S = 20.0


class InRedis:
    """A server of its own, on a socket in its directory."""

    def __init__(self, root: Path) -> None:
        import redis  # noqa: PLC0415  # it may be missing

        socket = root / "redis.sock"
        with (root / "redis.log").open("wb") as log:
            self._server = subprocess.Popen(
                ["redis-server", "--port", "0", "--unixsocket", str(socket), "--dir", str(root),
                 "--save", "", "--appendonly", "yes", "--appendfsync", "everysec",
                 "--auto-aof-rewrite-percentage", "0"],
                stdout=log, stderr=log,
            )  # fmt: skip
        self._client: Any = redis.Redis(unix_socket_path=str(socket))
        until = time.monotonic() + STARTS_S
        while not self._answers(redis.ConnectionError):
            need(time.monotonic() < until and self._server.poll() is None, "redis did not start")
            time.sleep(0.005)
        self._move = self._client.register_script(MOVE)

    def _answers(self, refused: type[Exception]) -> bool:
        try:
            return bool(self._client.ping())
        except refused:
            return False

    def schedule(self, due: list[int], first: int, bodies: list[bytes]) -> None:
        flat: list[object] = []
        for row, (due_ms, body) in enumerate(zip(due, bodies, strict=True), first):
            flat += (due_ms, row.to_bytes(8, "big") + body)
        with self._client.pipeline(transaction=False) as line:
            for at in range(0, len(flat), 2 * PART):
                line.execute_command("ZADD", "waiting", *flat[at : at + 2 * PART])
            line.execute()

    def move(self, now_ms: int, limit: int) -> int:
        return int(self._move(keys=["waiting", "ready"], args=[now_ms, limit]))

    def take(self, limit: int) -> list[bytes]:
        return [member[8:] for member in self._client.lpop("ready", limit) or ()]

    def sync(self) -> None:
        pass

    def ram_bytes(self) -> int:
        return contract.process_ram_bytes(self._server.pid)

    def close(self) -> None:
        self._client.close()
        self._server.kill()
        self._server.wait()


def missing() -> str | None:
    """The server and the client."""
    if shutil.which("redis-server") is None:
        return "no redis-server in PATH (`make bench-peers` installs it)"
    return contract.module_missing("redis")


NEVER = float("inf")
PEERS = (
    Peer(
        key="redis",
        name="Redis",
        variant="sorted set + list, AOF",
        durability="up to 1 s is lost in a power cut (appendfsync everysec)",
        tuned="unix socket, 1000 members a ZADD, pipelined; a script moves; no rewrite of the AOF",
        work=partial(contract.drive, InRedis, NEVER),
        missing=missing,
        paced=partial(contract.drive_paced, InRedis, NEVER),
    ),
)
