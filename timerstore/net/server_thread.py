"""A server of a store, on a thread with an event loop of its own: its start and its end.

Thread safety: any thread may start, ask and close it.
Invariants:
    1. A store of this process is open while the server runs: its close closes its servers first.
    2. A server whose store has failed ends by itself, and `wait` raises that failure.
    3. A forked child has no server: its copies of the sockets are closed.
Raises: BusyError if the operating system has no more threads.
"""

import asyncio
import logging
import os
import threading
import weakref
from contextlib import suppress

from timerstore._engine.base.owner import close_at_exit, forked_error
from timerstore._engine.calls.open_store import AttachedServer
from timerstore.errors import BusyError, FailedError, TimerStoreError
from timerstore.store import TimerStore

_log = logging.getLogger(__name__)

_started: "weakref.WeakSet[ServerThread]" = weakref.WeakSet()


def _close_in_child() -> None:
    for one in list(_started):
        one._forget_in_child()
    _started.clear()


os.register_at_fork(after_in_child=_close_in_child)


class ServerThread(AttachedServer):
    """The thread of a server. A kind of server implements `_serve`, `_release` and `urls`."""

    def __init__(self, store: TimerStore | None, thread_name: str) -> None:
        """`store`: None if another process has it open, so that the server ends by `close` only."""
        self._store = store
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._is_closed = False
        self._reason: TimerStoreError | None = None  # why the server ends by itself
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)

    def start(self) -> None:
        """Begin to accept connections.

        Raises:
            ClosedError: the store is closed.
            BusyError: the operating system has no more threads.
        """
        try:
            if self._store is not None:
                self._store._attach_server(self)
            self._start_thread()
        except BaseException:
            self._detach()
            raise
        close_at_exit(self)
        _started.add(self)
        try:
            self._ready.wait()
        except BaseException:  # of a signal handler: no caller gets this server
            self.close()
            raise
        if self._error is not None and self._reason is None:
            raise self._error

    def _start_thread(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:
            raise BusyError(
                f"the thread of a server could not be started: {error}", where=" ".join(self.urls)
            ) from error

    @property
    def urls(self) -> list[str]:
        """The addresses of the server, for its clients."""
        raise NotImplementedError

    @property
    def has_ended(self) -> bool:
        """Whether the server has ended, by itself or by `close`."""
        return not self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait at most `seconds` for the end of the server; return whether it ended.

        Raises:
            FailedError: the server has ended because its store failed. Close the store, and open it
                again: opening recovers it.
            UnavailableError: the server has ended because the file of its socket was removed or
                replaced, so that no client finds it. The store is open.
        """
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stop: end waiting calls, let the others end, send their answers. The store stays open."""
        if os.getpid() != self._pid:
            raise forked_error("the server", self._pid)
        if not self._is_closed:
            self._is_closed = True
            self._request_end()
        if self._thread.ident is not None:
            self._thread.join()

    def store_failed(self, error: FailedError) -> None:
        """End: the store has failed. From any thread; `wait` raises the error."""
        if self._reason is None:
            self._reason = error
        self._request_end()

    def _request_end(self) -> None:
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with suppress(RuntimeError):  # the loop is closed: the server has ended
                loop.call_soon_threadsafe(stop.set)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - `wait` and `start` raise it
            self._error = error
            if self._ready.is_set():
                _log.error("the server %s has ended: %s", " ".join(self.urls), error)
        finally:
            self._ready.set()
            self._detach()

    def _detach(self) -> None:
        if self._store is not None:
            self._store._detach_server(self)
        self._release()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        if self._is_closed or self._reason is not None:  # before there was a loop to tell
            self._stop.set()
        await self._serve(self._stop)
        if self._reason is not None:
            raise self._reason

    async def _serve(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set; set `_ready` when clients can connect."""
        raise NotImplementedError

    def _release(self) -> None:
        """Close the listening sockets. A second call does nothing."""
        raise NotImplementedError

    def _forget_in_child(self) -> None:
        """Close the copies of the sockets in a forked child."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {' '.join(self.urls)}>"
