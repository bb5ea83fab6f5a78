"""A driver of an official client, in a process of its own.

A call is a line: a verb, then `name=value` separated by tabs. The driver answers with lines of the
same form: `message` for each message, then `ok` or `error`. Messages of a push consumer come at any
time as `pushed`, and checks of half messages as `checked`.
"""

import os
import queue
import subprocess
import threading
from pathlib import Path
from typing import Any

from tests.clients.fetch import CLIENTS

_ANSWER_S = 60
_AUTHORITIES = ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE")


class ClientError(Exception):
    """The client raised an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class ClientDriver:
    """One program with an official client."""

    def __init__(
        self, client: str, address: str, authority: Path | None = None, **configured: str
    ) -> None:
        self.name = client
        self._process = subprocess.Popen(
            [str(one) for one in CLIENTS[client][1]()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
            env={**os.environ, **dict.fromkeys(_AUTHORITIES, str(authority))}
            if authority
            else None,
        )
        self._answers: queue.Queue[tuple[str, dict[str, str]]] = queue.Queue()
        self.pushed: queue.Queue[dict[str, str]] = queue.Queue()
        self.stored: list[str] = []
        """Bodies of messages of a burst whose put was acknowledged."""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.call("configure", address=address, **{"tls": "0", **configured})

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            verb, *words = line.rstrip("\n").split("\t")
            fields = dict(word.split("=", 1) for word in words if "=" in word)
            if verb in ("pushed", "checked"):
                self.pushed.put(fields)
            elif verb == "stored":
                self.stored.append(fields["body"])
            elif verb in ("ok", "error", "message"):
                self._answers.put((verb, fields))
        self._answers.put(("error", {"code": "0", "text": "the driver ended"}))

    def begin(self, verb: str, **given: object) -> None:
        """Begin a call; `finish` returns its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join([verb, *(f"{k}={v}" for k, v in given.items())]) + "\n")
        self._process.stdin.flush()

    def finish(self, seconds: float = _ANSWER_S) -> tuple[dict[str, str], list[dict[str, str]]]:
        """Return the answer, and the messages before it."""
        found = []
        while True:
            verb, fields = self._answers.get(timeout=seconds)
            if verb == "message":
                found.append(fields)
            elif verb == "error":
                raise ClientError(int(fields["code"]), fields["text"])
            else:
                return fields, found

    def call(self, verb: str, **given: object) -> dict[str, str]:
        """Make a call; return the fields of its answer."""
        self.begin(verb, **given)
        return self.finish()[0]

    def receive(self, topic: str, group: str, **given: Any) -> list[dict[str, str]]:
        """Return messages."""
        terms = {"count": 16, "lease_ms": 20_000, "wait_ms": 5000, **given}
        self.begin("receive", topic=topic, group=group, **terms)
        return self.finish()[1]

    def close(self) -> None:
        """End the program, as a program that ends regularly does."""
        try:
            self.call("close")
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the program."""
        self._process.kill()
        self._process.wait()
        self._thread.join()
        for one in (self._process.stdin, self._process.stdout):
            assert one is not None
            one.close()
