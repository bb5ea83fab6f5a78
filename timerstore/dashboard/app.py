"""The HTTP routes of the dashboard.

    GET  /            the page, with the token in its links     GET /page.css, /page.js
    GET  /events      ?turn=1h&topic=     statistics, as server-sent events
    GET  /api/search  ?message=&topic=    find messages by handle, id or key
    GET  /api/rows    ?begin_ms=&end_ms=&topic=&max=    pending messages that are due in this range
    POST /api/cancel  {"handle": ..., "confirm": the message's id}

An error is a JSON object, {"error": class, "what": text}, with one of these status codes:
400 invalid request, 403 not permitted for this dashboard, 404 unknown route, 503 the store failed.

Thread safety: runs on the server's event loop. Calls into the store run in its thread pool.
"""

import json
from collections.abc import AsyncIterator, Callable
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from timerstore._engine.base.owner import NotCopyable
from timerstore.dashboard.events import STREAMS_MAX, UpdateEvent, stream
from timerstore.dashboard.open_source import OpenSource
from timerstore.dashboard.request_guard import Guard
from timerstore.dashboard.source import DashboardSource, turn_of
from timerstore.errors import ConfigError, MessageError, TimerStoreError

_MS_MAX = 1 << 62
_ROWS = 100


class App(NotCopyable):
    """The routes for one source."""

    def __init__(
        self,
        source: DashboardSource,
        *,
        token: str,
        is_host: Callable[[str], bool],
        every_s: float,
    ) -> None:
        self.updates = UpdateEvent()
        self._source = source
        self._token = token
        self._every_s = every_s
        self._streams = 0
        self._files = {
            name: resources.files("timerstore.dashboard").joinpath("page", name).read_text("utf-8")
            for name in ("index.html", "page.css", "page.js")
        }
        pages = Starlette(
            routes=[
                Route("/", self._page),
                Route("/page.css", self._css),
                Route("/page.js", self._js),
                Route("/events", self._events),
                Route("/api/search", self._search),
                Route("/api/rows", self._rows),
                Route("/api/cancel", self._cancel, methods=["POST"]),
            ],
            exception_handlers={TimerStoreError: _failed, HTTPException: _rejected},
        )
        # Outermost, so that responses to unexpected errors get the security headers too.
        self.asgi = Guard(pages, token, is_host)

    # --- the page ---

    async def _page(self, _: Request) -> Response:
        text = self._files["index.html"].replace("{token}", self._token)
        return Response(text, media_type="text/html")

    async def _css(self, _: Request) -> Response:
        return Response(self._files["page.css"], media_type="text/css")

    async def _js(self, _: Request) -> Response:
        return Response(self._files["page.js"], media_type="text/javascript")

    # --- data ---

    async def _events(self, request: Request) -> Response:
        turn = request.query_params.get("turn", "1h")
        turn_of(turn)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if self._streams >= STREAMS_MAX or self.updates.is_over:
            raise HTTPException(503, f"too many open pages: the limit is {STREAMS_MAX}")
        frames = stream(self._source, self.updates, self._every_s, turn, _topic(request))
        answer = _Stream(frames, self._end_stream)
        self._streams += 1  # counted here, since other requests may run before the first frame
        return answer

    def _end_stream(self) -> None:
        self._streams -= 1

    async def _search(self, request: Request) -> Response:
        text = request.query_params.get("message", "")
        return await _answer(self._owned("search").search, text, _topic(request))

    async def _rows(self, request: Request) -> Response:
        begin_ms, end_ms = _integer(request, "begin_ms"), _integer(request, "end_ms")
        limit = _integer(request, "max", _ROWS)
        source = self._owned("list messages")
        return await _answer(source.rows, begin_ms, end_ms, _topic(request), limit)

    async def _cancel(self, request: Request) -> Response:
        source = self._owned("cancel")
        if source.is_read_only:
            raise HTTPException(403, "cannot cancel: this dashboard is read-only")
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise HTTPException(415, "content-type: expected application/json")
        handle, confirm = _handle_and_id(await request.body())
        return await _answer(source.cancel, handle, confirm)

    def _owned(self, action: str) -> OpenSource:
        """Return the source if this process has the store open, else raise 403."""
        if not isinstance(self._source, OpenSource):
            raise HTTPException(
                403,
                f"cannot {action}: this dashboard reads a snapshot; another process has the store",
            )
        return self._source


class _Stream(StreamingResponse):
    """A stream of frames. `ended` is called once, even if the client leaves before the first."""

    def __init__(self, frames: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(frames, media_type="text/event-stream")
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the frames."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


async def _answer(call: Callable[..., Any], *arguments: Any) -> Response:
    return JSONResponse(await run_in_threadpool(call, *arguments))


def _topic(request: Request) -> str | None:
    return request.query_params.get("topic") or None


def _integer(request: Request, name: str, default: int | None = None) -> int:
    text = request.query_params.get(name)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise MessageError(f"{name}: wanted an integer of at least 0, got {text!r:.40}")
    return int(text)


def _handle_and_id(body: bytes) -> tuple[str, str]:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"cancel: wanted a JSON object ({error})") from error
    names = ("handle", "confirm")
    if not isinstance(request, dict) or not all(isinstance(request.get(k), str) for k in names):
        raise MessageError('cancel: wanted {"handle": text, "confirm": the message\'s id}')
    return request["handle"], request["confirm"]


async def _failed(_: Request, error: Exception) -> Response:
    code = 400 if isinstance(error, MessageError | ConfigError) else 503
    return JSONResponse({"error": type(error).__name__, "what": str(error)}, code)


async def _rejected(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(
        {"error": "Rejected", "what": error.detail}, error.status_code, error.headers
    )
