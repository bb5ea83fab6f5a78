"""Count the running calls of an open store, and close it when its servers and they have ended.

Thread safety: any thread may call and close. `close` waits for running calls.
Invariants:
    1. No call begins after `close` has begun, or in a forked child.
    2. A FailedError of a file of the store is final: every later call raises it. The servers of
       the store end, so that their clients look for the next owner.
"""

import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from threading import get_ident
from typing import Any, Concatenate, ParamSpec, TypeVar

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Closing, close_at_exit, warn_unclosed, weakly
from timerstore._engine.base.service import WakeEvent
from timerstore._engine.engine import Engine
from timerstore._engine.storage.guarded_map import TruncationWatch
from timerstore.errors import (
    ClosedError,
    CorruptError,
    FailedError,
    ForkedError,
    reentrant_call,
    stopped_at_exit,
)
from timerstore.types.clock import Clock
from timerstore.types.config import StoreConfig

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Store = TypeVar("Store", bound="OpenStore")

_CALLS_POLL_S = 0.5  # how often `close` looks for running calls without a notification
_EXIT_WAIT_S = 5.0  # how long closing at interpreter exit waits for calls of other threads

_opened_here: "weakref.WeakSet[OpenStore]" = weakref.WeakSet()


def _block_in_child() -> None:
    for store in list(_opened_here):
        store._block()


os.register_at_fork(after_in_child=_block_in_child)


def api_call(
    method: Callable[Concatenate[Store, Arguments], Answer],
) -> Callable[Concatenate[Store, Arguments], Answer]:
    """Make a method a call that `close` waits for, and that raises once the store is closed.

    A FailedError of a file of the store makes the store fail for all later calls. A FailedError of
    another file, such as a backup's, concerns this call only.
    """

    @wraps(method)
    def call(self: Store, /, *args: Arguments.args, **given: Arguments.kwargs) -> Answer:
        if self._blocked:
            self._check_open()
        calls, mine = self._calls, object()
        try:
            calls[mine] = get_ident()  # a single step, as is `pop`: no signal handler runs within
            if self._blocked:
                self._check_open()
            answer = method(self, *args, **given)
            self._cuts.check()
        except BaseException as error:
            self._fail_if_final(error)
            raise
        finally:
            calls.pop(mine, None)
            if self._blocked:
                self._call_ended.set()
        return answer

    return call


class AttachedServer(Closing):
    """A server of a store. `close` lets its running calls end, and ends it."""

    def stats(self) -> dict[str, Any]:
        """Return its counters and gauges by name."""
        raise NotImplementedError

    def store_failed(self, error: FailedError) -> None:
        """Request the end: the store has failed. From any thread; it neither waits nor raises."""
        raise NotImplementedError


class OpenStore(Closing):
    """An engine, the calls that run in it, and whether it was closed."""

    config: StoreConfig
    _putter: Any  # the puts of C, which also check `blocked`
    _unsubscribe: Callable[[], None]

    def __init__(self, clock: Clock, *, threads: bool) -> None:
        self._clock = clock
        self._threads = threads
        self._pid = os.getpid()
        self._closed = self._is_closing = False
        self._close_lock = Lock()
        self._calls: dict[object, int] = {}  # running calls, each with the ident of its thread
        self._call_ended = WakeEvent()
        self._servers: list[AttachedServer] = []

    def _own(self, engine: Engine) -> None:
        self._engine: Engine = engine
        self.config = engine.config
        self._log = engine.log
        self._native = engine.log.native
        self._cuts = TruncationWatch(engine.directory.root)
        self._blocked = False  # closed, or in a forked child
        engine.signals.store_failed.subscribe(weakly(self._end_servers))

    def _close_when_forgotten(self) -> None:
        """Block the store in forked children, and close it at interpreter exit."""
        _opened_here.add(self)
        close_at_exit(self)

    @property
    def path(self) -> Path:
        """The directory of the store."""
        return self._engine.directory.root

    @property
    def clock(self) -> Clock:
        """The clock that the store uses."""
        return self._clock

    @api_call
    def _call(self, function: Callable[..., Answer], *args: Any) -> Answer:
        """Run a step of a consumer, or of a pull that has begun, as a call of the store."""
        return function(*args)

    def _steps_of(self, items: Iterator[Answer]) -> Iterator[Answer]:
        """Yield each item in a call of its own: the caller may close the store in between."""
        while (one := self._call(next, items, None)) is not None:
            yield one

    # --- servers ---

    def _attach_server(self, server: AttachedServer) -> None:
        """Add a server of this store. `stats` contains its counters, `close` closes it, and a
        failure of the store ends it, also one of before.
        """
        with self._close_lock:
            self._check_open()
            self._servers.append(server)
        if self._log.failed is not None:
            self._end_servers()

    def _detach_server(self, server: AttachedServer) -> None:
        """Remove a server that has ended."""
        if server in self._servers:
            self._servers.remove(server)

    def _end_servers(self) -> None:
        for server in list(self._servers):
            server.store_failed(self._log.failure())

    # --- errors ---

    def _fail_if_final(self, error: BaseException) -> None:
        """Make the store fail if a call's error concerns its own files."""
        if isinstance(error, CorruptError):
            self._log.check_alive()  # not corruption if the file was cut: the rest reads as zeros
        elif isinstance(error, FailedError) and self._is_ours(error):
            self._log.fail(error)

    def _is_ours(self, error: FailedError) -> bool:
        """Return whether an error concerns a file of this store, or names no file."""
        if error.where is None:
            return True
        path = Path(str(error.where).partition(" offset ")[0])
        return path.is_relative_to(self._engine.directory.root)

    # --- syncs of puts that begin in C ---

    def _sync_through(self, offset: int) -> None:
        """Make the log durable up to `offset`, for a put that the putter counts as a call."""
        try:
            self._log.sync_through(offset)
            self._cuts.check()
        except BaseException as error:
            self._fail_if_final(error)
            raise

    @api_call
    def _sync_begun(self, offset: int) -> None:
        """Make the log durable up to `offset`, for callers of `_begin_put`."""
        self._log.sync_through(offset)

    # --- closing ---

    def _block(self) -> None:
        """Make every call from now on check whether the store is open."""
        self._blocked = True
        self._putter.blocked = 1

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(
                "a store belongs to the process that opened it",
                where=self._engine.directory.root,
                wanted=f"process {self._pid}",
                got=f"process {os.getpid()}",
            )

    def _check_open(self) -> None:
        self._check_process()
        if self._closed:
            raise ClosedError("the store is closed", where=self._engine.directory.root)

    def _check_alive(self) -> None:
        """Raise ClosedError if the store is closed or closing, FailedError if it has failed."""
        self._check_open()
        if self._is_closing:
            raise ClosedError("the store is closing", where=self._engine.directory.root)
        self._log.check_alive()

    def _refuse_reentrant_close(self) -> None:
        """Raise ReentrantCallError if this thread is in a call of the store, which `close` would
        wait for, or is a thread of the store's services.
        """
        is_in_call = get_ident() in tuple(self._calls.values())
        is_service = any(one.is_own_thread for one in self._engine.services)
        if is_in_call or is_service or self._close_lock.is_mine():
            raise reentrant_call(self._engine.directory.root)

    def close(self) -> None:
        """Stop the services, complete a checkpoint and release the directory.

        First close the servers of the store: their clients look for another server. Wait for calls
        of other threads. Everything that was put is durable on return. A second call
        does nothing, unless the first was interrupted before it released the directory, by a lack
        of memory or Ctrl-C: then it completes the close.

        A store that is open when the interpreter ends is closed by an exit hook (atexit). The hook
        waits at most 5 s for calls of other threads. If one still runs, the store is left as after
        a kill. A later `close`, such as in `__del__`, does nothing.

        Raises:
            ReentrantCallError: the same thread is in another call of the store, as in a signal
                handler.
            ForkedError: the store was opened by a parent process.
        """
        self._close()

    def _close_at_exit(self) -> None:
        self._close(time.monotonic() + _EXIT_WAIT_S)

    def _is_released(self) -> bool:
        return not self._engine.directory.is_held

    def _close(self, end_s: float | None = None) -> None:
        """Close the store. Raise LockedError if calls of other threads still run at `end_s`
        (monotonic), or can never end because the interpreter has stopped their threads.
        """
        if self._is_released():  # first: at exit the modules used below may be gone
            return
        self._check_process()
        self._refuse_reentrant_close()
        with self._close_lock:
            if self._is_released():
                return
            self._is_closing = True
            for server in list(self._servers):  # first: its calls end with results, not errors
                server.close()
            self._engine.groups.close()  # wakes waiting consumers
            self._closed = True
            self._block()
            self._unsubscribe()
            self._engine.puller.long_polls.close()  # wakes waiting pulls
            while self._calls:
                if sys.is_finalizing() or (end_s is not None and time.monotonic() >= end_s):
                    raise stopped_at_exit(self._engine.directory.root)
                # With a time-out: a signal may prevent a call from notifying that it has ended.
                self._call_ended.wait(_CALLS_POLL_S)
            self._calls_ended()
            self._engine.close()

    def _calls_ended(self) -> None:
        """Do the last work of the engine, when no call runs and none can begin."""

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)  # None: opening it failed
        if engine is None or not engine.directory.is_held or os.getpid() != self._pid:
            return
        for service in self._engine.services:
            service.request_stop()
        warn_unclosed(self, engine.directory.root)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<{type(self).__name__} {str(self._engine.directory.root)!r} {state}>"
