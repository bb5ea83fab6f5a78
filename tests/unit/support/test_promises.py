"""PROMISES.md says what is there."""

import pytest

from tests import promises
from tests.promises import Promise


def test_the_page_is_what_is_made_of_its_sources() -> None:
    assert promises.PAGE.read_text() == promises.page(), "run: python -m tests.promises"


def test_every_promise_has_a_row() -> None:
    assert [row.name for row in promises.promises()] == [f"P{n}" for n in range(1, 25)]


@pytest.mark.parametrize("row", promises.promises(), ids=lambda row: row.name)
def test_a_row_names_tests_that_are_there_or_a_hole(row: Promise) -> None:
    assert promises.missing_tests(row) == []
    assert row.tests or row.holes


def test_a_test_that_is_not_there_is_seen() -> None:
    row = Promise(
        "P0", "", ["tests/unit/support/test_promises.py::test_none", "tests/none.py"], [], ""
    )
    assert promises.missing_tests(row) == row.tests
