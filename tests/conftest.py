"""Settings of all tests: Hypothesis profiles.

dev is the default; ci looks longer; both always at the same examples, so that a red run is the
change's doing. nightly looks for hours at new ones; what it finds becomes a test of its own.
"""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import timerstore.files.disk

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "dev", max_examples=50, stateful_step_count=30, deadline=None, print_blob=True,
    derandomize=True, suppress_health_check=_SLOW_IS_FINE,
)  # fmt: skip
settings.register_profile(
    "ci", max_examples=400, stateful_step_count=60, deadline=None, print_blob=True,
    derandomize=True, suppress_health_check=_SLOW_IS_FINE,
)  # fmt: skip
settings.register_profile(
    "nightly", max_examples=20_000, stateful_step_count=120, deadline=None, print_blob=True,
    suppress_health_check=_SLOW_IS_FINE,
)  # fmt: skip
# How full the disk of this machine is must not decide what a test's store keeps.
timerstore.files.disk.Disk.used_percent = lambda _disk, _path: 0.0  # type: ignore[method-assign]

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """What silences stores that are damaged on purpose must not silence the next test's."""
    before = logging.root.manager.disable
    yield
    logging.disable(before)
