"""The server over a real socket: start, stop, invalid arguments, a locked store."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import Bench, small
from tests.support.broker import fixtures as broker_fixtures
from tests.support.command_line import environment
from tests.support.inside import clock_listeners, store_of_page
from tests.support.paged import TOKEN, Line, Paged
from timerstore import dashboard
from timerstore.dashboard.server import TOKEN_CHARACTERS_MIN
from timerstore.errors import ClosedError, ConfigError

AUTHORIZATION = f"Bearer {TOKEN}"


def test_server_serves_current_numbers(bench: Bench) -> None:
    with dashboard.start(bench.store, token=TOKEN, every_s=0.02) as served:
        assert served.url == f"http://127.0.0.1:{served.port}/?token={TOKEN}"
        page = Line(served, f"/?token={TOKEN}")
        assert page.answer.status == 200
        assert b"<title>timerstore</title>" in page.read()
        events = Line(served, "/events?turn=1m", Authorization=AUTHORIZATION)
        assert events.answer.headers["content-type"].startswith("text/event-stream")
        assert events.frame()[0] == "about"
        assert events.frame()[1]["pending"] == 0
        bench.store.put("t", b"x", delay=1)
        while events.frame()[1]["pending"] != 1:
            pass
        bench.turn(1000)
        while (told := events.frame()[1])["pending"]:
            pass
        assert told["now_ms"] == bench.clock.now_ms
        refused = Line(served, "/")
        assert refused.answer.status == 401
        refused.close()
        events.close()
        page.close()
    assert bench.store.stats()["pending_messages"] == 0, "the store stays open"


def test_close_ends_streams_and_frees_the_port(bench: Bench) -> None:
    served = dashboard.start(bench.store, token=TOKEN, every_s=60)
    events = Line(served, "/events", Authorization=AUTHORIZATION)
    assert events.frame()[0] == "about"
    begin = time.monotonic()
    served.close()
    assert time.monotonic() - begin < 20, "it does not wait for the next minute's event"
    rest = events.read()
    assert rest.count(b"event: now") <= 1
    events.close()
    served.close()
    assert served.wait(0)
    with socket.create_server(("127.0.0.1", served.port)):
        pass
    assert not any(one.name == "timerstore-serve" for one in threading.enumerate())
    assert len(clock_listeners(bench.clock)) <= 1, "the store's own"


def test_start_opens_and_closes_a_path(tmp_path: Path) -> None:
    path = tmp_path / "store"
    timerstore.open(path, small()).close()
    with dashboard.start(str(path), config=small(wheel_slot_count=128)) as served:
        assert (path / "abort").exists(), "it is open"
        assert served.about()["mode"] == "open"
    assert not (path / "abort").exists()
    assert len(served.token) >= 40
    with dashboard.start(path, config=small()) as again:
        assert again.token != served.token


def test_start_reads_a_snapshot_when_the_store_is_locked(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with timerstore.open(path, small()) as store:
        store.put("orders", b"x", delay=3600)
        store.flush()
        with dashboard.start(path, token=TOKEN, every_s=0.02) as served:
            assert (served.about()["mode"], served.about()["read_only"]) == ("snapshot", True)
            events = Line(served, "/events", Authorization=AUTHORIZATION)
            events.frame()
            told = events.frame()[1]
            assert (told["pending"], told["topics"]) == (1, [["orders", 1]])
            for ask in ("/api/search?message=x", "/api/rows?begin_ms=0&end_ms=1"):
                refused = Line(served, ask, Authorization=AUTHORIZATION)
                assert refused.answer.status == 403
                assert b"reads a snapshot" in refused.read()
                refused.close()
            events.close()
        store.put("orders", b"y")


def test_snapshot_does_not_open_the_store(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with timerstore.open(path, small()) as store:
        store.put("orders", b"x", delay=0.001)
    before = {one: one.stat().st_mtime_ns for one in path.rglob("*") if one.is_file()}
    with dashboard.start(path, snapshot=True, token=TOKEN) as served:
        events = Line(served, "/events", Authorization=AUTHORIZATION)
        assert [events.frame()[0] for _ in range(2)] == ["about", "now"]
        events.close()
    assert {one: one.stat().st_mtime_ns for one in path.rglob("*") if one.is_file()} == before


def test_start_reads_a_broker_store_without_converting_it(tmp_path: Path) -> None:
    path = broker_fixtures.unpack("clean-small-segments", tmp_path / "broker")
    before = {one: one.read_bytes() for one in path.rglob("*") if one.is_file()}
    with dashboard.start(path, token=TOKEN) as served:
        about = served.about()
        assert (about["mode"], about["brokers"]) == ("snapshot", True)
        events = Line(served, "/events", Authorization=AUTHORIZATION)
        events.frame()
        told = events.frame()[1]
        assert told["pending"] > 0, "counted in its log"
        assert sum(count for _, count in told["topics"]) == told["pending"]
        assert (told["late"] > 0, told["holder"]) == (True, None)
        events.close()
    assert {one: one.read_bytes() for one in path.rglob("*") if one.is_file()} == before


def test_start_opens_shards(tmp_path: Path) -> None:
    path = tmp_path / "shards"
    timerstore.open_shards(path, 2, small()).close()
    with dashboard.start(path, config=small()) as served:
        assert served.about()["shards"] == 2
        with dashboard.start(path, snapshot=True) as shown:
            assert (shown.about()["shards"], shown.about()["mode"]) == (2, "snapshot")


# --- given wrongly --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"port": 65_536}, "port: wanted 0 .* to 65535, got 65536"),
        ({"port": -1}, "port: wanted"),
        ({"port": True}, "port: wanted"),
        ({"port": "80"}, "port: wanted"),
        ({"token": "x" * (TOKEN_CHARACTERS_MIN - 1)}, "token: wanted 16 to 256"),
        ({"token": "x" * 257}, "token: wanted 16 to 256"),
        ({"token": "x" * 15 + "&"}, "token: wanted"),
        ({"token": "x" * 15 + "ü"}, "token: wanted"),
        ({"token": ""}, "token: wanted"),
        ({"token": 7}, "token: wanted"),
        ({"host": "0.0.0.0"}, "host: 0.0.0.0 is not loopback, .* give a token"),
        ({"host": "box.lan"}, "is not loopback"),
        ({"host": ""}, "host: wanted a name"),
        ({"host": None}, "host: wanted a name"),
        ({"every_s": 0}, "every_s: wanted 0.02 to 60 s"),
        ({"every_s": float("nan")}, "every_s: wanted"),
        ({"host": "no-such-host.invalid", "token": TOKEN}, "port: cannot listen on"),
        ({"host": "x" * 70, "token": TOKEN}, "port: cannot listen on xxx"),
        ({"host": "a..b", "token": TOKEN}, r"port: cannot listen on a\.\.b port 0 \("),
        ({"host": "a\0b", "token": TOKEN}, "port: cannot listen on"),
        ({"host": "\ud800", "token": TOKEN}, "port: cannot listen on"),
        ({"snapshot": True}, "snapshot: wanted a path"),
    ],
)
def test_start_rejects_invalid_arguments(
    still: Paged, given: dict[str, object], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        dashboard.start(store_of_page(still.source), **given)  # type: ignore[arg-type]
    assert not any(one.name == "timerstore-serve" for one in threading.enumerate())


def test_start_reports_all_invalid_arguments_at_once(bench: Bench) -> None:
    with pytest.raises(ConfigError) as caught:
        dashboard.start(bench.store, "", -1, "short", every_s=0)
    assert len(caught.value.problems) == 4


def test_start_accepts_limits(bench: Bench) -> None:
    for token in ("x" * TOKEN_CHARACTERS_MIN, "x" * 256, "-._~" * 4):
        with dashboard.start(bench.store, token=token, every_s=60) as served:
            assert served.token == token


def test_start_rejects_a_port_in_use(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port} .*in use"):
            dashboard.start(bench.store, port=port)


@pytest.mark.parametrize("store", [None, 7, b"path"])
def test_start_rejects_an_argument_that_is_no_store(store: object) -> None:
    with pytest.raises(ConfigError, match="store: wanted a store or a path"):
        dashboard.start(store)  # type: ignore[arg-type]


def test_start_rejects_a_path_without_a_store(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="no store there"):
            dashboard.start(path)
    assert list(tmp_path.iterdir()) == []


def test_page_reports_a_closed_store(bench: Bench) -> None:
    with dashboard.start(bench.store, token=TOKEN, every_s=0.02) as served:
        events = Line(served, "/events", Authorization=AUTHORIZATION)
        assert events.frame()[0] == "about"
        bench.close()
        while (told := events.frame())[0] == "now":
            pass
        assert (told[0], told[1]["error"]) == ("failed", "ClosedError")
        events.close()
        with pytest.raises(ClosedError):
            bench.store.stats()
    bench.open()


# --- run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_ends_on_a_signal(tmp_path: Path, number: int) -> None:
    path = tmp_path / "store"
    timerstore.open(path, small()).close()
    program = f"from timerstore import dashboard; dashboard.run({str(path)!r}); print('closed')"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    ) as child:
        assert child.stdout is not None
        url = child.stdout.readline()
        assert url.startswith("http://127.0.0.1:")
        assert (path / "abort").exists()
        child.send_signal(number)
        out, errors = child.communicate(timeout=30)
    assert (child.returncode, out, errors) == (0, "closed\n", "")
    assert not (path / "abort").exists(), "it was closed, not torn off"


def test_run_announces_its_address_and_restores_signal_handlers(bench: Bench) -> None:
    before = signal.getsignal(signal.SIGINT)
    told = []

    def tell(url: str) -> None:
        told.append(url)
        os.kill(os.getpid(), signal.SIGINT)

    dashboard.run(bench.store, token=TOKEN, announce=tell)
    assert told[0].endswith(TOKEN)
    assert signal.getsignal(signal.SIGINT) is before
