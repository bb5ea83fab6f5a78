"""What the children's words allow, and what they do not."""

import pytest

from tests.crash.check import History
from tests.crash.report import Kind, Line


def told(*lines: tuple[Kind, int]) -> list[str]:
    history = History()
    for kind, at in lines:
        history.read(Line(kind, queue=0, a=at).pack())
    return history.problems


KILLED_IN_A_COMMIT = (
    *((Kind.HANDED, at) for at in range(3)),
    (Kind.COMMIT_BEGUN, 1),
    (Kind.COMMITTED, 1),
    (Kind.COMMIT_BEGUN, 3),
    (Kind.OPENED, 0),
)


@pytest.mark.parametrize("first", [Kind.SOUGHT, Kind.HANDED])
@pytest.mark.parametrize("at", [1, 3])
def test_a_commit_that_a_kill_cut_may_have_arrived(first: Kind, at: int) -> None:
    assert told(*KILLED_IN_A_COMMIT, (first, at)) == []


@pytest.mark.parametrize("first", [Kind.SOUGHT, Kind.HANDED])
@pytest.mark.parametrize("at", [0, 4])
def test_a_commit_that_returned_holds_and_what_was_not_asked_for_never_does(
    first: Kind, at: int
) -> None:
    assert len(told(*KILLED_IN_A_COMMIT, (first, at))) == 1


def test_once_it_is_seen_which_commit_holds_it_stays_so() -> None:
    assert len(told(*KILLED_IN_A_COMMIT, (Kind.HANDED, 1), (Kind.SOUGHT, 3))) == 1
    assert len(told(*KILLED_IN_A_COMMIT, (Kind.SOUGHT, 3), (Kind.SOUGHT, 1))) == 1
