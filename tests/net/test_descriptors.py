"""A lack of descriptors stops no store, served or embedded, and silent clients cannot cause one.

Each server and each program is a process of its own, whose limit of open files is lowered.
"""

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import timerstore

_TOKEN = "0123456789abcdef"
_SERVER = """
import logging, resource, sys, timerstore, timerstore.net
logging.disable(logging.CRITICAL)
kind, folder = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
tcp = dict(tcp="127.0.0.1:0", token_file=folder + "/token")
tls = tcp | dict(tls=(folder + "/cert.pem", folder + "/key.pem"))
options = dict(unix=dict(socket=folder + "/x.sock"), tcp=tcp, tls=tls)[kind]
with timerstore.open(folder + "/store") as store, timerstore.net.serve(store, **options) as server:
    print(server.urls[0], flush=True)
    sys.stdin.readline()
print("closed", flush=True)
"""


@contextmanager
def _server(folder: Path, kind: str) -> Iterator[tuple[str, Any]]:
    """Run a server. Yield its URL and the function that ends it and returns its last output."""
    token = folder / "token"
    token.touch(0o600)
    token.write_text(_TOKEN)
    if kind == "tls":
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-days", "2",
             "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
            check=True, capture_output=True,
        )  # fmt: skip
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, kind, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip(), lambda: server.communicate("end\n", timeout=30)[0]
    finally:
        server.kill()
        server.communicate()


def _silent(url: str) -> socket.socket:
    """Open a connection that sends nothing."""
    if url.startswith("unix://"):
        one = socket.socket(socket.AF_UNIX)
        one.connect(url.removeprefix("unix://"))
    else:
        one = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
    return one


@pytest.mark.parametrize("kind", ["unix", "tcp", "tls"])
def test_silent_connections_leave_the_store_its_descriptors(kind: str, tmp_path: Path) -> None:
    with _server(tmp_path, kind) as (url, end):
        options: dict[str, Any] = {} if kind == "unix" else {"token": _TOKEN}
        if kind == "tls":
            options["tls"] = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        silent: list[socket.socket] = []
        with timerstore.connect(url, **options) as store:
            store.put("t", b"before")
            try:
                silent += [_silent(url) for _ in range(400)]
                for number in range(20):
                    store.put(f"new{number}", b"x")  # each topic needs a file
                store.flush()
            finally:
                for one in silent:
                    one.close()
            store.put("t", b"after")
            assert {f"new{number}" for number in range(20)} < set(store.topics())
            assert store.stats()["service_retries"] == 0
        assert end().strip() == "closed"


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_client_that_greets_connects_although_others_are_silent(kind: str, tmp_path: Path) -> None:
    """The silent ones are fewer than the descriptors, or the oldest of them are closed."""
    with _server(tmp_path, kind) as (url, _):
        silent = [_silent(url) for _ in range(400)]
        options = {} if kind == "unix" else {"token": _TOKEN}
        for one in silent[:300]:
            one.close()
        with timerstore.connect(url, **options) as store:
            store.put("t", b"x")
        for one in silent:
            one.close()


_PROGRAM = """
import os, resource, sys, timerstore
from timerstore.errors import FullError
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
with timerstore.open(sys.argv[1]) as store:
    store.put("t", b"before")
    taken, refused = [], 0
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for number in range(20):
        try:
            store.put(f"new{number}", b"x", delay=1.0 if number % 2 else None)
        except FullError as error:
            assert error.retryable and "EMFILE" in str(error), error
            refused += 1
    store.put("t", b"during")
    for one in taken:
        os.close(one)
    store.put("new0", b"after")
    store.put("t", b"after", delay=60)
    store.flush()
    print(refused, [m.body for m in store.pull("t", 0, 0).messages])
"""


def _program(text: str, path: Path) -> str:
    found = subprocess.run(
        [sys.executable, "-c", text, str(path)],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_program_without_descriptors_goes_on_when_it_has_some(tmp_path: Path) -> None:
    assert _program(_PROGRAM, tmp_path / "s").endswith("[b'before', b'during']")
    with timerstore.open(tmp_path / "s") as store:
        assert sum(1 for _ in store.pending(topic="t")) == 1


_MANY_TOPICS = """
import resource, sys, timerstore
resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
config = timerstore.StoreConfig(flush="async")
with timerstore.open(sys.argv[1], config) as store:
    for number in range(300):
        store.put(f"t{number}", b"x")
    store.flush()
    print(sum(len(store.pull(f"t{number}", 0, 0, wait=20.0).messages) for number in range(300)))
"""


def test_store_has_more_queues_than_descriptors(tmp_path: Path) -> None:
    assert _program(_MANY_TOPICS, tmp_path / "s") == "300"
