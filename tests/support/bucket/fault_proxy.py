"""An HTTP proxy before an S3 server, that makes chosen requests fail.

    with FaultProxy(endpoint) as proxy:
        proxy.fail(Fault("lost answer", "PUT", "manifests/"))

Faults are those that real services have: errors of the server, slow answers, answers that are lost
after the request took effect, uploads that end in the middle, answers that end in the middle. One
more, `ignored condition`, is a service without conditional puts.
"""

import http.client
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

KINDS = (
    "error 500",
    "error 503",
    "error 403",
    "error 409",
    "lost answer",
    "cut upload",
    "cut answer",
    "no answer",
    "late",
    "ignored condition",
)


@dataclass
class Fault:
    """What happens to the next `count` requests of a method whose path has a part."""

    kind: str
    method: str
    part: str = ""
    count: int = 1
    gate: threading.Event | None = None
    """For `late`: the request is forwarded when this is set."""

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind


class FaultProxy:
    """The proxy. `endpoint` is its own address."""

    def __init__(self, server: str) -> None:
        self._server = urlsplit(server)
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self.requests: list[str] = []
        """METHOD path, in order of arrival."""
        self.on_request: Callable[[str], None] | None = None
        """Called with each request before it is forwarded, when its fault is chosen."""
        self.happened: list[str] = []
        """The faults that happened: kind, METHOD path."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60

            def _any(self) -> None:
                proxy._serve(self)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _any  # noqa: N815

            def log_message(self, *_given: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))

    @property
    def endpoint(self) -> str:
        """The URL to use instead of the server's."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def fail(self, *faults: Fault) -> None:
        """Add faults."""
        with self._lock:
            self._faults.extend(faults)

    def heal(self) -> None:
        """Forget the faults that have not happened."""
        with self._lock:
            self._faults.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _fault_of(self, request: str, method: str) -> Fault | None:
        with self._lock:
            for one in self._faults:
                if one.method == method and one.part in request and one.count > 0:
                    one.count -= 1
                    self.happened.append(f"{one.kind}, {request}")
                    return one
        return None

    def _serve(self, one: BaseHTTPRequestHandler) -> None:
        request = f"{one.command} {unquote(one.path)}"
        body = one.rfile.read(int(one.headers.get("Content-Length") or 0))
        with self._lock:
            self.requests.append(request)
        fault = self._fault_of(request, one.command)
        if self.on_request is not None:
            self.on_request(request)
        kind = "" if fault is None else fault.kind
        if kind.startswith("error "):
            self._answer(one, int(kind[6:]), {}, b"<Error><Code>SlowDown</Code></Error>")
            return
        if kind == "no answer":
            one.close_connection = True
            return
        if kind == "cut upload":
            self._cut_upload(one, body)
            one.close_connection = True
            return
        if kind == "late" and fault is not None and fault.gate is not None:
            fault.gate.wait(60)
        headers = dict(one.headers)
        if kind == "ignored condition":
            headers = {k: v for k, v in headers.items() if k.lower() != "if-none-match"}
        status, answered, data = self._forward(one.command, one.path, headers, body)
        if kind == "lost answer":
            one.close_connection = True
            return
        if kind == "cut answer":
            self._answer(one, status, answered, data, sent=len(data) // 2)
            one.close_connection = True
            return
        self._answer(one, status, answered, data)

    def _connection(self) -> http.client.HTTPConnection:
        assert self._server.hostname is not None
        return http.client.HTTPConnection(self._server.hostname, self._server.port, timeout=60)

    def _forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        connection = self._connection()
        try:
            connection.request(method, path, body, headers)
            got = connection.getresponse()
            return got.status, dict(got.getheaders()), got.read()
        finally:
            connection.close()

    def _cut_upload(self, one: BaseHTTPRequestHandler, body: bytes) -> None:
        """Send half of the body to the server, and close."""
        connection = self._connection()
        connection.putrequest(one.command, one.path, skip_host=True, skip_accept_encoding=True)
        for name, value in one.headers.items():
            connection.putheader(name, value)
        connection.endheaders(body[: len(body) // 2])
        connection.close()

    @staticmethod
    def _answer(
        one: BaseHTTPRequestHandler,
        status: int,
        headers: dict[str, str],
        data: bytes,
        *,
        sent: int | None = None,
    ) -> None:
        dropped = {"transfer-encoding", "connection", "content-length", "server", "date"}
        one.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in dropped:
                one.send_header(name, value)
        length = len(data)
        if one.command == "HEAD":
            low = {name.lower(): value for name, value in headers.items()}
            length = int(low.get("content-length", 0))
        one.send_header("Content-Length", str(length))
        one.end_headers()
        if one.command != "HEAD":
            one.wfile.write(data if sent is None else data[:sent])
