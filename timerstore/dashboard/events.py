"""Send statistics to the page as server-sent events.

    event: about        once, first
    event: now          every second, and when a manual clock is set
    event: failed       the store failed; the stream ends

A stream also ends when the client disconnects and when the server stops.

Thread safety: streams run on the server's event loop. Any thread may call `UpdateEvent.notify` and
    `UpdateEvent.end`.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool

from timerstore.dashboard.source import DashboardSource, Json
from timerstore.errors import TimerStoreError

STREAMS_MAX = 32
_REST = 5  # wait at least 5 times as long as reading took, so that pages do not load the store


class UpdateEvent:
    """Wakes streams early, or ends them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Event] = set()
        self.is_over = False

    def notify(self) -> None:
        """Wake all streams."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake)

    def end(self) -> None:
        """Wake all streams and end them."""
        self.is_over = True
        self.notify()

    def _wake(self) -> None:
        for one in self._waiting:
            one.set()

    async def wait(self, seconds: float) -> None:
        """Wait for at most `seconds`, or until the next `notify`."""
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


def frame(name: str, data: Json) -> bytes:
    """Encode one event."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


async def stream(
    source: DashboardSource, updates: UpdateEvent, every_s: float, turn: str, topic: str | None
) -> AsyncIterator[bytes]:
    """Yield the frames for one client. `every_s`: seconds between two frames."""
    yield b"retry: 1000\n\n"
    yield frame("about", source.about())
    while not updates.is_over:
        begin = time.monotonic()
        try:
            data = await run_in_threadpool(source.now, turn, topic)
        except TimerStoreError as error:
            yield frame("failed", {"error": type(error).__name__, "what": str(error)})
            return
        took = time.monotonic() - begin
        yield frame("now", data)
        await updates.wait(max(every_s, _REST * took))
