"""Leaders and waiters of sync rounds."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support.elsewhere import elsewhere
from timerstore._engine.base.native import Lock
from timerstore._engine.log.commit_log import GroupCommit

TIMEOUT_S = 30.0


class Callers:
    """Threads that call `lead` one after another."""

    def __init__(self, rounds: GroupCommit) -> None:
        self.rounds = rounds
        self.led: dict[int, bool] = {}
        self.threads: dict[int, threading.Thread] = {}

    def add(self, offset: int) -> None:
        """Start a thread, and return when it waits."""

        def call() -> None:
            self.led[offset] = self.rounds.lead(offset)

        waiter_count = self.rounds.waiter_count
        thread = threading.Thread(target=call, daemon=True)
        self.threads[offset] = thread
        thread.start()
        while self.rounds.waiter_count == waiter_count:
            assert thread.is_alive(), "it did not wait"

    def check_woken(self, *offsets: int) -> None:
        """Check that exactly these threads were check_woken, without becoming the leader."""
        for offset in offsets:
            self.threads[offset].join(TIMEOUT_S)
            assert self.led.pop(offset) is False
            del self.threads[offset]
        assert all(thread.is_alive() for thread in self.threads.values())


@pytest.fixture
def callers() -> Iterator[Callers]:
    made = Callers(GroupCommit(Lock()))
    yield made
    made.rounds.abandon()
    for thread in made.threads.values():
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def test_first_caller_leads_and_so_does_the_next_after_the_end(callers: Callers) -> None:
    rounds = callers.rounds
    assert rounds.lead(5)
    rounds.end(5)
    assert rounds.lead(6)
    rounds.end(6)


def test_end_wakes_all_served_waiters_and_the_first_of_the_others(callers: Callers) -> None:
    assert callers.rounds.lead(1)
    for offset in (30, 10, 40, 20):
        callers.add(offset)
    callers.rounds.end(20)
    callers.check_woken(10, 20, 30)
    assert callers.rounds.lead(30)
    callers.rounds.end(30)  # serves no waiter, but wakes the next one
    callers.check_woken(40)


def test_only_one_thread_leads_at_a_time(callers: Callers) -> None:
    assert callers.rounds.lead(1)
    callers.add(2)
    callers.add(3)
    callers.rounds.end(1)
    callers.check_woken(2)
    assert callers.rounds.lead(2)
    callers.add(4)


@pytest.mark.parametrize("leave", [GroupCommit.abandon, lambda rounds: rounds.end(1)])
def test_another_thread_can_lead_after_the_leader_left(
    callers: Callers, leave: Callable[[GroupCommit], None]
) -> None:
    assert callers.rounds.lead(1)
    leave(callers.rounds)
    assert callers.rounds.lead(2)


def test_abandon_by_a_waiter_wakes_all_waiters_and_keeps_the_leader(callers: Callers) -> None:
    assert callers.rounds.lead(1)
    callers.add(2)
    callers.add(3)
    leaving = threading.Thread(target=callers.rounds.abandon)
    leaving.start()
    leaving.join(TIMEOUT_S)
    callers.check_woken(2, 3)
    callers.add(4)  # waits, because this thread still leads


def test_abandon_by_the_leader_wakes_all_waiters(callers: Callers) -> None:
    rounds = callers.rounds
    assert rounds.lead(1)
    callers.add(2)
    callers.add(3)
    rounds.abandon()
    callers.check_woken(2, 3)
    assert rounds.lead(4)


def test_end_wakes_hundreds_of_waiters(callers: Callers) -> None:
    assert callers.rounds.lead(1)
    offsets = range(2, 302)
    for offset in offsets:
        callers.add(offset)
    callers.rounds.end(301)
    callers.check_woken(*offsets)
    assert callers.rounds.waiter_count == 0


class _StopError(Exception):
    pass


@contextmanager
def signalled(rounds: GroupCommit, act: Callable[[], object]) -> Iterator[None]:
    """Send a signal to this thread once it waits; its handler calls `act`."""
    main = threading.get_ident()
    done = threading.Event()

    def send() -> None:
        while rounds.waiter_count < 1:
            assert not done.is_set(), "the thread did not wait"
        while not done.wait(0.01):  # a signal that comes before the system call does not end it
            signal.pthread_kill(main, signal.SIGUSR1)

    def handle(*_: object) -> None:
        if not done.is_set():
            done.set()
            act()

    before = signal.signal(signal.SIGUSR1, handle)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        done.set()
        sender.join(TIMEOUT_S)
        signal.signal(signal.SIGUSR1, before)


def test_handler_that_raises_ends_the_wait(callers: Callers) -> None:
    rounds = callers.rounds
    lead_elsewhere(rounds)

    def stop() -> None:
        raise _StopError

    with signalled(rounds, stop), pytest.raises(_StopError):
        rounds.lead(2)
    assert rounds.waiter_count == 0


def test_handler_runs_while_its_thread_does_not_wait(callers: Callers) -> None:
    """So the end of a round cannot choose this thread to lead, and another waiter leads."""
    rounds = callers.rounds
    lead_elsewhere(rounds)

    def end_for_others() -> None:
        assert rounds.waiter_count == 0
        callers.add(3)
        callers.add(4)
        rounds.end(1)
        callers.check_woken(3)

    with signalled(rounds, end_for_others):
        assert not rounds.lead(2)
    assert rounds.lead(2), "the waiter was not told to look again"


def lead_elsewhere(rounds: GroupCommit) -> None:
    """Make a thread lead that has ended; any thread may end the round."""
    assert elsewhere(lambda: rounds.lead(1))


@pytest.mark.parametrize("call", ["lead", "end"])
def test_offset_that_is_not_a_number_raises(call: str) -> None:
    with pytest.raises(TypeError):
        getattr(GroupCommit(Lock()), call)("2")


def test_group_commit_wants_a_lock() -> None:
    with pytest.raises(TypeError, match="Lock"):
        GroupCommit(threading.Lock())
