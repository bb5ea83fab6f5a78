"""The unit file and the container file of docs/service.md: their commands run."""

import configparser
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

import timerstore
from tests.support.command_line import COMMAND, CommandLine, environment
from tests.support.service_manager import PATIENCE_S, Manager
from timerstore.cli.exits import Exit

pytest.importorskip("prometheus_client")
PAGE = (files("timerstore") / "docs" / "service.md").read_text(encoding="utf-8")


def _block(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(found) == 1
    return str(found[0])


@pytest.fixture
def unit() -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(_block("ini"))
    return found


@pytest.fixture
def started(
    unit: configparser.ConfigParser, ts: CommandLine, tmp_path: Path
) -> Iterator[tuple[Manager, str]]:
    """The command of the unit file, with the paths of this test; and the address of its socket."""
    assert unit["Service"]["Type"] == "notify"
    program, *given = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/bin/timerstore")
    path = ts.init()
    changed = {
        "/var/lib/timerstore/orders.store": str(path),
        "/run/timerstore/orders.sock": str(tmp_path / "orders.sock"),
        "127.0.0.1:9500": "127.0.0.1:0",
        "timerstore": str(tmp_path.stat().st_gid),
    }
    assert changed.keys() <= set(given), "the paths of the unit file"
    command = [*COMMAND, *(changed.get(one, one) for one in given), "--json"]
    manager = Manager(command, str(tmp_path / "notify"))
    yield manager, f"unix://{tmp_path}/orders.sock"
    manager.close()


def test_command_of_the_unit_file_is_restarted_after_a_kill(
    unit: configparser.ConfigParser, started: tuple[Manager, str]
) -> None:
    manager, url = started
    assert unit["Service"]["Restart"] == "always"
    assert manager.state() == "READY=1"
    with timerstore.connect(url) as store:
        store.put("orders", b"1")
        manager.ended(signal.SIGKILL)
        manager.start()
        assert manager.state() == "READY=1"
        store.put("orders", b"2")
        found = [store.receive("orders", "g", wait=PATIENCE_S) for _ in range(2)]
        assert [one.body for messages in found for one in messages] == [b"1", b"2"]
    code, errors = manager.ended(signal.SIGTERM)
    assert code == Exit.FINE, errors
    assert manager.state() == "STOPPING=1"


def test_systemd_accepts_the_unit_file(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("NOT RUN: needs systemd-analyze")
    path = tmp_path / "timerstore.service"
    text = _block("ini").replace("/opt/timerstore/bin/timerstore", sys.executable)
    path.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    told = [one for one in done.stderr.splitlines() if "timerstore.service" in one]
    assert (done.returncode, told) == (0, [])


def test_commands_of_the_container_file(ts: CommandLine, tmp_path: Path) -> None:
    """The first start makes the store; the health check asks the server."""
    lines = _block("dockerfile").splitlines()
    (health,) = (one.partition(" CMD ")[2] for one in lines if one.startswith("HEALTHCHECK"))
    (command,) = (one.removeprefix("CMD ") for one in lines if one.startswith("CMD"))
    here = tmp_path / "container"
    (here / "data").mkdir(parents=True)

    def changed(text: str) -> str:
        text = text.replace("/run/timerstore/", f"{here}/").replace("/data/", f"{here}/data/")
        return text.replace("0.0.0.0:9500", "127.0.0.1:0")

    program = here / "timerstore"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    env = environment()
    env["PATH"] = f"{here}:{env['PATH']}"
    shell, option, script = json.loads(command)
    for _ in range(2):
        with subprocess.Popen(
            [shell, option, changed(script)], stdout=subprocess.PIPE, text=True, env=env
        ) as child:
            assert child.stdout is not None
            while "/metrics" not in child.stdout.readline():
                pass
            name, *given = json.loads(changed(health))
            assert name == "timerstore"
            assert ts(*given).code == Exit.FINE
            child.terminate()
            assert child.wait(PATIENCE_S) == Exit.FINE
        assert ts(*given).code == Exit.LATER
