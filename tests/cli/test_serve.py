"""Command `serve`: addresses, tokens, errors and signals."""

import importlib
import json
import re
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.command_line import COMMAND, CommandLine, environment
from timerstore.cli.exits import Exit

pytest.importorskip("uvicorn")


@pytest.fixture
def store(ts: CommandLine) -> Path:
    return ts.init()


def serving(store: Path, *more: str, **extra: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, "serve", str(store), "--ui", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment(), **extra},
        text=True,
    )


def ended(child: "subprocess.Popen[str]", number: int = signal.SIGINT) -> tuple[int, str]:
    child.send_signal(number)
    _, errors = child.communicate(timeout=30)
    return child.returncode, errors


def test_serve_closes_the_store_on_ctrl_c(store: Path) -> None:
    with serving(store) as child:
        assert child.stdout is not None
        url = child.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", url)
        with urllib.request.urlopen(url, timeout=20) as page:
            assert b"timerstore" in page.read()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url.partition("?")[0], timeout=20)
        assert (store / "abort").exists()
        code, errors = ended(child)
    assert code == Exit.FINE
    assert errors == "anyone with this address has access while this command runs; Ctrl-C ends it\n"
    assert not (store / "abort").exists(), "the store was not closed"


def test_serve_json_shows_the_token_of_the_environment(store: Path) -> None:
    token = "of-the-environment"
    with serving(store, "--json", "--read-only", TIMERSTORE_TOKEN=token) as child:
        assert child.stdout is not None
        address = json.loads(child.stdout.readline())
        assert address == {
            "url": f"http://127.0.0.1:{address['port']}/?token={token}",
            "port": address["port"],
            "token": token,
            "mode": "open",
            "read_only": True,
        }
        assert ended(child, signal.SIGTERM)[0] == Exit.FINE


def test_serve_shows_a_snapshot_when_another_process_owns_the_store(store: Path) -> None:
    with timerstore.open(store), serving(store, "--json") as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["mode"] == "snapshot"
        code, errors = ended(child)
    assert code == Exit.FINE
    assert errors.startswith("another process has the store open: showing a snapshot")


def test_serve_errors_say_what_to_do(ts: CommandLine, store: Path, tmp_path: Path) -> None:
    answer = ts("serve", store)
    assert answer.code == Exit.ERROR
    assert "wanted --socket, --tcp, --grpc or --ui" in answer.err
    assert "init" in ts("serve", tmp_path / "nowhere", "--ui").err
    assert "give a token" in ts("serve", store, "--ui", "--host", "0.0.0.0").err
    assert "wanted 16 to 256" in ts("serve", store, "--ui", "--token", "short").err
    assert "65536" in ts("serve", store, "--ui", "--port", 65_536).err
    assert not (store / "abort").exists()


def test_serve_without_the_extra_shows_the_install_command(
    ts: CommandLine, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = importlib.import_module

    def without(name: str, *more: Any) -> Any:
        if name == "timerstore.dashboard":
            raise timerstore.ConfigError("serve: starlette is not installed")
        return load(name, *more)

    monkeypatch.setattr(importlib, "import_module", without)
    answer = ts("serve", store, "--ui", "--json")
    assert answer.code == Exit.ERROR
    error = json.loads(answer.err)
    assert "starlette and uvicorn" in error["what"]
    assert error["do"] == "pip install '.[serve]' in a checkout"


def test_dashboard_import_without_the_extra_raises_config_error(store: Path) -> None:
    program = (
        "import sys\n"
        "sys.modules['uvicorn'] = None\n"
        "try:\n"
        "    import timerstore.dashboard\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [COMMAND[0], "-c", program], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        "ConfigError serve: uvicorn is not installed; pip install '.[serve]' in a checkout\n"
    )


def test_serve_socket_serves_programs_and_the_dashboard(store: Path, tmp_path: Path) -> None:
    socket = tmp_path / "orders.sock"
    with serving(store, "--socket", str(socket), "--json") as child:
        assert child.stdout is not None
        shown = json.loads(child.stdout.readline())
        assert shown["urls"] == [f"unix://{socket}"]
        assert shown["mode"] == "open"
        assert socket.stat().st_mode & 0o777 == 0o600
        with timerstore.connect(shown["urls"][0]) as remote:
            remote.put("orders", b"x")
            (found,) = remote.receive("orders", "g", wait=20)
            assert found.body == b"x"
        with urllib.request.urlopen(shown["url"], timeout=20) as page:
            assert b"timerstore" in page.read()
        code, errors = ended(child, signal.SIGTERM)
    assert code == Exit.FINE, errors
    assert not (store / "abort").exists(), "the store was not closed"
    assert not socket.exists()


def test_serve_metrics_has_the_counters_of_the_server(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    options = ("--socket", str(tmp_path / "x.sock"), "--metrics", "127.0.0.1:0")
    with serving(store, *options) as child:
        assert child.stdout is not None
        unix, metrics, page = (child.stdout.readline().strip() for _ in range(3))
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", metrics)
        assert "?token=" in page
        with timerstore.connect(unix), urllib.request.urlopen(metrics, timeout=20) as answer:
            text = answer.read().decode()
        code, errors = ended(child, signal.SIGTERM)
    assert code == Exit.FINE, errors
    assert f'timerstore_net_connections{{shard="",store="{store.name}"}} 1.0' in text


def test_serve_socket_errors_say_what_to_do(ts: CommandLine, store: Path, tmp_path: Path) -> None:
    busy = tmp_path / "busy"
    busy.write_bytes(b"")
    assert "got a file" in ts("serve", store, "--socket", busy).err
    assert "token_file" in ts("serve", store, "--tcp", "127.0.0.1:0").err
    assert "HOST:PORT" in ts("serve", store, "--tcp", "nonsense").err
    assert "--tls-key" in ts("serve", store, "--tcp", "127.0.0.1:0", "--tls-cert", busy).err
    assert "--snapshot" in ts("serve", store, "--socket", busy, "--snapshot").err
    assert "wanted --tcp" in ts("serve", store, "--ui", "--token-file", busy).err
    assert "wanted --tcp" in ts("serve", store, "--socket", busy, "--insecure").err
    assert "wanted --socket" in ts("serve", store, "--tcp", "127.0.0.1:0", "--user", "7").err
    assert "wanted --socket" in ts("serve", store, "--ui", "--metrics", "127.0.0.1:0").err
    given = ("--socket", tmp_path / "x.sock", "--metrics", "9500")
    assert "metrics: wanted HOST:PORT, got '9500'" in ts("serve", store, *given).err
    assert "no store" in ts("serve", tmp_path / "nowhere", "--socket", busy).err
    open_token = tmp_path / "token"
    open_token.write_text("0123456789abcdef")
    open_token.chmod(0o644)
    answer = ts("serve", store, "--tcp", "127.0.0.1:0", "--token-file", open_token)
    assert "chmod 600" in answer.err
    open_token.chmod(0o600)
    answer = ts("serve", store, "--tcp", "0.0.0.0:0", "--token-file", open_token)
    assert "not loopback" in answer.err
    assert not (store / "abort").exists()
