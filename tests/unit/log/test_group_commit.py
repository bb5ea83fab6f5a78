"""Leaders and waiters of sync rounds."""

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.inside import sync_waiters
from timerstore._engine.log.group_commit import GroupCommit

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

        waiter_count = len(sync_waiters(self.rounds))
        thread = threading.Thread(target=call, daemon=True)
        self.threads[offset] = thread
        thread.start()
        while len(sync_waiters(self.rounds)) == waiter_count:
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
    made = Callers(GroupCommit())
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


def test_abandon_completes_an_interrupted_end(callers: Callers) -> None:
    rounds = callers.rounds
    assert rounds.lead(1)
    callers.add(2)
    callers.add(3)
    sync_waiters(rounds)[0].wakeup.release()  # then the end was interrupted
    rounds.abandon()
    callers.check_woken(2, 3)
    assert rounds.lead(4)
