"""The ways in which a program reaches a store, each with the same blocking calls for a test.

    open           timerstore.open
    aio            coroutines of timerstore.aio.open
    connect        timerstore.connect, through a server
    aio.connect    coroutines of timerstore.aio.connect, through a server

Coroutines run on one event loop in a thread of its own, so that several threads of a test are
several tasks.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from inspect import isasyncgen
from itertools import chain
from types import TracebackType
from typing import Any

import timerstore.aio
import timerstore.net
from tests.support.bench import Bench
from timerstore import TimerStore
from timerstore.aio import AsyncTimerStore

_END = object()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="tasks of a test", daemon=True).start()
    return loop


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine as a task of the loop; return its result."""
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


class Awaited:
    """An object of asyncio: a store, a consumer, a heartbeat. Its calls are awaited."""

    def __init__(self, one: Any, local: TimerStore | None = None) -> None:
        self.one = one
        if local is not None:
            self.local = local

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.one, name)
        if not callable(found):
            return found
        if name == "queues":  # a property of the others
            return run(_result(found))

        @wraps(found)
        def call(*given: Any, **named: Any) -> Any:
            return _plain(run(_result(found, *given, **named)))

        return call

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        found = run(_result(anext, self.one, _END))
        if found is _END:
            raise StopIteration
        return found

    def __enter__(self) -> Any:
        return _plain(run(_result(self.one.__aenter__)))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        return run(_result(self.one.__aexit__, kind, error, trace))

    def __repr__(self) -> str:
        return repr(self.one)


async def _result(call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    found = call(*given, **named)
    return await found if hasattr(found, "__await__") else found


def _plain(found: Any) -> Any:
    if isasyncgen(found):
        first = run(_result(anext, found, _END))  # its errors are raised by the call
        return iter(()) if first is _END else chain([first], Awaited(found))
    is_of_asyncio = hasattr(found, "__anext__") or hasattr(found, "__aenter__")
    return Awaited(found) if is_of_asyncio else found


class AwaitedBench(Bench):
    """A bench whose store is one of asyncio."""

    is_awaited = True

    def reached(self) -> Any:
        self._made = AsyncTimerStore(self.local, ThreadPoolExecutor(4))
        return Awaited(self._made, self.local)

    def leave(self) -> None:
        self._made.detach()


class ConnectedBench(Bench):
    """A bench whose store is reached through a server."""

    is_connected = True

    def reached(self) -> Any:
        path = self.root.with_suffix(".sock")
        self._server = timerstore.net.serve(self.local, socket=path)
        found = self.connected(f"unix://{path}")
        found.local = self.local
        return found

    def connected(self, url: str) -> Any:
        return timerstore.connect(url)

    def leave(self) -> None:
        self.store.close()
        self._server.close()


class AwaitedConnectedBench(ConnectedBench):
    """A bench whose store is reached through a server, by coroutines."""

    is_awaited = True

    def connected(self, url: str) -> Any:
        return Awaited(run(_result(timerstore.aio.connect, url)))


WAYS: dict[str, type[Bench]] = {
    "open": Bench,
    "aio": AwaitedBench,
    "connect": ConnectedBench,
    "aio.connect": AwaitedConnectedBench,
}
