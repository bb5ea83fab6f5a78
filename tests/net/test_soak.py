"""200 clients, half of which are killed again and again: the server keeps nothing of them."""

import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import timerstore
from tests.support.amounts import both
from tests.support.bench import small
from tests.support.command_line import COMMAND, environment

PROCESSES = 10
CLIENTS = 20
"""Of each process."""
MEMORY_BYTES_MAX = 48 << 20  # by which the server may grow after its first round
_DEADLINE_S = 240


class Soak:
    def __init__(self, folder: Path, clients: int) -> None:
        self._folder = folder
        self._clients = clients
        with timerstore.open(folder / "store", small(flush="sync")) as store:
            store.put("other", b"x")  # fixes the sizes of the files
        self.url = f"unix://{folder}/x.sock"
        self.server = self._start(
            [*COMMAND, "serve", str(folder / "store"), "--socket", f"{folder}/x.sock"]
        )
        self.store = timerstore.connect(self.url, retry_for=120)
        self.processes = [self.start() for _ in range(PROCESSES)]

    def _start(self, command: list[str]) -> "subprocess.Popen[bytes]":
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment())

    def start(self) -> "subprocess.Popen[bytes]":
        return self._start(
            [sys.executable, "-m", "tests.net.soak_client", self.url, str(self._clients)]
        )

    def kill_half(self) -> None:
        for one in random.sample(self.processes, PROCESSES // 2):
            one.kill()
            one.wait()
            self.processes[self.processes.index(one)] = self.start()

    def wait_for(self, name: str, number: int) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while (found := self.store.stats()[name]) != number:
            assert time.monotonic() < deadline, (name, found, self.log())
            time.sleep(0.1)

    def log(self) -> str:
        return (self._folder / "log").read_text()

    def socket_count(self) -> int:
        """Return how many sockets the server has. Files of the store grow with its messages."""
        count = 0
        for one in Path(f"/proc/{self.server.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since
                count += str(one.readlink()).startswith("socket:")
        return count

    def memory_bytes(self) -> int:
        """Return the server's own memory. Mapped files of the store grow with its messages."""
        lines = Path(f"/proc/{self.server.pid}/status").read_text().splitlines()
        (found,) = (line.split()[1] for line in lines if line.startswith("RssAnon:"))
        return 1024 * int(found)

    def end_clients(self) -> None:
        for one in self.processes:
            one.kill()
        for one in self.processes:
            one.wait()

    def close(self) -> None:
        self.end_clients()
        self.store.close()
        self.server.terminate()
        self.server.wait(60)


def _soak(folder: Path, rounds: int, clients: int, seconds: float) -> None:
    random.seed(1)
    soak = Soak(folder, clients)
    try:
        soak.wait_for("net_connections", PROCESSES * clients + 1)
        memory_bytes = 0
        for _ in range(rounds):
            time.sleep(seconds)
            soak.kill_half()
            soak.wait_for("net_connections", PROCESSES * clients + 1)
            memory_bytes = memory_bytes or soak.memory_bytes()
        grown_bytes = soak.memory_bytes() - memory_bytes
        soak.end_clients()
        for name in ("net_connections", "net_running_requests"):
            soak.wait_for(name, 1)  # this client, and its call
        soak.wait_for("net_waiting_requests", 0)
        stats = soak.store.stats()
        print(f"{stats['net_requests']} calls, grown by {grown_bytes / 1e6:.0f} MB")
        assert stats["net_broken_connections"] == 0
        assert stats["net_returned_leases"] > 0
        assert grown_bytes < MEMORY_BYTES_MAX
        _no_lease_is_left(soak.store)
        assert soak.socket_count() < 10
        assert "Traceback" not in soak.log()
    finally:
        soak.close()


def _no_lease_is_left(store: timerstore.store.ConnectedStore) -> None:
    """Receive everything: what a killed client had leased for an hour was given back."""
    deadline = time.monotonic() + _DEADLINE_S
    for k in range(4):
        while found := store.receive(f"t{k}", "leased", max_count=500, wait=1.0):
            store.ack_many(found)
            assert time.monotonic() < deadline
    leases = [one for one in store.pending() if one.topic.startswith("%RETRY%")]
    assert leases == []


@pytest.mark.more
@pytest.mark.timeout(590)
@pytest.mark.parametrize("rounds", both("rounds of a soak"))
def test_server_keeps_nothing_of_killed_clients(tmp_path: Path, rounds: int) -> None:
    _soak(tmp_path, rounds, clients=4, seconds=1.0)


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_server_keeps_nothing_of_200_clients_in_ten_minutes(tmp_path: Path) -> None:
    _soak(tmp_path, 60, CLIENTS, seconds=10.0)
