"""A store that `timerstore serve --grpc` serves, in a process that a test may kill."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import timerstore
from tests.support.bench import small


class ServedStore:
    """A store in a folder, and its server on a port that stays the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "store"
        self.options: list[str | Path] = []
        with socket.create_server(("127.0.0.1", 0)) as one:
            self.address = f"127.0.0.1:{one.getsockname()[1]}"
        timerstore.open(self.path, small(commit_log_segment_bytes=64 << 20, flush="sync")).close()
        self._process: subprocess.Popen[str] | None = None

    def groups(self, text: str) -> None:
        """Use policies of groups from the next start on."""
        path = self.folder / "groups.toml"
        path.write_text(text)
        self.options += ["--groups-file", path]

    def start(self) -> None:
        words = [sys.executable, "-m", "timerstore.cli", "serve", self.path, "--grpc",
                 self.address, "--json", *self.options]  # fmt: skip
        self._process = subprocess.Popen(
            [str(one) for one in words], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server did not start"
        assert self.address in json.loads(line)["urls"][0]

    def stop(self) -> None:
        """End the server as a supervisor does; it must end regularly."""
        self._end("terminate")
        assert self._process is not None
        assert self._process.returncode == 0

    def kill(self) -> None:
        """Kill the server."""
        self._end("kill")

    def _end(self, how: str) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            getattr(self._process, how)()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def restart(self) -> None:
        self.stop()
        self.start()
