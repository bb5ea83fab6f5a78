"""Clients that are killed at random leave no lease, poll, stream or descriptor."""

import random
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import timerstore
import timerstore.rocketmq
from tests.support.bench import small
from tests.support.rocketmq_bench import RawCaller
from timerstore.rocketmq import known_clients

PROCESSES = 40
CLIENTS = 25
"""Of each process. They are no official ones, of which a machine cannot run a thousand."""
AT_A_TIME = 4
END_S = 120


def test_descriptors_are_counted(tmp_path: Path) -> None:
    before = descriptors(tmp_path)
    with Path("/dev/null").open(), (tmp_path / "file").open("w"):
        assert descriptors(tmp_path) == before + 1


def descriptors(folder: Path) -> int:
    """Return how many descriptors this process has, without those of files in a folder."""
    count = 0
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing
            count += folder not in one.readlink().parents
    return count


def killed(address: str, seed: int) -> bool:
    """Kill a process with clients at a random time; return whether they all were waiting."""
    chance = random.Random(seed)
    words = [sys.executable, "-m", "tests.support.rocketmq_clients", address, str(CLIENTS)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        is_ready = seed % 2 == 0 and one.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0, 0.2 if is_ready else 2))
        one.kill()
    return is_ready


@pytest.mark.more
@pytest.mark.timeout(900)
def test_killed_clients_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(known_clients, "ABSENT_S", 1.0)
    count = PROCESSES * CLIENTS
    with (
        timerstore.open(tmp_path / "store", small()) as store,
        timerstore.rocketmq.serve(store, address="127.0.0.1:0") as server,
    ):
        store.put_many("t", [b"%d" % k for k in range(count)])
        caller = RawCaller(server.address)
        assert caller.receive("u") == []  # what the first call opens stays open
        before = descriptors(tmp_path)
        ready: list[bool] = []

        def kill_some(first: int) -> None:
            ready.extend(killed(server.address, k) for k in range(first, PROCESSES, AT_A_TIME))

        threads = [threading.Thread(target=kill_some, args=(k,)) for k in range(AT_A_TIME)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert ready.count(True) == PROCESSES // 2
        assert server.stats()["net_accepted_connections"] >= count // 2
        end = time.monotonic() + END_S
        found = 0
        while found < count:  # each message is leased to this caller, until it has all of them
            assert time.monotonic() < end, (found, server.stats())
            found += len(store.receive("t", "g", max_count=count, wait=0.2, lease=2 * END_S))
        stats = server.stats()
        assert stats["net_connections"] == stats["net_waiting_requests"] == 0
        assert stats["net_running_requests"] == 0
        assert stats["net_returned_leases"] >= count // 2
        while descriptors(tmp_path) > before:
            assert time.monotonic() < end, (descriptors(tmp_path), before)
            time.sleep(0.1)
        caller.close()
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []
