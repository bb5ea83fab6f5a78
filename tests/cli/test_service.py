"""`serve` as a service: signals, the failure of the store, the service manager, the health page."""

import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import timerstore
import timerstore.net
from tests.support.command_line import COMMAND, CommandLine, environment
from tests.support.service_manager import Manager
from timerstore import ConnectionLostError, UnavailableError
from timerstore._engine.leases.group_backlogs import GroupBacklogs
from timerstore.aio import AsyncTimerStore
from timerstore.cli.exits import Exit

PATIENCE_S = 60


@pytest.fixture
def store(ts: CommandLine) -> Path:
    return ts.init()


@pytest.fixture
def managers() -> Iterator[list[Manager]]:
    found: list[Manager] = []
    yield found
    for one in found:
        one.close()


def _damage_a_due_record(store: Path) -> None:
    with timerstore.open(store) as opened:
        opened.put_many("t", [b"body-%d" % k for k in range(10)], delay=3600)
        receipt = opened.put("t", b"body-damaged", delay=0.2)
    with next((store / "commitlog").iterdir()).open("r+b") as file:
        file.seek(file.read(1_000_000).find(b"body-damaged") + 5)
        file.write(b"X")
    while time.time() * 1000 <= receipt.due_ms:
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_a_service_with_0(
    store: Path, tmp_path: Path, managers: list[Manager], number: int
) -> None:
    """Also with a client that waits."""
    command = [*COMMAND, "serve", str(store), "--socket", str(tmp_path / "x.sock")]
    manager = Manager(command, f"@timerstore-{os.getpid()}-{int(number)}")
    managers.append(manager)
    assert manager.state() == "READY=1"
    url = manager.first_line()
    with timerstore.connect(url, retry_for=0) as remote, timerstore.connect(url) as other:
        error: list[BaseException] = []

        def wait() -> None:
            try:
                remote.receive("t", "g", wait=3600)
            except ConnectionLostError as one:
                error.append(one)

        waiting = threading.Thread(target=wait)
        waiting.start()
        while not other.stats()["net_waiting_requests"]:
            pass
        code, errors = manager.ended(number)
        waiting.join(PATIENCE_S)
    assert code == Exit.FINE, errors
    assert manager.state() == "STOPPING=1"
    assert error
    assert not (store / "abort").exists(), "the store was not closed"


def test_signal_during_the_start_of_a_service_is_a_success(store: Path, tmp_path: Path) -> None:
    """Before Python has a handler, the signal itself ends the process, which is clean, too."""
    for delay_s in (0.02, 0.1, 0.2, 0.3, 0.5):
        command = [*COMMAND, "serve", str(store), "--socket", str(tmp_path / "x.sock")]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        ) as child:
            time.sleep(delay_s)
            child.terminate()
            _, errors = child.communicate(timeout=PATIENCE_S)
        assert child.returncode in (Exit.FINE, -signal.SIGTERM), (delay_s, errors)
        assert not (store / "abort").exists()


def test_service_of_a_failed_store_ends_and_is_started_again(
    store: Path, tmp_path: Path, managers: list[Manager]
) -> None:
    _damage_a_due_record(store)
    path = tmp_path / "notify"
    command = [*COMMAND, "serve", str(store), "--socket", str(tmp_path / "x.sock"), "--json"]
    manager = Manager(command, str(path))
    managers.append(manager)
    for _ in range(2):
        assert [manager.state(), manager.state()] == ["READY=1", "STOPPING=1"]
        assert str(tmp_path / "x.sock") in manager.first_line()
        code, errors = manager.ended()
        assert code == Exit.FAILED, errors
        assert "must be reopened" in errors
        assert '"exit": 5' in errors
        assert "start it again" in errors
        timerstore.verify_directory(store)  # the lock is free
        with pytest.raises(UnavailableError):
            timerstore.connect(f"unix://{tmp_path}/x.sock", retry_for=0)
        manager.start()
    manager.ended(signal.SIGTERM)


def test_dashboard_of_a_failed_store_ends(store: Path) -> None:
    pytest.importorskip("uvicorn")
    _damage_a_due_record(store)
    done = subprocess.run(
        [*COMMAND, "serve", str(store), "--ui"],
        env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == Exit.FAILED, done.stderr


def test_state_that_cannot_be_sent_is_printed(store: Path, tmp_path: Path) -> None:
    env = {**environment(), "NOTIFY_SOCKET": str(tmp_path / "nowhere")}
    command = [*COMMAND, "serve", str(store), "--socket", str(tmp_path / "x.sock")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        child.terminate()
        _, errors = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == Exit.FINE
    assert "NOTIFY_SOCKET: cannot send STOPPING=1 ([Errno 2]" in errors


def test_ping(ts: CommandLine, store: Path, tmp_path: Path, managers: list[Manager]) -> None:
    path = tmp_path / "x.sock"
    command = [*COMMAND, "serve", str(store), "--socket", str(path)]
    manager = Manager(command, str(tmp_path / "notify"))
    managers.append(manager)
    assert manager.state() == "READY=1"
    url = f"unix://{path}"
    answer = ts("ping", url)
    assert answer.code == Exit.FINE, answer.err
    assert answer.out.startswith(f"{url}: {store} answered in ")
    found = json.loads(ts("ping", url, "--json").out)
    assert (found["url"], found["path"]) == (url, str(store))
    assert found["round_trip_ms"] > 0
    os.kill(manager.child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, manager.child.pid, os.WSTOPPED)
    try:
        answer = ts("ping", url, "--within", "200ms")
    finally:
        os.kill(manager.child.pid, signal.SIGCONT)
    assert answer.code == Exit.LATER
    assert "the server does not answer" in answer.err
    manager.ended(signal.SIGTERM)
    assert ts("ping", url).code == Exit.LATER
    answer = ts("ping", store)
    assert answer.code == Exit.ERROR
    assert "URL: wanted unix://, tcp:// or tls://" in answer.err


def test_health_page(store: Path, tmp_path: Path) -> None:
    prometheus = pytest.importorskip("timerstore.telemetry.prometheus")
    opened = timerstore.open(store)
    with prometheus.serve(opened) as server:
        url = server.url.replace("/metrics", "/health")
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert (answer.status, answer.read()) == (200, b"ok\n")
        opened._log.fail(timerstore.FailedError("sync: Input/output error"))
        assert "sync: Input/output error" in _unhealthy(url)
        opened.close()
        assert "the store is closed" in _unhealthy(url)
    with (
        timerstore.open_shards(tmp_path / "shards", 2) as shards,
        prometheus.serve({"orders": shards}) as server,
    ):
        url = server.url.replace("/metrics", "/health")
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert answer.read() == b"ok\n"
        shards.stores[1]._log.fail(timerstore.FailedError("sync: Input/output error"))
        assert _unhealthy(url).startswith("orders: the store has failed")


def _unhealthy(url: str) -> str:
    with pytest.raises(urllib.error.HTTPError, match="503") as found:
        urllib.request.urlopen(url, timeout=20)
    return found.value.read().decode()


def test_ping_counts_nothing(
    ts: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first count of groups after an opening reads all pending messages: seconds for many."""

    def count(*_arguments: object) -> None:
        raise AssertionError("groups were counted")

    monkeypatch.setattr(GroupBacklogs, "all_of", count)
    with (
        timerstore.open(tmp_path / "store") as opened,
        timerstore.net.serve(opened, socket=tmp_path / "x.sock") as server,
    ):
        assert ts("ping", server.urls[0]).code == Exit.FINE


def test_ping_reports_the_error_of_the_store(
    ts: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_store: AsyncTimerStore) -> None:
        raise timerstore.FullError("the disk is full")

    monkeypatch.setattr(AsyncTimerStore, "topics", fail)
    with (
        timerstore.open(tmp_path / "store") as opened,
        timerstore.net.serve(opened, socket=tmp_path / "x.sock") as server,
    ):
        answer = ts("ping", server.urls[0])
    assert (answer.code, answer.out) == (Exit.LATER, "")
    assert "the disk is full" in answer.err
