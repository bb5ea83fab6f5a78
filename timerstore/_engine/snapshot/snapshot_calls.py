"""Run a call of a read-only store at a position, and again if files changed below it.

Thread safety: any thread. Calls take turns under `_lock`.
Invariants:
    1. No result is as of an earlier position than the result before it.
    2. Files that the owner removes or rewrites during a call are no error: the call runs again.
Raises: ClosedError, ForkedError, ReentrantCallError; and disk errors that persist when retried.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import (
    Closing,
    NotCopyable,
    close_at_exit,
    forked_error,
    warn_unclosed,
)
from timerstore._engine.format.store_paths import BACKUP_JSON
from timerstore._engine.read.queue_reader import QueueReader
from timerstore._engine.snapshot.position import SnapshotPosition
from timerstore._engine.snapshot.snapshot_timers import SnapshotTimers
from timerstore._engine.snapshot.view import SnapshotView
from timerstore._engine.storage.disk import ReadOnlyDisk
from timerstore.errors import (
    ClosedError,
    ConfigError,
    CorruptError,
    FailedError,
    GoneError,
    ReadOnlyError,
    TimerStoreError,
    reentrant_call,
    stopped_at_exit,
)
from timerstore.types.clock import Clock, SystemClock
from timerstore.types.config import StoreConfig

# --- snapshot polling ---
# `SnapshotPolling`: wait until a store's owner makes more messages visible.
#
# The owner does not notify other processes when it completes a checkpoint. So a waiting call of a
# read-only store looks every 50 ms. A look reads 1 KiB and two small files.
#
# Thread safety: any thread.
# Invariants: a wait ends within POLL_S after its time is over or `end` was called.


POLL_S = 0.05
"""Seconds between two looks: a tenth of the default time between two checkpoints."""


class SnapshotPolling(NotCopyable):
    """The pauses of the waiting calls of one store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turned = threading.Condition()
        self._has_ended = False
        self._unsubscribe: Callable[[], None] = clock.subscribe(self._wake)

    def end_ns(self, wait_s: float | None) -> int | None:
        """Return when a wait that begins now ends; None: never."""
        return None if wait_s is None else self._clock.monotonic_ns + int(wait_s * 1e9)

    def pause(self, end_ns: int | None) -> bool:
        """Sleep until the next look. Return False if the time is over."""
        left_s = POLL_S
        if end_ns is not None:
            left_s = (end_ns - self._clock.monotonic_ns) / 1e9
            if left_s <= 0:
                return False
        with self._turned:
            if not self._has_ended:
                self._turned.wait(min(POLL_S, left_s))
        return True

    def end(self) -> None:
        """Wake all waiters and let none sleep again."""
        self._unsubscribe()
        self._has_ended = True
        self._wake()

    def _wake(self) -> None:
        with self._turned:
            self._turned.notify_all()


# --- snapshot calls ---


Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Store = TypeVar("Store", bound="SnapshotCalls")

_TRIES = 32  # with 8, an owner that removed 60 files a second in this process often won
_EXIT_WAIT_S = 5.0  # how long closing at interpreter exit waits for a call of another thread


def answered(
    method: Callable[Concatenate[Store, Arguments], Answer],
) -> Callable[Concatenate[Store, Arguments], Answer]:
    """Run a method at the position of now; a decorator."""

    @wraps(method)
    def call(self: Store, /, *args: Arguments.args, **given: Arguments.kwargs) -> Answer:
        return self.answer(lambda: method(self, *args, **given))

    return call


class SnapshotCalls(Closing):
    """Opening, closing and running calls: the base of a read-only store."""

    def __init__(
        self,
        root: Path,
        config: StoreConfig | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._root = root.absolute()
        self._given = config
        self._clock = clock if clock is not None else SystemClock()
        self._pid = os.getpid()
        self._closed = False
        self._is_released = False
        self._lock = Lock()  # one call at a time
        if ReadOnlyDisk().exists(self._root / BACKUP_JSON):
            raise ConfigError(
                f"{root}: wanted a store's folder, got a backup; restore it into another folder"
            )
        self._polling = SnapshotPolling(self._clock)
        self._make_view()
        close_at_exit(self)

    def _make_view(self) -> None:
        view = SnapshotView(self._root, self._given, self._clock)
        timers, reader = SnapshotTimers(view, self._clock), QueueReader(view.config, view.log)
        self._timers, self._reader, self._view = timers, reader, view

    # --- running calls ---

    def check_open(self) -> None:
        """Raise ClosedError or ForkedError if the store cannot be used."""
        if os.getpid() != self._pid:
            raise forked_error(self._root, self._pid)
        if self._closed:
            raise ClosedError("the store is closed", where=self._root)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Use the view alone. Raises ClosedError or ForkedError."""
        self.check_open()  # before the lock, which a fork may have left locked
        with self._lock:
            self.check_open()
            yield

    def answer(self, ask: Callable[[], Answer]) -> Answer:
        """Run `ask` at the position of now. It runs again if the owner removed or rewrote files
        during it. Queues that do not fit the log are then read from the log.
        """
        with self.turn():
            for turn in range(_TRIES):
                self.check_open()
                before = self._view.position
                try:
                    self._view.advance()
                    if self._view.is_outgrown():
                        outgrown = self._view
                        self._make_view()
                        outgrown.close()
                    before = self._view.position
                    return ask()
                except (CorruptError, FailedError) as error:
                    self._look_again(error, before, turn)
            raise AssertionError("the last turn raises")

    def _look_again(self, error: TimerStoreError, before: SnapshotPosition, turn: int) -> None:
        """Prepare another try if it may help; otherwise raise the error."""
        view = self._view
        if turn == _TRIES - 1:
            raise error
        is_gone = isinstance(error, GoneError)
        try:
            view.advance()
            if view.position == before and not is_gone:
                is_queue = str(error.where).startswith(str(view.tree.queues))
                if not (is_queue and view.distrust_queues()):
                    raise error
            elif is_gone and turn == _TRIES - 2:
                view.distrust_queues()
            view.start_over()
        except (CorruptError, FailedError) as again:
            raise error from again

    @property
    def path(self) -> Path:
        """The store's directory."""
        return self._root

    @property
    def clock(self) -> Clock:
        """The clock of the store."""
        return self._clock

    @property
    def config(self) -> StoreConfig:
        """The given configuration, with the sizes of the store's files."""
        return self._view.config

    def close(self) -> None:
        """Close the files and end waiting calls. A second call does nothing.

        Raises:
            ReentrantCallError: the calling thread is in another call of this store.
        """
        self._close(-1)

    def _close_at_exit(self) -> None:
        self._close(_EXIT_WAIT_S)

    def _close(self, within_s: float) -> None:
        """Close. Raises LockedError if a call of another thread takes longer (-1: wait for it)."""
        if self._is_released:  # first: at exit the modules used below may be gone
            return
        if os.getpid() != self._pid:
            self.check_open()
        if self._lock.is_mine():
            raise reentrant_call(self._root)
        self._closed = True
        self._polling.end()
        if not self._lock.acquire(timeout=0 if sys.is_finalizing() else within_s):
            raise stopped_at_exit(self._root)
        try:
            self._view.close()
            self._is_released = True
        finally:
            self._lock.release()

    def __del__(self) -> None:
        view = getattr(self, "_view", None)  # None: opening it failed
        if view is not None and not self._is_released and os.getpid() == self._pid:
            warn_unclosed(self, self._root)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<ReadOnlyStore {str(self._root)!r} {state}>"


# --- rejected calls ---
# The calls that a read-only store rejects, and why.
#
# Raises: ReadOnlyError, with the call's name and the store's path; ClosedError, ForkedError.


_CHANGES = "it would change the store"
_WAITS = "the store's owner notifies waiting pulls, and it is another process"

UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "put", "put_many", "put_every", "cancel_every", "delete_topic", "ingest", "cancel",
                "cancel_many", "reschedule", "pace", "receive", "begin_receive", "lease_consumer",
                "ack", "ack_many", "nack", "extend", "renew", "heartbeat", "bury", "commit",
                "rollback", "requeue", "flush",
            ),
            _CHANGES,
        ),
        "backlog": "the process that has the store open counts leases",
        "consumer": "it commits; `follow` does not",
        "backup": "it begins with a flush",
        "services": "it has none",
        "begin_pull": _WAITS,
        "begin_pull_batch": _WAITS,
    }
)  # fmt: skip
"""By name of the call: the reason."""


def _rejection(name: str) -> Callable[..., NoReturn]:
    def call(self: SnapshotCalls, *_given: Any, **_named: Any) -> NoReturn:
        self.check_open()
        raise ReadOnlyError(
            f"{name}: the store was opened read-only ({UNSUPPORTED[name]})", where=self.path
        )

    call.__name__ = name
    call.__doc__ = "Raise ReadOnlyError."
    return call


def reject_unsupported(kind: type) -> type:
    """Make a class reject these calls; a decorator."""
    for name in UNSUPPORTED:
        setattr(kind, name, _rejection(name))
    return kind
