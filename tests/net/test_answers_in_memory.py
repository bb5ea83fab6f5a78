"""A client that reads no answers, or asks for large ones, takes little memory of the server.

The server is a process of its own. Its peak memory is read before and after.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import timerstore
from tests.support.served_bench import RawClient
from timerstore.net.frames import frame

_MIB = 1 << 20
_SERVER = f"""
import logging, sys, timerstore, timerstore.net
logging.disable(logging.CRITICAL)
with timerstore.open(sys.argv[1]) as store, timerstore.net.serve(store, socket=sys.argv[2]):
    for _ in range(12):
        store.put("big", bytes(2 * {_MIB}), keys=("k",))
    for one in store.receive("big", "dead", max_count=12):
        store.bury(one)
    print("ready", flush=True)
    sys.stdin.read()
"""
_CALLS: dict[str, list[list[Any]]] = {
    "pull": [["pull", ["big", 0, 0], {"max_count": 12}]] * 120,
    "pull that may wait": [["pull", ["big", 0, 0], {"max_count": 12, "wait": 5.0}]] * 120,
    "pull_batch": [["pull_batch", ["big", 0, 0], {"max_count": 12}]] * 120,
    "query": [["query", ["big", "k"]]] * 120,
    "receive": [["receive", ["big", f"g{k}"], {"max_count": 12}] for k in range(120)],
    "receive one": [["receive", ["big", f"g{k}"]] for k in range(500)],
    "dead letters": [["dead_letters", ["dead"]]] * 20,
    "empty maps": [["ack_many", [[{}] * 100_000]]] * 20,
    "texts with a wide character": [["cancel_many", [["\U0001f600" + "a" * 200] * 5_000]]] * 20,
}


@contextmanager
def _server(folder: Path) -> Iterator[tuple[Path, int]]:
    path = folder / "x.sock"
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(folder / "s"), str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield path, server.pid
    finally:
        server.kill()
        server.communicate()


def _peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize("name", ["pull", "receive", "receive one"])
def test_client_that_reads_late_gets_every_answer(name: str, tmp_path: Path) -> None:
    """Its connection is not closed, however large its answers are."""
    with _server(tmp_path) as (path, _):
        raw = RawClient(path)
        raw.hello()
        raw.send_all([2, k, *one] for k, one in enumerate(_CALLS[name][:8], 1))
        time.sleep(0.5)  # the server fills all buffers
        assert sorted(raw.reply()[1] for _ in range(8)) == list(range(1, 9))
        raw.close()


@pytest.mark.parametrize("name", _CALLS)
def test_client_that_reads_nothing_takes_little_memory(name: str, tmp_path: Path) -> None:
    with _server(tmp_path) as (path, pid), timerstore.connect(f"unix://{path}") as other:
        other.pull("big", 0, 0, max_count=12)  # one such answer, read
        before = _peak_bytes(pid)
        raw = socket.socket(socket.AF_UNIX)
        raw.connect(str(path))
        raw.settimeout(1.0)
        calls = [[2, k, *one] for k, one in enumerate(_CALLS[name], 1)]
        if name == "dead letters":
            calls += [[2, 100 + k, "next", [], {}, k] for k in range(1, 21)]
        try:
            for one in ([1, 1], *calls):
                raw.sendall(frame(msgspec.msgpack.encode(one)))
        except (TimeoutError, ConnectionError):
            pass  # the server does not read it any more, or has closed it
        for _ in range(40):
            other.topics()
        grown = _peak_bytes(pid) - before
        raw.close()
    assert grown < 512 * _MIB, f"{grown / _MIB:.0f} MiB"
