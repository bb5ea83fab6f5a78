"""A store that `timerstore serve --grpc` serves, in a process that a test may kill."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import timerstore
from tests.support.bench import small
from tests.support.certificates import make_authority
from timerstore import StoreConfig


class ServedStore:
    """A store in a folder, and its server on a port that stays the same."""

    def __init__(self, folder: Path, config: StoreConfig | None = None) -> None:
        self.folder = folder
        self.path = folder / "store"
        config = config or small(commit_log_segment_bytes=64 << 20, flush="sync")
        self.options: list[str | Path] = ["-c", f"flush={config.flush}"]
        with socket.create_server(("127.0.0.1", 0)) as one:
            self.address = f"127.0.0.1:{one.getsockname()[1]}"
        timerstore.open(self.path, config).close()
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    def groups(self, text: str) -> None:
        """Use policies of groups from the next start on."""
        path = self.folder / "groups.toml"
        path.write_text(text)
        self.options += ["--groups-file", path]

    def secure(self, key: str, secret: str) -> Path:
        """Use TLS and keys from the next start on; return the certificate of the authority."""
        authority = make_authority(self.folder)
        keys = self.folder / "keys"
        keys.write_text(f"{key} {secret}\n")
        keys.chmod(0o600)
        self.options += ["--tls-cert", self.folder / "cert.pem",
                         "--tls-key", self.folder / "key.pem", "--keys-file", keys]  # fmt: skip
        return authority

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
        if self._process is not None:
            self._end("kill")

    def _end(self, how: str) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            getattr(self._process, how)()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()
