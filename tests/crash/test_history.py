"""Test which commits of a group the reports of the children allow."""

import pytest

from tests.crash.history import History
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
def test_commit_cut_by_a_kill_may_have_been_stored(first: Kind, at: int) -> None:
    assert told(*KILLED_IN_A_COMMIT, (first, at)) == []


@pytest.mark.parametrize("first", [Kind.SOUGHT, Kind.HANDED])
@pytest.mark.parametrize("at", [0, 4])
def test_returned_commit_is_stored_and_an_unknown_one_is_not(first: Kind, at: int) -> None:
    assert len(told(*KILLED_IN_A_COMMIT, (first, at))) == 1


def test_stored_commit_is_final_once_it_was_read() -> None:
    assert len(told(*KILLED_IN_A_COMMIT, (Kind.HANDED, 1), (Kind.SOUGHT, 3))) == 1
    assert len(told(*KILLED_IN_A_COMMIT, (Kind.SOUGHT, 3), (Kind.SOUGHT, 1))) == 1
