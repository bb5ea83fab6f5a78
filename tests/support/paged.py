"""The page of a store, asked without a socket; or its server, over one."""

import asyncio
import contextlib
import http.client
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes, urlencode

from starlette.types import ASGIApp

from timerstore.dashboard.app import App
from timerstore.dashboard.events import frame
from timerstore.dashboard.open_source import OpenSource, Store
from timerstore.dashboard.request_guard import host_check
from timerstore.dashboard.server import Served
from timerstore.dashboard.source import DashboardSource, Json

TOKEN = "a-token-of-the-tests"
HOST = "127.0.0.1:8000"
ORIGIN = f"http://{HOST}"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@dataclass
class Answer:
    """The response to a request."""

    status_code: int
    headers: dict[str, str]
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()

    def json(self) -> Any:
        return json.loads(self.content)


class Client:
    """A client that calls an app as a server would, without a socket."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def request(self, method: str, path: str, **given: Any) -> Answer:
        """Send a request.

        `headers` is a mapping, or pairs of bytes. The body is `json`, `content`, or `parts`, which
        are sent without a content length.
        """
        path, _, query = path.partition("?")
        if given.get("params"):
            query = urlencode(given["params"])
        headers = given.get("headers", {})
        pairs = headers if isinstance(headers, list) else [
            (name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()
        ]  # fmt: skip
        pairs = [(name.lower(), value) for name, value in pairs]
        if b"host" not in dict(pairs):
            pairs.append((b"host", HOST.encode()))
        parts = list(given.get("parts", [given.get("content", b"")]))
        if "json" in given:
            parts = [json.dumps(given["json"]).encode()]
            pairs.append((b"content-type", b"application/json"))
        if "parts" not in given and method not in ("GET", "HEAD"):
            pairs.append((b"content-length", str(len(parts[0])).encode()))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote_to_bytes(path).decode(),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": pairs,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
        }
        return asyncio.run(self._ask(scope, parts))

    async def _ask(self, scope: dict[str, Any], parts: list[bytes]) -> Answer:
        left, said = list(parts), []

        async def receive() -> dict[str, Any]:
            if not left:
                await asyncio.Event().wait()  # the client stays connected
            body = left.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(left)}

        async def send(message: Any) -> None:
            said.append(message)

        with contextlib.suppress(RuntimeError):  # raised to the server, after its response
            await asyncio.wait_for(self._app(scope, receive, send), 20)
        head, *bodies = said
        headers = {name.decode(): value.decode("latin-1") for name, value in head["headers"]}
        return Answer(head["status"], headers, b"".join(one.get("body", b"") for one in bodies))

    def get(self, path: str, **given: Any) -> Answer:
        return self.request("GET", path, **given)

    def post(self, path: str, **given: Any) -> Answer:
        return self.request("POST", path, **given)


class Paged:
    """An app and its client."""

    def __init__(self, source: DashboardSource, *, bound: str = "127.0.0.1") -> None:
        self.source = source
        self.app = App(source, token=TOKEN, is_host=host_check(bound), every_s=0.02)
        self.client = Client(self.app.asgi)

    @classmethod
    def of(cls, store: Store, *, read_only: bool = False) -> "Paged":
        return cls(OpenSource(store, read_only=read_only, every_s=0.0))

    def ask(self, path: str, code: int = 200, **given: Any) -> Json:
        """Send a GET request with the token, and return the JSON of its response."""
        answer = self.client.get(path, params=given, headers=BEARER)
        assert answer.status_code == code, (answer.status_code, answer.text)
        told: Json = answer.json()
        return told

    def now(self, turn: str = "1h", topic: str | None = None) -> Json:
        return self.source.now(turn, topic)

    def cancel(self, code: int = 200, /, **body: Any) -> Json:
        answer = self.client.post("/api/cancel", json=body, headers={**BEARER, "Origin": ORIGIN})
        assert answer.status_code == code, (answer.status_code, answer.text)
        told: Json = answer.json()
        return told


def taken(frames: AsyncIterator[bytes], count: int) -> list[bytes]:
    """Return the first frames of a stream, and close it as a disconnecting client does."""

    async def take() -> list[bytes]:
        found = []
        async for one in frames:
            found.append(one)
            if len(found) == count:
                break
        await frames.aclose()  # type: ignore[attr-defined]
        return found

    return asyncio.run(take())


def parsed(one: bytes) -> tuple[str, Json]:
    """Return the name and data of a frame, and check its form."""
    first, second, *rest = one.decode().split("\n")
    assert first.startswith("event: ")
    assert second.startswith("data: ")
    assert rest == ["", ""]
    told = first.removeprefix("event: "), json.loads(second.removeprefix("data: "))
    assert frame(*told) == one
    return told


class Line:
    """One response of a server, read from its socket."""

    def __init__(self, served: Served, path: str, **headers: str) -> None:
        self._link = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
        self._link.request("GET", path, headers=headers)
        self.answer = self._link.getresponse()

    def frame(self) -> tuple[str, Json]:
        """Return the next event."""
        lines = []
        while (line := self.answer.readline()) != b"\n":
            assert line, "the stream ended"
            lines.append(line)
        if lines[0].startswith(b"retry"):
            return self.frame()
        return parsed(b"".join(lines) + b"\n")

    def read(self) -> bytes:
        return self.answer.read()

    def close(self) -> None:
        self.answer.close()
        self._link.close()
