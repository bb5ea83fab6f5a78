"""VersionSet against a plain set."""

from hypothesis import given
from hypothesis import strategies as st

from timerstore._engine.write.ledger import VersionSet

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=30)


@given(RANGES)
def test_version_set_equals_a_set(ranges: list[tuple[int, int]]) -> None:
    found, wanted = VersionSet(), set[int]()
    for begin, size in ranges:
        found.add_range(begin, begin + size)
        wanted.update(range(begin, begin + size))
    assert {v for v in range(60) if v in found} == wanted
    assert {v for b, e in found.ranges() for v in range(b, e)} == wanted
    assert bool(found) == bool(wanted)
    edges = [edge for one in found.ranges() for edge in one]
    assert edges == sorted(set(edges)), "ascending, none next to another"
    again = VersionSet()
    for begin, end in found.ranges():
        again.add_range(begin, end)
    assert again.ranges() == found.ranges()
