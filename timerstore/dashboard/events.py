"""The page's numbers, again and again: server-sent events.

    event: about        once           event: now      every second, and when a clock is turned
    data: {...}                        data: {...}
                                       event: failed   the store does not answer any more; the end

Threads:  the server's; a bell is rung from any.
Holds:    a stream ends when its reader goes, when the store fails, and when the server stops.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool

from timerstore.dashboard.source import Json, Source
from timerstore.errors import TimerStoreError

STREAMS_MAX = 32
_REST = 5  # times as long as the numbers took: a page never keeps a store busy


class PageEvent:
    """Wakes those who wait: sooner than their time, or for good."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Event] = set()
        self.is_over = False

    def ring(self) -> None:
        """Wake all; from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake)

    def end(self) -> None:
        """Wake all, for good; from any thread."""
        self.is_over = True
        self.ring()

    def _wake(self) -> None:
        for one in self._waiting:
            one.set()

    async def wait(self, seconds: float) -> None:
        """Wait so long, or until it rings."""
        self._loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        self._waiting.add(woken)
        try:
            if not self.is_over:
                async with asyncio.timeout(seconds):
                    await woken.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(woken)


def frame(name: str, told: Json) -> bytes:
    """Write one event."""
    return f"event: {name}\ndata: {json.dumps(told, separators=(',', ':'))}\n\n".encode()


async def stream(
    source: Source, bell: PageEvent, every_s: float, turn: str, topic: str | None
) -> AsyncIterator[bytes]:
    """Give the frames for one reader."""
    yield b"retry: 1000\n\n"
    yield frame("about", source.about())
    while not bell.is_over:
        begin = time.monotonic()
        try:
            told = await run_in_threadpool(source.now, turn, topic)
        except TimerStoreError as error:
            yield frame("failed", {"error": type(error).__name__, "what": str(error)})
            return
        took = time.monotonic() - begin
        yield frame("now", told)
        await bell.wait(max(every_s, _REST * took))
