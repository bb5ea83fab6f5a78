"""beanstalkd -b through greenstalk: put, reserve, delete. It has no call for many jobs at once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.contract import module_missing
from benchmarks.served.contract import AsyncCaller, Served, program_missing, start_process


class BeanstalkdServer:
    """A server of its own, on a socket in its directory."""

    def __init__(self, sync_ms: int, root: Path) -> None:
        self._socket = root / "beanstalkd.sock"
        (root / "wal").mkdir()
        command = ["beanstalkd", "-l", f"unix:{self._socket}", "-b", str(root / "wal"),
                   "-f", str(sync_ms)]  # fmt: skip
        self._process = start_process(command, self._socket, root / "beanstalkd.log")

    def caller(self) -> BeanstalkdCaller:
        import greenstalk  # noqa: PLC0415  # it may be missing

        return BeanstalkdCaller(greenstalk.Client(str(self._socket), encoding=None), greenstalk)

    async def async_caller(self) -> AsyncCaller:
        raise NotImplementedError("greenstalk has no client for asyncio")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class BeanstalkdCaller:
    """greenstalk."""

    def __init__(self, client: Any, module: Any) -> None:
        self._client = client
        self._timed_out: type[Exception] = module.TimedOutError

    def put(self, body: bytes) -> None:
        self._client.put(body)

    def take(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            try:
                job = self._client.reserve(timeout=0)
            except self._timed_out:
                break
            self._client.delete(job)
            found.append(job.body)
        return found

    def close(self) -> None:
        self._client.close()


def missing() -> str | None:
    """The server or the client."""
    return program_missing("beanstalkd") or module_missing("greenstalk")


SERVED = (
    Served("beanstalkd-each", "beanstalkd -b -f 0", "each call", True,
           partial(BeanstalkdServer, 0), missing, has_tasks=False),
    Served("beanstalkd-50ms", "beanstalkd -b -f 50", "up to 50 ms is lost in a power cut", False,
           partial(BeanstalkdServer, 50), missing, has_tasks=False),
)  # fmt: skip
