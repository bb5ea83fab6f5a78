"""Run a call of a read-only store at a position, and again if files changed below it.

Threads:  any; calls take turns under `_lock`.
Holds:    (1) no answer is as of an earlier moment than the one before; (2) what its owner removed
          or wrote anew meanwhile is no error: it is asked for again.
Raises: ClosedError, ForkedError, ReentrantCallError; and disk errors that persist when retried.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from timerstore._engine.base.closing import Closing, close_at_exit, warn_unclosed
from timerstore._engine.base.native import Lock
from timerstore._engine.format.store_paths import BACKUP_JSON
from timerstore._engine.read.queue_reader import QueueReader
from timerstore._engine.snapshot.position import SnapshotPosition
from timerstore._engine.snapshot.snapshot_polling import SnapshotPolling
from timerstore._engine.snapshot.snapshot_timers import SnapshotTimers
from timerstore._engine.snapshot.view import SnapshotView
from timerstore._engine.storage.read_only_disk import ReadOnlyDisk
from timerstore.clock import Clock, SystemClock
from timerstore.config import StoreConfig
from timerstore.errors import (
    ClosedError,
    ConfigError,
    CorruptError,
    FailedError,
    ForkedError,
    GoneError,
    TimerStoreError,
    reentrant_call,
    stopped_at_exit,
)

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Store = TypeVar("Store", bound="SnapshotCalls")

_TRIES = 8
_EXIT_WAIT_S = 5.0  # how long closing at interpreter exit waits for a call of another thread


def answered(
    method: Callable[Concatenate[Store, Arguments], Answer],
) -> Callable[Concatenate[Store, Arguments], Answer]:
    """A call that is answered as of the moment of now."""

    @wraps(method)
    def call(self: Store, /, *args: Arguments.args, **given: Arguments.kwargs) -> Answer:
        return self.answer(lambda: method(self, *args, **given))

    return call


class SnapshotCalls(Closing):
    """What every part of a store that is read stands on."""

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
        self._make_rooms()
        close_at_exit(self)

    def _make_rooms(self) -> None:
        room = SnapshotView(self._root, self._given, self._clock)
        log: Any = room.log
        timers, reader = SnapshotTimers(room, self._clock), QueueReader(room.config, log)
        self._timers, self._reader, self._room = timers, reader, room

    # --- answering ---

    def check_open(self) -> None:
        """ClosedError, ForkedError where it cannot be asked."""
        if os.getpid() != self._pid:
            raise ForkedError(
                "a store belongs to the process that opened it",
                where=self._root,
                wanted=f"process {self._pid}",
                got=f"process {os.getpid()}",
            )
        if self._closed:
            raise ClosedError("the store is closed", where=self._root)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have the rooms alone. ClosedError, ForkedError where they cannot be asked."""
        self.check_open()  # not behind the lock, which a fork may have left locked
        with self._lock:
            self.check_open()
            yield

    def answer(self, ask: Callable[[], Answer]) -> Answer:
        """Ask as of the moment of now. What its owner removed or wrote anew meanwhile is asked for
        again; queues that do not fit the log are read from the log.
        """
        with self.turn():
            for turn in range(_TRIES):
                self.check_open()
                before = self._room.moment
                try:
                    self._room.advance()
                    if self._room.is_outgrown():
                        outgrown = self._room
                        self._make_rooms()
                        outgrown.close()
                    before = self._room.moment
                    return ask()
                except (CorruptError, FailedError) as error:
                    self._look_again(error, before, turn)
            raise AssertionError("the last turn raises")

    def _look_again(self, error: TimerStoreError, before: SnapshotPosition, turn: int) -> None:
        """Where that may help, else raise it."""
        room = self._room
        if turn == _TRIES - 1:
            raise error
        is_gone = isinstance(error, GoneError)
        try:
            room.advance()
            if room.moment == before and not is_gone:
                is_queue = str(error.where).startswith(str(room.tree.queues))
                if not (is_queue and room.distrust_queues()):
                    raise error
            elif is_gone and turn == _TRIES - 2:
                room.distrust_queues()
            room.start_over()
        except (CorruptError, FailedError) as again:
            raise error from again

    @property
    def path(self) -> Path:
        """Its directory."""
        return self._root

    @property
    def clock(self) -> Clock:
        """The clock that it goes by."""
        return self._clock

    @property
    def config(self) -> StoreConfig:
        """What was given, with the sizes that the store's files have."""
        return self._room.config

    def close(self) -> None:
        """Close the files and end waiting calls. A second call does nothing.

        Raises:
            ReentrantCallError: the calling thread is in another call of this store.
        """
        self._close(-1)

    def _close_at_exit(self) -> None:
        self._close(_EXIT_WAIT_S)

    def _close(self, within_s: float) -> None:
        """Close; LockedError where a call of another thread takes longer (-1: any time)."""
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
            self._room.close()
            self._is_released = True
        finally:
            self._lock.release()

    def __del__(self) -> None:
        room = getattr(self, "_room", None)  # None: opening it failed
        if room is not None and not self._is_released and os.getpid() == self._pid:
            warn_unclosed(self, self._root)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<ReadOnlyStore {str(self._root)!r} {state}>"
