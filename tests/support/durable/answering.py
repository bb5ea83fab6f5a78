"""One store, reached in one of the ways in which its calls are answered, on a recorded disk.

    blocking             calls of TimerStore
    awaited              calls of AsyncTimerStore
    client, aio client   calls through a server; its loop syncs itself (quick), or threads do (slow)

An answer that comes before its sync is found, whatever the threads do: each sync of another thread
first lets the loop run some turns, in which the loop would answer. The answer of a server is judged
when it leaves the server.
"""

import asyncio
import inspect
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.aio
import timerstore.net
from tests.support.bench import NOW, small
from tests.support.durable.files import ANSWER
from tests.support.durable.recorder import Recorder
from tests.support.inside import inside
from timerstore import TimerStore
from timerstore.aio import quick_work
from timerstore.testing import ManualClock
from timerstore.types.clock import Clock, SystemClock

_BLANK_MAGIC = 0xCBD43194
_SERVER_THREAD = "timerstore-net"
_WAKES_LOOP = b"\0"  # sent by asyncio to its own loop
_TURNS = 5
_PATIENCE_S = 0.001

WAYS = (
    "blocking by hand", "blocking", "awaited by hand", "awaited", "client quick",
    "client slow by hand", "aio client slow", "aio client quick by hand",
)  # fmt: skip
"""by hand: the store has a ManualClock, without which single puts are made by C."""


def durable_log_end(recorder: Recorder, root: Path) -> int:
    """Return the log offset after the last record that a power cut leaves."""
    end = 0
    for name, data in recorder.durable_files(root / "commitlog").items():
        begin = int(name)
        if begin != end:
            return end
        at = 0
        while size := int.from_bytes(data[at : at + 4]):
            is_blank = int.from_bytes(data[at + 4 : at + 8]) == _BLANK_MAGIC
            at = len(data) if is_blank else at + size
        end = begin + at
    return end


class Answering:
    """A store, and a caller that reaches it in one way."""

    def __init__(self, disk: Path, recorder: Recorder, way: str, flush: str) -> None:
        self.root = disk / "store"
        self.config = small(flush=flush)
        self.clock: Clock = ManualClock(NOW) if way.endswith("by hand") else SystemClock()
        self.early: list[str] = []
        """The faults of the answers that a server sent."""
        self._judged: Callable[[], str] | None = (
            None  # during a call: returns the fault of an answer
        )
        self.on_send: Callable[[bytes], None] = self._judge
        """Called on the server's loop with the bytes that are about to leave it."""
        self.caller: Any = None
        self._way = way.removesuffix(" by hand")
        self._recorder = recorder
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answered = threading.Event()
        self._runner: asyncio.Runner | None = None

    @contextmanager
    def opened(self) -> Iterator["Answering"]:
        """Open the store, and connect the caller."""
        with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
            # The runner ends last: it closes the loop.
            if "aio" in self._way or self._way == "awaited":
                self._runner = stack.enter_context(asyncio.Runner())
            self.store = self._open(stack)
            if "client" in self._way:
                quick_s = 1e9 if "quick" in self._way else -1.0
                patch.setattr(quick_work, "_QUICK_S", quick_s)
                self._serve(stack, patch)
            elif self._runner is not None:
                self._loop = self._runner.get_loop()
            self._let_the_loop_run_before_syncs(patch)
            yield self

    def _open(self, stack: ExitStack) -> TimerStore:
        if self._way != "awaited":
            store = timerstore.open(self.root, self.config, clock=self.clock, threads=False)
            self.caller = store
            return stack.enter_context(store)

        async def opened() -> timerstore.aio.AsyncTimerStore:
            return await timerstore.aio.open(
                self.root, self.config, clock=self.clock, threads=False
            )

        self.caller = self._run(opened())
        stack.callback(lambda: self._run(self.caller.close()))
        found: TimerStore = self.caller.blocking
        return found

    def _serve(self, stack: ExitStack, patch: pytest.MonkeyPatch) -> None:
        path = self.root.with_suffix(".sock")
        send = socket.socket.send

        def sending(one: socket.socket, *given: Any) -> int:
            is_answer = given[0] != _WAKES_LOOP
            if is_answer and threading.current_thread().name == _SERVER_THREAD:
                self._loop = asyncio.get_running_loop()
                self.on_send(bytes(given[0]))
            return send(one, *given)

        patch.setattr(socket.socket, "send", sending)
        stack.enter_context(timerstore.net.serve(self.store, socket=path))
        # Without retries a put gets no id from the client, and takes another path.
        options: dict[str, Any] = {"retry_for": 0} if "slow" in self._way else {}
        if self._runner is None:
            self.caller = stack.enter_context(timerstore.connect(f"unix://{path}", **options))
            return

        async def connected() -> Any:
            return await timerstore.aio.connect(f"unix://{path}", **options)

        self.caller = self._run(connected())
        stack.callback(lambda: self._run(self.caller.close()))

    def _judge(self, _data: bytes) -> None:
        if self._judged is not None and (wrong := self._judged()):
            self.early.append(wrong)

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        assert self._runner is not None
        return self._runner.run(call)

    def _let_the_loop_run_before_syncs(self, patch: pytest.MonkeyPatch) -> None:
        def after_turns(sync: Callable[[int], None]) -> Callable[[int], None]:
            def synced(fd: int) -> None:
                self._let_the_loop_run()
                sync(fd)

            return synced

        patch.setattr(os, "fsync", after_turns(os.fsync))
        patch.setattr(os, "fdatasync", after_turns(os.fdatasync))

    def _let_the_loop_run(self) -> None:
        loop = self._loop
        if self._judged is None or loop is None or not loop.is_running() or self.is_on_loop:
            return

        async def turns() -> None:
            for _ in range(_TURNS):
                await asyncio.sleep(0)

        ran = asyncio.run_coroutine_threadsafe(turns(), loop)
        while not (ran.done() or self._answered.is_set()):
            self._answered.wait(_PATIENCE_S)

    # --- calls ---

    def sync(self) -> None:
        """Make the log durable, so that the next call finds it so."""
        log = inside(self.store).log
        log.sync_through(log.end)

    def wrong(self) -> str:
        """Return what a power cut would take back of the log and its files; empty: nothing."""
        try:
            self._recorder.check(ANSWER, self.root.name)
        except AssertionError as error:
            return str(error)
        durable, end = durable_log_end(self._recorder, self.root), inside(self.store).log.end
        return "" if durable >= end else f"the log is durable to {durable}, and ends at {end}"

    def is_durable(self, log_offset: int) -> bool:
        """Return whether a power cut leaves the record at this offset."""
        return log_offset < durable_log_end(self._recorder, self.root)

    @property
    def is_on_loop(self) -> bool:
        """Whether this thread is the one of the loop that answers."""
        return self._loop is not None and _running_loop() is self._loop

    def make(
        self, call: Callable[[Any], Any], judged: Callable[[], str] | None = None
    ) -> tuple[Any, str]:
        """Make a call. Return its answer, and the fault that `judged` found when it came."""
        judged = self.wrong if judged is None else judged
        self.early.clear()
        self._answered.clear()
        self._judged = judged
        try:
            found = call(self.caller)
            if inspect.iscoroutine(found):
                found = self._run(found)
            wrong = judged()
        finally:
            self._judged = None
            self._answered.set()
        return found, self.early[0] if self.early else wrong


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
