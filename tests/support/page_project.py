"""A project that a page of the documentation shows, and its processes. The page has each file as

`shop/tasks.py`:

```python no-run
...
```
"""

import json
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.support.command_line import environment
from tests.support.snippets import GUIDES

DEADLINE_S = 60
_FILE = re.compile(r"^`([\w./]+)`[^`\n]*:\n\n```\w+[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def write_project(page: str, folder: Path, changes: Mapping[str, str]) -> list[str]:
    """Write the files of a page below a folder, with some texts replaced. Return their names."""
    found = _FILE.findall((GUIDES / page).read_text("utf-8"))
    for name, shown in found:
        text = shown
        for old, new in changes.items():
            text = text.replace(old, new)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return [name for name, _ in found]


class Processes:
    """Processes that run in the folder of a project, each with a log there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=self._folder, env=environment(), stdout=log, stderr=log
            )
        self._running.append(process)
        return process

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def stop(self) -> None:
        """End all that still run, the newest first."""
        for one in reversed(self._running):
            one.terminate()
        for one in self._running:
            try:
                one.wait(20)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()


def wait_until(is_true: Callable[[], Any], what: str, within_s: float = DEADLINE_S) -> Any:
    """Return the first true answer."""
    deadline = time.monotonic() + within_s
    while not (found := is_true()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.02)
    return found


def wait_for_server(path: Path) -> None:
    """Wait until a unix socket accepts a connection."""

    def accepts() -> bool:
        with socket.socket(socket.AF_UNIX) as one:
            return one.connect_ex(str(path)) == 0

    wait_until(accepts, f"{path} accepts no connection")


def request(path: Path, method: str, target: str) -> tuple[int, Any]:
    """Make a request of a web server at a unix socket. Return its status and answer, of JSON."""
    connection = HTTPConnection("localhost", timeout=DEADLINE_S)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.settimeout(DEADLINE_S)
        connection.sock.connect(str(path))
        connection.request(method, target)
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    is_json = response.headers.get_content_type() == "application/json"
    return response.status, json.loads(text) if is_json else text
