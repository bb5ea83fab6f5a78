"""Django's own tests of tasks, with our backend in place of the one that they name.

What they test of the dummy backend holds for ours: a task is enqueued, and nothing runs it. What
they test of the immediate backend holds for an eager one, which has our runner run each task when
it is enqueued. `make test-django` fetches them.
"""

import sys
import unittest
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="NOT RUN: Django 6, which needs Python 3.12")

from django.conf import settings
from django.test import override_settings

from tests.support import django_suite
from tests.support.django_bench import BACKEND, DjangoBench, EagerBackend

if not (django_suite.folder() / "tasks").is_dir():
    pytest.skip("NOT RUN: `make test-django` fetches Django's own tests", allow_module_level=True)

EAGER = f"{EagerBackend.__module__}.{EagerBackend.__qualname__}"
_NAMES_CLASS = "it compares the backend with a class of Django's"
_NAMES_LIST = "it reads the dummy backend's list `results`"
_SETS_BACKEND = "it sets a backend of Django's by itself"
_CAN = "it tests that the immediate backend cannot do this; ours can"
CASES = {
    "test_tasks.TaskTestCase": {
        "test_using_correct_backend": _NAMES_CLASS,
        "test_get_backend": _NAMES_CLASS,
        "test_enqueue_task": _NAMES_LIST,
        "test_enqueue_task_async": _NAMES_LIST,
    },
    "test_dummy_backend.DummyBackendTestCase": {
        "test_using_correct_backend": _NAMES_CLASS,
        "test_enqueue_task": _NAMES_LIST,
        "test_enqueue_task_async": _NAMES_LIST,
        "test_refresh_result": _NAMES_LIST,
        "test_refresh_result_async": _NAMES_LIST,
        "test_clear": "it empties the dummy backend's list",
        "test_validate_on_enqueue": _SETS_BACKEND,
        "test_validate_on_aenqueue": _SETS_BACKEND,
    },
    "test_immediate_backend.ImmediateBackendTestCase": {
        "test_using_correct_backend": _NAMES_CLASS,
        "test_cannot_get_result": _CAN,
        "test_cannot_refresh_result": _CAN,
        "test_cannot_pass_run_after": _CAN,
        "test_throws_keyboard_interrupt": "it is the caller of `enqueue` that is interrupted",
        "test_validate_on_enqueue": _SETS_BACKEND,
        "test_validate_on_aenqueue": _SETS_BACKEND,
    },
}
"""Classes of tests, and which of their tests do not hold for another backend, with reasons. The
file test_custom_backend.py has backends of its own, and the classes with transactions set backends
by themselves."""


@pytest.fixture(scope="module", autouse=True)
def suite() -> Iterator[None]:
    """Make the folder importable: their module is `tasks`."""
    sys.path.insert(0, str(django_suite.folder()))
    yield
    sys.path.remove(str(django_suite.folder()))


def _class(name: str) -> Any:
    module, _, found = name.partition(".")
    return getattr(import_module(f"tasks.{module}"), found)


def _tests() -> list[tuple[str, str]]:
    """Return the class and the name of each test, read from the source."""
    found = []
    for name, excluded in CASES.items():
        module, _, case = name.partition(".")
        text = (django_suite.folder() / "tasks" / f"{module}.py").read_text()
        body = text.partition(f"class {case}(")[2].partition("\n\n\n")[0]
        tests = [
            line.partition("def ")[2].partition("(")[0]
            for line in body.splitlines()
            if line.startswith(("    def test", "    async def test"))
        ]
        assert excluded.keys() <= set(tests), excluded.keys() - set(tests)
        found += [(name, one) for one in tests if one not in excluded]
    return found


def _check_settings(tasks: Any) -> Any:
    """Return a `setUp` that has no dummy backend to empty, but checks which backend is tested."""

    def check(_self: Any) -> None:
        assert tasks == settings.TASKS

    return check


@pytest.mark.parametrize(("name", "test"), _tests())
def test_of_django(tmp_path: Path, name: str, test: str) -> None:
    project = DjangoBench(tmp_path)
    options = {"url": project.url}
    default = EAGER if "Immediate" in name else BACKEND
    queues = ["default", "queue_1"] if "TaskTestCase" in name else []
    tasks = {
        "default": {"BACKEND": default, "QUEUES": queues, "OPTIONS": options},
        "immediate": {"BACKEND": EAGER, "QUEUES": [], "OPTIONS": options},
        "missing": {"BACKEND": "does.not.exist"},
    }
    ours = type("Ours", (_class(name),), {"setUp": _check_settings(tasks)})
    outcome = unittest.TestResult()
    with override_settings(TASKS=tasks):
        unittest.TestSuite([override_settings(TASKS=tasks)(ours)(test)]).run(outcome)
        project.backend.close()
    project.close()
    assert outcome.testsRun == 1
    assert not outcome.skipped
    for _, trace in outcome.errors + outcome.failures:
        pytest.fail(trace)
