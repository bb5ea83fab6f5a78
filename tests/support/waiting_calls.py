"""Pulls and polls that wait without a thread: a test makes each step of their caller."""

from typing import Any

from tests.support.bench import Bench
from tests.support.inside import inside
from timerstore import Consumer, Message, PullResult
from timerstore._engine.read.waiting import WaitingPoll, WaitingPull


class WaitingPullCaller:
    """The caller of one pull of topic t."""

    def __init__(
        self,
        bench: Bench,
        offset: int = 0,
        queue_id: int = 0,
        wait: float = 60.0,
        **filters: str,
    ) -> None:
        self.wake_count = 0
        self.result: PullResult | None = None
        self.pull: WaitingPull[PullResult] = bench.store.begin_pull(
            "t", queue_id, offset, wait=wait, **filters
        )
        self.is_waiting = False

    def _wake(self) -> None:
        self.wake_count += 1

    def look(self) -> None:
        self.result = self.pull.answer(self.pull.look())

    def enter(self) -> bool:
        self.is_waiting = self.result is None and self.pull.enter(self._wake)
        return self.is_waiting

    def resume(self) -> PullResult | None:
        """Make the caller's steps after a wake-up or at the end of its time; return its answer."""
        if self.is_waiting:
            self.pull.leave()
            self.is_waiting = False
        if self.result is None:
            self.look()
            self.enter()
        return self.result

    @property
    def bodies(self) -> list[bytes]:
        assert self.result is not None
        return [message.body for message in self.result.messages]


class PollCaller:
    """The caller of one poll of a consumer."""

    def __init__(self, consumer: Consumer, max_count: int = 32, wait: float | None = 60.0) -> None:
        self.wake_count = 0
        self.poll: WaitingPoll = consumer.begin_poll(max_count, wait)
        self.is_waiting = False
        self.answer: list[Message] | None = None

    def _wake(self) -> None:
        self.wake_count += 1

    def look(self) -> None:
        if self.is_waiting:
            self.poll.leave()
            self.is_waiting = False
        self.answer = self.poll.answer(self.poll.look())
        if self.answer is not None:
            self.poll.end()

    def enter(self) -> bool:
        self.is_waiting = self.answer is None and self.poll.enter(self._wake)
        return self.is_waiting

    def step(self) -> "PollCaller":
        """Make the caller's steps at first, after a wake-up, or at the end of its time."""
        self.look()
        while self.answer is None and not self.enter():
            self.look()
        return self

    def give_up(self) -> None:
        """End the poll as a cancelled task does."""
        if self.is_waiting:
            self.poll.leave()
        self.poll.end()
        self.is_waiting, self.answer = False, []

    @property
    def bodies(self) -> list[bytes] | None:
        return None if self.answer is None else [message.body for message in self.answer]


def long_poll_count(bench: Bench) -> int:
    """Return how many long polls wait in a store."""
    count: int = inside(bench.store).long_polls.count
    return count


def woken_count(bench: Bench) -> int:
    """Return how many waiting pulls messages have woken."""
    return int(bench.store.stats()["pull_woken"])


def put_now(bench: Bench, body: bytes, queue_id: int = 0, **given: Any) -> None:
    """Put a message into topic t, and let the services work."""
    bench.store.put("t", body, queue_id=queue_id, **given)
    bench.turn()
