"""A plugin of pytest that leaves out the tests in exceptions.toml, with their reasons.

TIMERSTORE_FRAMEWORK names the table.
"""

import os
import tomllib
from pathlib import Path

import pytest

_TABLES = tomllib.loads(Path(__file__).with_name("exceptions.toml").read_text("utf-8"))
EXCEPTIONS: dict[str, str] = _TABLES.get(os.environ.get("TIMERSTORE_FRAMEWORK", ""), {})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of the table."""
    for item in items:
        for end, reason in EXCEPTIONS.items():
            if item.nodeid.endswith(end):
                item.add_marker(pytest.mark.skip(reason=reason))
