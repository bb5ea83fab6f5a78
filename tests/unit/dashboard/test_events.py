"""Frames of server-sent events, on a clock turned by hand."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from tests.support.bench import NOW, Bench
from tests.support.inside import event_stream_count, set_event_stream_count
from tests.support.paged import BEARER, HOST, Paged, parsed, taken
from timerstore.dashboard import events
from timerstore.dashboard.events import STREAMS_MAX, UpdateEvent, frame, stream
from timerstore.dashboard.open_source import OpenSource


def test_frame_has_an_event_line_and_a_data_line() -> None:
    told = {"text": "a\nb\r\n\u2028ü", "n": 1.5, "none": None}
    written = frame("now", told)
    assert written.count(b"\n") == 3
    assert b"\r" not in written
    assert written.isascii()
    assert parsed(written) == ("now", told)


def test_stream_starts_with_an_about_event(bench: Bench, paged: Paged) -> None:
    bench.store.put("t", b"x", delay=5)
    frames = taken(stream(paged.source, UpdateEvent(), 0.0, "1m", None), 4)
    assert frames[0] == b"retry: 1000\n\n"
    assert parsed(frames[1]) == ("about", json.loads(json.dumps(paged.source.about())))
    for one in frames[2:]:
        name, told = parsed(one)
        assert (name, told["now_ms"], told["pending"]) == ("now", NOW, 1)
        assert told["ring"]["counts"][5] == 1


def test_stream_sends_at_once_when_the_clock_is_set(bench: Bench, paged: Paged) -> None:
    """With an hour between two events, the second is there because the clock was turned."""

    async def two() -> list[int]:
        updates = UpdateEvent()
        unsubscribe = bench.clock.subscribe(updates.notify)
        frames = stream(paged.source, updates, 3600.0, "1h", None)
        found = []
        async for one in frames:
            if one.startswith(b"event: now"):
                found.append(parsed(one)[1]["now_ms"])
                if len(found) == 2:
                    break
                asyncio.get_running_loop().call_later(0, bench.clock.advance, 7000)
        unsubscribe()
        await frames.aclose()  # type: ignore[attr-defined]
        return found

    assert asyncio.run(asyncio.wait_for(two(), 20)) == [NOW, NOW + 7000]


def test_stream_ends_when_updates_end(paged: Paged) -> None:
    async def all_of() -> list[bytes]:
        updates = UpdateEvent()
        found = []
        async for one in stream(paged.source, updates, 3600.0, "1h", None):
            found.append(one)
            if one.startswith(b"event: now"):
                end_later = asyncio.get_running_loop().call_later
                end_later(0, updates.end)
        return found

    assert len(asyncio.run(asyncio.wait_for(all_of(), 20))) == 3


def test_stream_reports_a_failed_store_and_ends(bench: Bench, paged: Paged) -> None:
    bench.close()
    frames = taken(stream(paged.source, UpdateEvent(), 0.0, "1h", None), 9)
    name, told = parsed(frames[-1])
    assert (name, told["error"]) == ("failed", "ClosedError")
    assert len(frames) == 3


@pytest.mark.parametrize(("took", "waited"), [(0.0, 1.0), (0.2, 1.0), (0.3, 1.5), (4.0, 20.0)])
def test_stream_waits_longer_when_reading_is_slow(
    paged: Paged, monkeypatch: pytest.MonkeyPatch, took: float, waited: float
) -> None:
    moments = iter([100.0, 100.0 + took] * 9)
    updates, waits = UpdateEvent(), []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    monkeypatch.setattr(updates, "wait", wait)
    taken(stream(paged.source, updates, 1.0, "1h", None), 4)
    assert waits == [pytest.approx(waited)]


def test_head_request_starts_no_stream(still: Paged) -> None:
    answer = still.client.request("HEAD", "/events", headers=BEARER)
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("turn", ["", "2h", "1H", "x" * 100])
def test_stream_rejects_an_unknown_turn(still: Paged, turn: str) -> None:
    told = still.ask("/events", 400, turn=turn)
    assert told["what"].startswith("turn: wanted one of 1m, 1h, 6h, 24h")


def test_stream_rejects_pages_above_the_limit(paged: Paged) -> None:
    set_event_stream_count(paged.app, STREAMS_MAX)
    answer = paged.client.get("/events", headers=BEARER)
    assert answer.status_code == 503
    assert "too many open pages" in answer.json()["what"]


def test_stream_limit_holds_for_concurrent_pages(paged: Paged) -> None:
    codes = asyncio.run(asyncio.wait_for(_ask_at_once(paged, STREAMS_MAX + 5), 20))
    assert sorted(codes) == [200] * STREAMS_MAX + [503] * 5
    assert event_stream_count(paged.app) == 0, "their places are free again"


async def _ask_at_once(paged: Paged, count: int) -> list[int]:
    codes: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            codes.append(message["status"])
            if len(codes) == count:
                paged.app.updates.end()
        await asyncio.sleep(0)  # as a socket may, so that the other requests run in between

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(_ask_for_events(paged, send))
    return codes


async def _ask_for_events(paged: Paged, send: Callable[[Any], Awaitable[None]]) -> None:
    head = [(b"host", HOST.encode()), (b"authorization", BEARER["Authorization"].encode())]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "method": "GET",
        "path": "/events",
        "query_string": b"",
        "headers": head,
    }

    async def receive() -> None:
        await asyncio.Event().wait()  # the reader stays

    await paged.app.asgi(scope, receive, send)


@pytest.mark.parametrize("error", [OSError("it has gone"), asyncio.CancelledError()])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_disconnected_client_frees_its_stream(paged: Paged, error: BaseException, nth: int) -> None:
    """Before the head of its answer, before the first frame, after it."""
    said = []

    async def send(message: Any) -> None:
        said.append(message)
        if len(said) == nth:
            raise error

    with contextlib.suppress(OSError, ExceptionGroup, ClientDisconnect, asyncio.CancelledError):
        asyncio.run(_ask_for_events(paged, send))
    assert len(said) >= nth
    assert event_stream_count(paged.app) == 0


def test_pages_share_one_reading_of_statistics(bench: Bench) -> None:
    source = OpenSource(bench.store, read_only=False, every_s=3600.0)
    assert source.now("1h", None)["pending"] == 0
    bench.store.put("t", b"x", delay=60)
    told = source.now("1m", None)
    assert told["pending"] == 0, "read half an hour ago at most"
    assert sum(told["ring"]["counts"]) == 0
    assert sum(source.now("1h", None)["ring"]["counts"]) == 1, "its ring is each page's own"
