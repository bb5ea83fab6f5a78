"""A log that a test writes record by record."""

import pytest

from tests.support.synthetic_log import SyntheticLog


@pytest.fixture
def log() -> SyntheticLog:
    """An empty log."""
    return SyntheticLog()
