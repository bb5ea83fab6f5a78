"""PROMISES.md is up to date."""

import pytest

from tests import promises
from tests.promises import Promise


def test_page_equals_its_generated_text() -> None:
    assert promises.PAGE.read_text() == promises.page(), "run: python -m tests.promises"


def test_each_promise_has_a_row() -> None:
    assert [row.name for row in promises.promises()] == [f"P{n}" for n in range(1, 30)]


@pytest.mark.parametrize("row", promises.promises(), ids=lambda row: row.name)
def test_each_row_names_existing_tests_or_a_hole(row: Promise) -> None:
    assert promises.missing_tests(row) == []
    assert row.tests or row.holes


def test_missing_test_is_detected() -> None:
    row = Promise(
        "P0", "", ["tests/unit/support/test_promises.py::test_none", "tests/none.py"], [], ""
    )
    assert promises.missing_tests(row) == row.tests
