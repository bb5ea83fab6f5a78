"""Settings of all tests: where their stores lie, and Hypothesis profiles.

Stores lie in memory (/dev/shm) if there is room: a sync costs nothing there, and most tests wait
for little else. TIMERSTORE_TEST_DIRECTORY names another folder, such as one on a disk.

Hypothesis: dev is the default; ci looks longer; both always at the same examples, so that a red run
is caused by the change. nightly looks for hours at new ones; what it finds becomes a test.
"""

import gc
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import timerstore._engine.storage.disk

_IN_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 << 30  # a run keeps some 1 GB at a time


def _choose_directory() -> None:
    """Have `tmp_path`, `tempfile` and child processes make their files in one place."""
    chosen = os.environ.get("TIMERSTORE_TEST_DIRECTORY")
    if chosen is None:
        if "TMPDIR" in os.environ or not os.access(_IN_MEMORY, os.W_OK):
            return
        if shutil.disk_usage(_IN_MEMORY).free < _ROOM_BYTES:
            return
        chosen = str(_IN_MEMORY)
    os.environ["TMPDIR"] = chosen
    tempfile.tempdir = None


_choose_directory()

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
timerstore._engine.storage.disk.Disk.used_percent = lambda _disk, _path: 0.0  # type: ignore[method-assign]

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """What silences stores that are damaged on purpose must not silence the next test's."""
    before, level = logging.root.manager.disable, logging.root.level
    yield
    logging.disable(before)
    logging.root.setLevel(level)  # a worker of Celery sets it


LATE = (
    "tests/cli/test_demo.py",
    "tests/cli/test_full_disk.py",
    "tests/cli/test_serv",
    "tests/corruption",
    "tests/crash",
    "tests/docs/test_snippets.py",
    "tests/interop/test_broker",
    "tests/interop/test_columns",
    "tests/interop/test_handles.py",
    "tests/interop/test_read_only",
    "tests/net",
    "tests/sim/test_exhaustive.py",
    "tests/sim/test_mutants.py",
    "tests/unit/benchmarks",
    "tests/unit/lifecycle/test_close_at_exit.py",
    "tests/unit/lifecycle/test_unclosed.py",
    "tests/unit/net/test_calls_interrupted_anywhere.py",
    "tests/unit/recovery/test_staged_sectors.py",
    "tests/unit/shards/test_bucket_staging.py",
    "tests/unit/support",
    "tests/unit/test_extras.py",
)
"""What `make test` leaves to `make test-late`, by the begin of the path: tests of tests and tools,
kills and other tests of whole processes, tests of each byte or bytecode, programs of the docs, and
most tests with stores by a broker.
"""
SMOKE = (
    "tests/crash/test_kill.py::test_kill_loses_doubles_or_reverts_no_message[few]",
    "tests/corruption/test_corruption.py::test_damage_raises_error_or_changes_nothing[few-flips]",
    "tests/cli/test_serve.py::test_serve_closes_the_store_on_ctrl_c",
    "tests/docs/test_snippets.py::test_sections_run_one_after_another_in_one_folder[quick-start.md]",
)
"""Those of them that `make test` runs, too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark late tests."""
    for item in items:
        if item.nodeid.startswith(LATE) and item.nodeid not in SMOKE:
            item.add_marker(pytest.mark.late)


def pytest_collection_finish() -> None:
    """Leave the collected tests out of garbage collections: they are many, so that full collections
    would be rare, and closed stores would pile up.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # how often full ones come goes by the number of objects that the last one saw
