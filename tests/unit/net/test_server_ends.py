"""The end of a server: by its store, or with its process."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

import timerstore
import timerstore.net
from tests.support.bench import Bench, small
from tests.support.command_line import environment
from tests.support.held_sync import PATIENCE_S
from tests.support.served_bench import ServedBench
from timerstore import ClosedError, ConnectionLostError, TimerStoreError, UnavailableError
from timerstore.net import store_server
from timerstore.net.endpoints import parse_endpoint
from timerstore.net.listening import identity_of
from timerstore.net.remote_store import RemoteStore
from timerstore.net.shared_store import open_shared
from timerstore.net.store_server import StoreServer

_SERVING = """
import sys, timerstore, timerstore.net
store = timerstore.open(sys.argv[1])
print(timerstore.net.serve(store, socket=sys.argv[2]).urls[0], flush=True)
sys.stdin.readline()  # then the program exits without a close
"""


def _error_of(call: Callable[[], object]) -> TimerStoreError:
    """Repeat a call until it raises an error, and return this."""
    try:
        while True:
            call()
    except TimerStoreError as error:
        return error


def test_close_of_the_store_ends_its_server(served: ServedBench, remote: RemoteStore) -> None:
    other = served.connect(retry_for=0)
    raw = served.raw()
    raw.hello()
    raw.send([2, 1, "receive", ["t", "g"], {"wait": 60.0}])
    while not served.server.stats()["net_waiting_requests"]:
        pass
    served.bench.store.close()
    assert served.server.wait(0), "the server still runs"
    assert raw.is_closed_by_server()
    assert not served.path.exists()
    with pytest.raises(ConnectionLostError):
        other.put("t", b"x")
    with pytest.raises(UnavailableError):
        other.put("t", b"x")
    with pytest.raises(ClosedError):
        served.bench.store.topics()


def test_close_ends_every_socket_of_the_server(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 16)
    token.chmod(0o600)
    served = ServedBench(
        Bench(tmp_path / "store"), tmp_path / "x.sock", tcp="127.0.0.1:0", token_file=token
    )
    ports = [parse_endpoint(url).port for url in served.server.urls]
    served.close()
    assert not served.path.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", max(ports)), PATIENCE_S)


def test_server_that_is_closed_before_its_loop_runs_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may close the store while the server starts."""
    real = StoreServer._run

    def run(self: StoreServer) -> None:
        self._is_closed = True  # as `close` before it waits for the thread
        self._request_end()
        real(self)

    monkeypatch.setattr(StoreServer, "_run", run)
    served = ServedBench(Bench(tmp_path / "store"), tmp_path / "x.sock")
    try:
        assert served.server.wait(PATIENCE_S)
    finally:
        served.server._request_end()
        served.close()


def test_close_of_the_server_meets_connections_that_begin(tmp_path: Path) -> None:
    """One that was accepted and not started yet was neither closed nor forgotten."""
    for k in range(30):
        served = ServedBench(Bench(tmp_path / f"store{k}"), tmp_path / "x.sock")
        raws = [served.raw() for _ in range(8)]
        served.server.close()
        assert served.server.stats()["net_connections"] == 0
        assert all(one.is_closed_by_server() for one in raws)
        served.close()


def test_server_ends_when_the_file_of_its_socket_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_server, "_LOOK_S", 0.01)
    path, other = tmp_path / "x.sock", tmp_path / "y.sock"
    served = ServedBench(Bench(tmp_path / "store"), path)
    remote = served.connect()
    remote.put("t", b"0")
    path.unlink()
    with pytest.raises(UnavailableError, match=r"removed or replaced; at .*x\.sock"):
        served.server.wait(60)
    with timerstore.net.serve(served.bench.store, socket=path) as second:
        assert remote.put("t", b"1").topic == "t"
        with socket.socket(socket.AF_UNIX) as foreign:
            foreign.bind(str(other))
            other.rename(path)
            with pytest.raises(UnavailableError, match="removed or replaced"):
                second.wait(60)
    assert path.exists(), "the file belongs to another one"
    served.close()


def test_owner_of_a_shared_store_makes_its_socket_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_server, "_LOOK_S", 0.01)
    path = tmp_path / "s" / "timerstore" / "server.sock"
    with open_shared(tmp_path / "s", small()) as owner, open_shared(tmp_path / "s", small()) as one:
        assert owner._shared._owned is not None
        server = owner._shared._owned[1]
        path.unlink()
        with pytest.raises(UnavailableError, match="removed or replaced"):
            server.wait(60)
        with open_shared(tmp_path / "s", small()) as new:
            assert [store.put("t", b"x").topic for store in (owner, one, new)] == ["t"] * 3
            while not path.exists():  # the owner serves on its watching thread
                pass


def test_file_of_the_next_server_stays(tmp_path: Path) -> None:
    """A socket that is closed gives its inode to the next file, so it is compared before."""
    first = ServedBench(Bench(tmp_path / "store"), tmp_path / "x.sock")
    identity = identity_of(first.path)
    assert identity is not None
    first.path.unlink()
    with timerstore.net.serve(first.bench.store, socket=first.path):
        assert identity_of(first.path) != identity
        first.server.close()
        assert first.path.exists()
    assert not first.path.exists()
    first.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_child_does_not_keep_connections_open(served: ServedBench) -> None:
    raw = served.raw()
    raw.hello()
    raw.socket.settimeout(5)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(theirs)
        os.read(ours, 1)  # until the parent closes it
        os._exit(0)
    os.close(ours)
    served.server.close()
    is_closed = raw.is_closed_by_server()
    os.close(theirs)
    os.waitpid(child, 0)
    assert is_closed, "the child holds the connection"


def test_calls_during_the_close_of_the_store_go_to_the_next_server(tmp_path: Path) -> None:
    """A put was answered by the store that closed, or is stored once in the next one."""
    served = ServedBench(Bench(tmp_path / "store"), tmp_path / "x.sock")
    remotes = [served.connect() for _ in range(3)]
    first_has, second_has = Event(), Event()
    with ThreadPoolExecutor(3) as pool:
        putting = [pool.submit(_put_all, remote, first_has, second_has) for remote in remotes]
        assert first_has.wait(60)
        served.bench.reopen()
        second = timerstore.net.serve(served.bench.store, socket=tmp_path / "x.sock")
        second_has.set()
        counts = [one.result(60) for one in putting]
    served.bench.turn()
    wanted = [b"%d" % k for count in counts for k in range(count)]
    assert sorted(served.bench.bodies("t")) == sorted(wanted)
    assert second.stats()["net_requests"] > 0
    second.close()
    served.close()


def _put_all(remote: RemoteStore, first_has: Event, second_has: Event) -> int:
    """Put until the second server had a put of this client; return how many were put."""
    count = 0
    while True:
        is_last = second_has.is_set()
        remote.put("t", b"%d" % count)
        count += 1
        if count == 30:
            first_has.set()
        if is_last:
            return count


def test_clients_of_a_program_that_exits_look_for_another_server(tmp_path: Path) -> None:
    """The calls of that moment raised ServerError: the threads of the server take no more calls."""
    paths = [str(tmp_path / "store"), str(tmp_path / "x.sock")]
    with subprocess.Popen(
        [sys.executable, "-c", _SERVING, *paths],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        remote = timerstore.connect(child.stdout.readline().strip(), retry_for=1)
        remote.put("t", b"x")
        calls: list[Callable[[], object]] = [
            lambda: remote.topics(),
            lambda: remote.query("t", "k"),
            lambda: remote.receive("t", "g"),
            lambda: remote.receive("u", "g", wait=60),
        ]
        with ThreadPoolExecutor(len(calls)) as pool:
            errors = [pool.submit(_error_of, one) for one in calls]
            child.stdin.close()
            found = [one.result(60) for one in errors]
        assert child.stderr is not None
        told = child.stderr.read()
    assert {type(one) for one in found} <= {UnavailableError, ConnectionLostError}, (found, told)
    assert child.returncode == 0, told
    assert "Traceback" not in told
    remote.close()
