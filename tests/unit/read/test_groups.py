"""divide: every queue is assigned, fairly, and few queues move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore._engine.read.groups import check_name, divide
from timerstore.errors import MessageError


@pytest.mark.parametrize(
    ("count", "held", "shares"),
    [
        (4, [[]], [[0, 1, 2, 3]]),
        (4, [[0, 1, 2, 3], []], [[0, 1], [2, 3]]),
        (4, [[2, 3]], [[0, 1, 2, 3]]),
        (5, [[0, 1, 2, 3, 4], []], [[0, 1, 2], [3, 4]]),
        (2, [[0], [1], []], [[0], [1], []]),
        (3, [[0], [1]], [[0, 2], [1]]),
        (0, [[], []], [[], []]),
        (2, [], []),
        (1, [[0, 1, 2], []], [[0], []]),
    ],
)
def test_divide(count: int, held: list[list[int]], shares: list[list[int]]) -> None:
    assert divide(range(count), held) == shares


@st.composite
def situations(draw: st.DrawFn) -> tuple[set[int], list[list[int]]]:
    queues = draw(st.sets(st.integers(0, 20)))
    owners = draw(st.lists(st.integers(-1, 5), min_size=21, max_size=21))
    consumers = draw(st.integers(1, 6))
    return queues, [[q for q in range(21) if owners[q] == k] for k in range(consumers)]


@given(situations())
def test_divide_assigns_each_queue_once_and_moves_as_few_as_possible(
    situation: tuple[set[int], list[list[int]]],
) -> None:
    queues, held = situation
    shares = divide(queues, held)
    assert sorted(q for share in shares for q in share) == sorted(queues)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    kept = sum(len(set(a) & set(b)) for a, b in zip(held, shares, strict=True))
    # No consumer can keep more than a fair share, and only `extra` of them may keep the larger one.
    base, extra = divmod(len(queues), len(held))
    had = sorted((len(queues.intersection(one)) for one in held), reverse=True)
    most = sum(min(n, base + (k < extra)) for k, n in enumerate(had))
    assert kept == most
    assert divide(queues, shares) == shares


@pytest.mark.parametrize("name", ["a", "x" * 255, "a|b%c-d_e", "%RETRY%billing", "0"])
def test_check_name_accepts_names_of_rocketmq(name: str) -> None:
    assert check_name("group", name) == name


@pytest.mark.parametrize(
    "name",
    ["", " ", "x" * 256, "a@b", "a b", "a.b", "a/b", "..", "ünï", "a\n", "a\0", None, 5, b"a"],
)
def test_check_name_rejects_other_names(name: object) -> None:
    with pytest.raises(MessageError, match="group: wanted 1 to 255 of"):
        check_name("group", name)
