"""Services and callers do all their work if they run only when they are woken, or in their time.

A missing wake-up shows as work that is not done: a late message, bytes that are not durable, a
caller that waits although there is a message, or a missing checkpoint.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import timerstore
from tests.support.amounts import AMOUNTS, sample
from tests.support.bench import NOW
from tests.support.driver import tiny
from tests.support.inside.sizes import SMALL, replaced
from tests.support.service_loops import CallerLoop, Loops, QuietClock
from timerstore import LeasedMessage, Message, NotPendingError, PullResult, PutReceipt

DELAYS_MS = [0, 0, 1, 5, 15, 50, 100, 400, 999, 1000, 3000, 20_000, 45_000, 130_000, 400_000]
TIMES_MS = [0, 1, 5, 50, 300, 1000, 2000, 20_000]
REST_MS = 2100
"""When the logs have not grown for this time, a checkpoint has followed."""
LAGS = ("dispatch_lag_bytes", "enqueue_lag_messages", "delivery_lag_messages")
ENDS = ("log_end_bytes", "timer_log_end_bytes")
ALL_MS = 500_000
CALL_S = 1e6


class World:
    """A store whose services and waiting callers run step by step, and calls in between."""

    def __init__(self, root: Path, seed: int) -> None:
        draw = self.draw = Random(seed)
        self.clock = QuietClock(NOW * 1000 + draw.randrange(1_000_000))
        precision_ms, retention_ms = draw.choice([100, 1000]), draw.choice([0, 2000, 3_600_000])
        config = replace(
            tiny(precision_ms, draw.choice(["sync", "async"]), retention_ms=retention_ms),
            far_wheel=draw.choice(["off", "shared", "own"]),
            visibility=draw.choice(["durable", "written"]),
        )
        self.root = root
        self.store = timerstore.open(root, config, clock=self.clock, threads=False)
        self.receipts: list[PutReceipt] = []
        self.leased: list[LeasedMessage] = []
        self.pulled_end = self.polled_end = 0
        self.store.put("read", b"first", queue_id=0)
        self.loops = Loops(self.store, self.clock, draw)
        self.callers = [
            CallerLoop(self.begin_pull, self.pulled),
            CallerLoop(self.begin_receive, self.store.ack_many),
            CallerLoop(self.begin_ordered, self.leased.extend),
        ]
        for _ in range(2):  # they share the queues
            reader = self.store.consumer("read", "readers")
            self.callers.append(CallerLoop(partial(reader.begin_poll, wait=None), self.polled))
        self.loops.add(*self.callers)

    # --- callers that wait ---

    def begin_pull(self) -> Any:
        return self.store.begin_pull("read", 0, self.pulled_end, wait=CALL_S)

    def pulled(self, found: PullResult) -> None:
        self.pulled_end = found.next_offset

    def polled(self, found: list[Message]) -> None:
        self.polled_end = max(one.queue_offset for one in found) + 1

    def begin_receive(self) -> Any:
        return self.store.begin_receive(["t", "read"], "any", wait=CALL_S)

    def begin_ordered(self) -> Any:
        lease = self.draw.choice([0.05, 1, 30])
        return self.store.begin_receive(
            "t", "ordered", ordered=True, wait=CALL_S, lease=lease, backoff=2
        )

    # --- calls ---

    def put(self) -> None:
        given: dict[str, Any] = {"delay": self.draw.choice(DELAYS_MS) / 1000}
        if self.draw.random() < 0.3:
            given["flush"] = self.draw.choice(["sync", "async"])
        if self.draw.random() < 0.2:
            given["keys"] = "k"
        if self.draw.random() < 0.5:
            given |= {"topic": "t", "message_group": self.draw.choice(["a", "b"])}
        else:
            given |= {"topic": "read", "queue_id": 0}
        self.receipts.append(self.store.put(body=b"x", **given))

    def put_many(self) -> None:
        delay_s = self.draw.choice(DELAYS_MS) / 1000
        self.store.put_many("t", [b"x"] * self.draw.choice([2, 30, 100]), delay=delay_s)

    def put_level(self) -> None:
        self.store.put("t", b"x", level=self.draw.choice([1, 2]))

    def change(self) -> None:
        if self.receipts:
            one = self.draw.choice(self.receipts)
            if self.draw.random() < 0.5:
                self.store.cancel(one)
            else:
                with suppress(NotPendingError):
                    self.store.reschedule(one, delay=self.draw.choice(DELAYS_MS) / 1000)

    def settle(self) -> None:
        if self.leased:
            one = self.leased.pop(self.draw.randrange(len(self.leased)))
            if self.draw.random() < 0.5:
                self.store.ack(one)
            else:
                self.store.nack(one, delay=self.draw.choice([0, 0.02, 2]))

    def checkpoint(self) -> None:
        self.store.services()["flush"].request_checkpoint()  # type: ignore[attr-defined]

    # --- time ---

    def run_some(self) -> None:
        self.loops.run(self.draw.randrange(60))

    def pass_time(self) -> None:
        self.loops.pass_time(self.draw.choice(TIMES_MS))

    def stand_still(self) -> None:
        """Let time pass while nothing runs, as on a machine that is suspended."""
        self.clock.now_us += 1000 * self.draw.choice(TIMES_MS)

    def rest(self, ms: int = REST_MS) -> None:
        """Let time pass until the logs stop growing, and check that nothing is left to do."""
        self.loops.pass_time(ms)
        before = self.store.stats()
        self.loops.pass_time(REST_MS)
        stats = self.store.stats()
        while any(stats[name] != before[name] for name in ENDS):
            before = stats
            self.loops.pass_time(REST_MS)
            stats = self.store.stats()
        assert [stats[name] for name in LAGS] == [0, 0, 0]
        assert stats["log_durable_bytes"] == stats["log_end_bytes"]
        with timerstore.open(self.root, read_only=True, clock=self.clock) as last:
            seen = last.stats()
        assert [seen[name] for name in ENDS] == [stats[name] for name in ENDS]
        assert seen["pending_messages"] == stats["pending_messages"]
        assert not self.store.pull("read", 0, self.pulled_end).messages
        assert self.polled_end == self.pulled_end
        assert self.store.receive(["t", "read"], "any") == []
        assert self.store.receive("t", "ordered", ordered=True, lease=1) == []

    def close(self) -> None:
        for one in self.callers:
            one.end()
        self.store.close()


@contextmanager
def _world(seed: int) -> Iterator[World]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        if seed % 2:
            stack.enter_context(replaced(SMALL))
        world = World(Path(directory) / "s", seed)
        stack.callback(world.close)
        yield world


@pytest.mark.parametrize(
    "seed", sample(range(AMOUNTS["seeds of wake-ups"].all), "seeds of wake-ups")
)
def test_no_wakeup_is_missing(seed: int) -> None:
    with _world(seed) as world:
        calls: list[Callable[[], None]] = [world.put] * 6 + [world.pass_time] * 3
        calls += [world.put_many, world.put_level, world.change, world.change, world.checkpoint]
        calls += [world.settle] * 3 + [world.run_some] * 2 + [world.stand_still]
        for _ in range(world.draw.choice([5, 15, 40])):
            world.draw.choice(calls)()
            if world.draw.random() < 0.08:
                world.rest()
        world.rest()
        world.rest(ALL_MS)
