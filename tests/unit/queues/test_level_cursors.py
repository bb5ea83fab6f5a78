"""Level cursors compared with plain sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timerstore._engine.queues.level_cursors import OFFSET_BITS, LevelCursors

QUEUES = st.sampled_from([0, 1, 17, 32_767])
OFFSETS = st.integers(0, 24)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("done"), QUEUES, st.sets(OFFSETS, max_size=8)),
        st.tuples(st.just("begin"), QUEUES, OFFSETS),
    ),
    max_size=20,
)


@given(STEPS, OFFSETS, OFFSETS)
def test_cursors_equal_a_set(steps: list[tuple[str, int, object]], begin: int, end: int) -> None:
    cursors, done = LevelCursors(), {queue: set() for queue in (0, 1, 17, 32_767)}
    for kind, queue, what in steps:
        if kind == "begin":
            cursors.begin_at(queue, what)
            done[queue] |= set(range(what))
        else:
            places = np.array([queue << OFFSET_BITS | offset for offset in what], np.int64)
            cursors.done(places)
            done[queue] |= what
    again = LevelCursors()
    again.add(cursors.copy())
    for one in (cursors, again):
        for queue, offsets in done.items():
            assert {n for n in range(30) if one.is_done(queue, n)} == offsets
            assert one.cursor(queue) == min(set(range(30)) - offsets)
            gaps = [n for first, last in one.gaps(queue, begin, end) for n in range(first, last)]
            assert gaps == [n for n in range(begin, end) if n not in offsets]
        assert one.has_gaps == any(max(o, default=-1) >= len(o) for o in done.values())
    assert again.copy() == cursors.copy()


def test_messages_done_in_order_take_one_number() -> None:
    cursors = LevelCursors()
    for first in range(0, 1000, 10):
        cursors.done(np.arange(first, first + 10) | 3 << OFFSET_BITS)
    assert cursors.copy() == {3: (1000,)}
