"""The project of docs/django.md as real processes: the server, gunicorn and workers."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import timerstore
from tests.support.command_line import COMMAND, environment
from tests.support.page_project import (
    DEADLINE_S,
    Processes,
    request,
    wait_for_server,
    wait_until,
    write_project,
)

FILES = ["manage.py", "shop/settings.py", "shop/tasks.py", "shop/urls.py", "shop/wsgi.py"]


class Site:
    """The files of the project in a folder, and its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._socket = folder / "tasks.sock"
        self._web_socket = folder / "web.sock"
        self._store = folder / "tasks.store"
        self._processes = Processes(folder)
        self.log = self._processes.log
        assert write_project("django.md", folder, {"/run/shop": str(folder)}) == FILES
        sizes = timerstore.StoreConfig(commit_log_segment_bytes=1 << 26, index_entry_count=1 << 20)
        timerstore.open(self._store, sizes).close()

    def change(self, name: str, old: str, new: str) -> None:
        """Replace a text in a file of the project."""
        path = self.folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def serve(self) -> subprocess.Popen[bytes]:
        """Start the server, and wait until it answers."""
        words = ["serve", str(self._store), "--socket", str(self._socket)]
        process = self._processes.start("server", [*COMMAND, *words])
        wait_for_server(self._socket)
        return process

    def web(self) -> None:
        """Start gunicorn with two workers."""
        words = ["gunicorn", "-w", "2", "-b", f"unix:{self._web_socket}", "--timeout", "180"]
        self._processes.start("web", [sys.executable, "-m", *words, "shop.wsgi"])
        wait_for_server(self._web_socket)

    def worker(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a worker."""
        command = [sys.executable, "manage.py", "timerstore_worker", *words]
        return self._processes.start("worker", command)

    def told(self, *words: str) -> list[str]:
        """Return the lines that a command of manage.py prints."""
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def get(self, path: str) -> Any:
        """Make a request of the web server."""
        status, answer = request(self._web_socket, "GET", path)
        assert status == 200, answer
        return answer

    def result(self, result_id: str) -> Any:
        """Return the value of a task once it has ended."""

        def value() -> Any:
            return self.get(f"/result/{result_id}")["value"]

        return wait_until(value, f"the task {result_id} has no value")

    def stop(self) -> None:
        """End all processes that still run."""
        self._processes.stop()
