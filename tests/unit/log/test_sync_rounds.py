"""Who leads a sync round, who sleeps through it, and who is woken by its end."""

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.inside import sync_sleepers
from timerstore._engine.log.group_commit import GroupCommit

PATIENCE_S = 30.0


class Callers:
    """Threads that come to a round one by one."""

    def __init__(self, rounds: GroupCommit) -> None:
        self.rounds = rounds
        self.led: dict[int, bool] = {}
        self.threads: dict[int, threading.Thread] = {}

    def come(self, offset: int) -> None:
        """One more, who is asleep when this returns."""

        def call() -> None:
            self.led[offset] = self.rounds.lead(offset)

        asleep = len(sync_sleepers(self.rounds))
        thread = threading.Thread(target=call, daemon=True)
        self.threads[offset] = thread
        thread.start()
        while len(sync_sleepers(self.rounds)) == asleep:
            assert thread.is_alive(), "it did not sleep"

    def woken(self, *offsets: int) -> None:
        """These return, without the lead; the others sleep on."""
        for offset in offsets:
            self.threads[offset].join(PATIENCE_S)
            assert self.led.pop(offset) is False
            del self.threads[offset]
        assert all(thread.is_alive() for thread in self.threads.values())


@pytest.fixture
def callers() -> Iterator[Callers]:
    made = Callers(GroupCommit())
    yield made
    made.rounds.leave()
    for thread in made.threads.values():
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_who_comes_first_leads_and_again_after_the_end(callers: Callers) -> None:
    rounds = callers.rounds
    assert rounds.lead(5)
    rounds.end(5)
    assert rounds.lead(6)
    rounds.end(6)


def test_the_end_wakes_all_whom_it_served_and_the_first_of_the_others(callers: Callers) -> None:
    assert callers.rounds.lead(1)
    for offset in (30, 10, 40, 20):
        callers.come(offset)
    callers.rounds.end(20)
    callers.woken(10, 20, 30)
    assert callers.rounds.lead(30)
    callers.rounds.end(30)  # serves none: the next one is woken all the same
    callers.woken(40)


def test_one_leads_at_a_time(callers: Callers) -> None:
    assert callers.rounds.lead(1)
    callers.come(2)
    callers.come(3)
    callers.rounds.end(1)
    callers.woken(2)
    assert callers.rounds.lead(2)
    callers.come(4)


@pytest.mark.parametrize("goes", [GroupCommit.leave, lambda rounds: rounds.end(1)])
def test_who_leads_and_goes_leaves_the_lead_to_others(
    callers: Callers, goes: Callable[[GroupCommit], None]
) -> None:
    assert callers.rounds.lead(1)
    goes(callers.rounds)
    assert callers.rounds.lead(2)


def test_leaving_wakes_everybody_but_takes_nobody_elses_lead(callers: Callers) -> None:
    assert callers.rounds.lead(1)
    callers.come(2)
    callers.come(3)
    leaving = threading.Thread(target=callers.rounds.leave)
    leaving.start()
    leaving.join(PATIENCE_S)
    callers.woken(2, 3)
    callers.come(4)  # this thread leads still


def test_an_end_that_was_cut_short_is_made_good_by_leaving(callers: Callers) -> None:
    rounds = callers.rounds
    assert rounds.lead(1)
    callers.come(2)
    callers.come(3)
    sync_sleepers(rounds)[0].bell.release()  # as far as it came
    rounds.leave()
    callers.woken(2, 3)
    assert rounds.lead(4)
