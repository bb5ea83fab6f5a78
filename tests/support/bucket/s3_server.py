"""A server with the API of S3, in a process of its own.

By default it is moto. `TIMERSTORE_TEST_S3=http://host:port` names a running one, whose key and
secret are those of the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY).
"""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

BUCKET = "timerstore-test"
KEY, SECRET = "test-key", "test-secret"
_NAMED = "TIMERSTORE_TEST_S3"
_PATIENCE_S = 60.0
_PROGRAM = "from moto.server import main; import sys; main(sys.argv[1:])"


@contextmanager
def running() -> Iterator[str]:
    """Run a server with one empty bucket; yield its endpoint."""
    named = os.environ.get(_NAMED)
    if named:
        yield named
        return
    port = _free_port()
    endpoint = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(endpoint, server)
        made = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
        with urllib.request.urlopen(made, timeout=_PATIENCE_S):
            pass
        yield endpoint
    finally:
        server.kill()
        server.wait()


def environment(endpoint: str) -> dict[str, str]:
    """Return the variables by which obstore finds the server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": os.environ.get("AWS_ACCESS_KEY_ID", KEY),
        "AWS_SECRET_ACCESS_KEY": os.environ.get("AWS_SECRET_ACCESS_KEY", SECRET),
        "AWS_REGION": "us-east-1",
    }


def options(endpoint: str) -> dict[str, str]:
    """Return the same as storage options."""
    given = environment(endpoint)
    return {
        "endpoint": endpoint,
        "access_key_id": given["AWS_ACCESS_KEY_ID"],
        "secret_access_key": given["AWS_SECRET_ACCESS_KEY"],
        "region": "us-east-1",
    }


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_for(endpoint: str, server: "subprocess.Popen[bytes]") -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(f"{endpoint}/moto-api/data.json", timeout=5):
                return
        except (urllib.error.URLError, OSError) as error:
            if server.poll() is not None or time.monotonic() > until_s:
                raise AssertionError(f"the S3 server did not start: {error!r}") from error
            time.sleep(0.1)
