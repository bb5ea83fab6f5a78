"""The contract of a backend, as Django documents it: enqueue, results, queues, checks."""

import asyncio
import dataclasses
import time
from datetime import datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="NOT RUN: Django 6, which needs Python 3.12")

from django.core import checks
from django.db import connection, transaction
from django.tasks import TaskResultStatus, task, task_backends
from django.tasks.exceptions import (
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    TaskResultMismatch,
)
from django.tasks.signals import task_enqueued
from django.test import override_settings
from django.utils import timezone

from tests.contrib.django import sample_tasks
from tests.support.django_bench import BACKEND, DjangoBench
from timerstore.contrib.django import task_record
from timerstore.contrib.django.task_topics import level_of, queue_of, task_topic


def test_backend_supports_everything(project: DjangoBench) -> None:
    flags = [name for name in dir(project.backend) if name.startswith("supports_")]
    assert flags == [
        "supports_async_task", "supports_defer", "supports_get_result", "supports_priority"
    ]  # fmt: skip
    assert all(getattr(project.backend, name) is True for name in flags)


def test_enqueued_task_is_ready_and_its_result_is_found(project: DjangoBench) -> None:
    before = timezone.now()
    result = sample_tasks.add.enqueue(1, right=2)
    assert (result.status, result.is_finished) == (TaskResultStatus.READY, False)
    assert (result.args, result.kwargs) == ([1], {"right": 2})
    assert before <= result.enqueued_at <= timezone.now()
    assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)
    assert (result.attempts, result.errors, result.backend) == (0, [], "default")
    assert sample_tasks.add.get_result(result.id) == result
    assert project.backend.get_result(result.id) == result
    with pytest.raises(ValueError, match="not finished yet"):
        _ = result.return_value


def test_task_runs_once_and_its_result_has_the_value(project: DjangoBench) -> None:
    sample_tasks.ran.clear()
    result = sample_tasks.add.enqueue(1, 2)
    assert project.run_due(worker_id="host:1:1") == 1
    assert project.run_due() == 0
    assert sample_tasks.ran == [(1, 2)]
    result.refresh()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 3)
    assert result.enqueued_at <= result.started_at == result.last_attempted_at
    assert result.started_at <= result.finished_at
    assert (result.worker_ids, result.attempts) == (["host:1:1"], 1)


def test_async_calls_and_async_tasks(project: DjangoBench) -> None:
    result = asyncio.run(sample_tasks.send.aenqueue("a@example.org"))
    assert project.run_due("default") == 0
    assert project.run_due("emails") == 1
    found = asyncio.run(sample_tasks.send.aget_result(result.id))
    assert found.return_value == "sent to a@example.org"
    asyncio.run(result.arefresh())
    assert result == found


def test_context_has_the_running_result(project: DjangoBench) -> None:
    result = sample_tasks.tell.enqueue()
    project.run_due()
    result.refresh()
    assert result.return_value == [result.id, 1, "RUNNING"]


def test_deferred_task_runs_at_its_time_and_not_before(project: DjangoBench) -> None:
    run_after = timezone.now() + timedelta(hours=1)
    result = sample_tasks.add.using(run_after=run_after).enqueue(1, 2)
    assert project.backend.get_result(result.id) == result
    assert result.task.run_after == run_after
    project.turn(3590)
    assert project.run_due() == 0
    project.turn(11)
    assert project.run_due() == 1
    result.refresh()
    assert result.return_value == 3


def test_run_after_in_the_past_means_now(project: DjangoBench) -> None:
    sample_tasks.add.using(
        run_after=datetime(1990, 1, 1, tzinfo=timezone.get_current_timezone())
    ).enqueue(1, 2)
    assert project.run_due() == 1


@override_settings(USE_TZ=False)
def test_naive_times_without_time_zones(project: DjangoBench) -> None:
    run_after = datetime.now() + timedelta(hours=1)  # noqa: DTZ005 - as without USE_TZ
    result = sample_tasks.add.using(run_after=run_after).enqueue(1, 2)
    assert project.backend.get_result(result.id) == result
    assert project.run_due() == 0
    project.turn(3601)
    assert project.run_due() == 1


def test_higher_priorities_run_first(project: DjangoBench) -> None:
    sample_tasks.ran.clear()
    for priority in (-100, 0, 1, 100):
        sample_tasks.add.using(priority=priority).enqueue(priority, 0)
    assert project.run_due() == 4
    assert [left for left, _ in sample_tasks.ran] == [100, 1, 0, -100]


def test_levels_of_priorities() -> None:
    assert [level_of(one) for one in (-100, -80, -79, -19, 0, 1, 20, 21, 80, 81, 100)] == [
        0, 0, 1, 4, 4, 5, 5, 6, 8, 9, 9,
    ]  # fmt: skip
    levels = [level_of(one) for one in range(-100, 101)]
    assert levels == sorted(levels)
    assert set(levels) == set(range(10))


@pytest.mark.parametrize("queue", ["a.b", "a%2Eb", "ä ö|x", "a~b", "A_b-1"])
def test_any_queue_name_has_a_topic_of_its_own(project: DjangoBench, queue: str) -> None:
    assert queue_of(task_topic("default", queue)) == queue
    with project.configured(QUEUES=[]):
        result = sample_tasks.add.using(queue_name=queue).enqueue(1, 2)
        assert project.run_due("default") == 0
        assert project.backend.get_result(result.id).status == TaskResultStatus.READY
        assert project.run_due(queue) == 1


def test_backends_of_two_aliases_do_not_share_tasks(project: DjangoBench) -> None:
    params = {
        "BACKEND": BACKEND,
        "OPTIONS": {"url": project.url},
    }
    with override_settings(TASKS={"default": params, "other": params}):
        result = sample_tasks.add.using(backend="other").enqueue(1, 2)
        assert result.backend == "other"
        assert project.run_due("default") == 0
        with pytest.raises(TaskResultDoesNotExist):
            task_backends["default"].get_result(result.id)
        assert task_backends["other"].get_result(result.id) == result
        project.backend.close()


@pytest.mark.parametrize("result_id", ["x" * 32, "123", "", "a b", "ä" * 32, 123])
def test_unknown_result(project: DjangoBench, result_id: Any) -> None:
    sample_tasks.add.enqueue(1, 2)
    with pytest.raises(TaskResultDoesNotExist, match=f"^{result_id}$"):
        project.backend.get_result(result_id)
    with pytest.raises(TaskResultDoesNotExist):
        asyncio.run(project.backend.aget_result(result_id))


def test_result_of_another_task(project: DjangoBench) -> None:
    result = sample_tasks.add.enqueue(1, 2)
    with pytest.raises(TaskResultMismatch):
        sample_tasks.tell.get_result(result.id)


def test_argument_that_is_not_json(project: DjangoBench) -> None:
    with pytest.raises(TypeError, match="Unsupported type"):
        sample_tasks.add.enqueue(datetime.now(), 1)  # noqa: DTZ005
    assert list(project.tasks.counts()) == []


def test_task_that_is_not_valid_is_not_enqueued(project: DjangoBench) -> None:
    with pytest.raises(InvalidTask, match="Queue 'other' is not valid"):
        sample_tasks.add.using(queue_name="other")
    with pytest.raises(InvalidTask, match="priority must be"):
        sample_tasks.add.using(priority=101)
    with pytest.raises(InvalidTask, match="module level"):
        task(lambda: None)
    emails = sample_tasks.add.using(queue_name="emails")
    with project.configured(QUEUES=["default"]), pytest.raises(InvalidTask, match="'emails'"):
        emails.enqueue(1, 2)


def test_signal_is_sent_when_the_task_is_stored(project: DjangoBench) -> None:
    found = []

    def receive(sender: type, task_result: Any, **_more: Any) -> None:
        found.append((sender, task_result.id, project.backend.get_result(task_result.id).status))

    task_enqueued.connect(receive)
    try:
        result = sample_tasks.add.enqueue(1, 2)
    finally:
        task_enqueued.disconnect(receive)
    assert found == [(type(project.backend), result.id, TaskResultStatus.READY)]


def test_result_is_kept_for_its_days_after_the_last_change(
    project: DjangoBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_s = time.time()

    def is_kept(days: float) -> bool:
        monkeypatch.setattr(task_record.time, "time", lambda: start_s + days * 86_400)
        try:
            assert project.backend.get_result(result.id).id == result.id
        except TaskResultDoesNotExist:
            return False
        return True

    with project.configured(RESULT_DAYS=7):
        later = sample_tasks.fail_until.using(run_after=timezone.now() + timedelta(days=1))
        result = later.enqueue(9)
        assert (is_kept(7.9), is_kept(8.1)) == (True, False)
        project.turn(86_401)
        assert project.run_due() == 1
        assert (is_kept(6.9), is_kept(7.1)) == (True, False)
        assert [one.status for one in project.tasks.failed()] == ["FAILED"]
        first = project.tasks.find(result.id)
        assert project.tasks.repeat(result.id)
        assert first is not None
        assert project.backend.get_result(result.id).enqueued_at.isoformat() > first.enqueued_at
    assert is_kept(10_000)


# --- transactions ---


def test_put_waits_for_the_commit(project: DjangoBench) -> None:
    with transaction.atomic():
        result = sample_tasks.add.enqueue(1, 2)
        assert (len(result.id), result.enqueued_at) == (32, None)
        with pytest.raises(TaskResultDoesNotExist):
            project.backend.get_result(result.id)
        assert project.run_due() == 0
    assert project.backend.get_result(result.id) == result
    assert result.enqueued_at is not None
    assert project.run_due() == 1


def test_rollback_drops_the_task(project: DjangoBench) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
        result = sample_tasks.add.enqueue(1, 2)
        _ = 1 / 0
    with pytest.raises(TaskResultDoesNotExist):
        project.backend.get_result(result.id)
    assert project.run_due() == 0


def test_put_at_once_without_on_commit(project: DjangoBench) -> None:
    with project.configured(ON_COMMIT=False), transaction.atomic():
        result = sample_tasks.add.enqueue(1, 2)
        assert project.backend.get_result(result.id) == result
        transaction.set_rollback(True)
    assert project.run_due() == 1


def test_no_database_is_needed_outside_of_transactions(
    project: DjangoBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ensure_connection", lambda: pytest.fail("it connects"))
    result = sample_tasks.add.enqueue(1, 2)
    assert project.backend.get_result(result.id) == result


# --- options ---


def _problems() -> list[str]:
    return [f"{one.id} {one.msg}" for one in checks.run_checks() if one.id.startswith("timerstore")]


def test_check_accepts_valid_options(project: DjangoBench) -> None:
    with project.configured(
        ON_COMMIT=False, MAX_ATTEMPTS=5, RESULT_DAYS=0.5, token_file="/run/token"
    ):
        assert _problems() == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("url", "", "url: wanted unix:///PATH, .* got ''"),
        ("url", "http://host", "url: wanted unix:///PATH, .* got 'http://host'"),
        ("url", "unix://", "url: wanted"),
        ("token_file", 5, "token_file: wanted the path of a file, got 5"),
        ("ON_COMMIT", "yes", "ON_COMMIT: wanted True or False, got 'yes'"),
        ("MAX_ATTEMPTS", 0, "MAX_ATTEMPTS: wanted 1 or more, got 0"),
        ("MAX_ATTEMPTS", True, "MAX_ATTEMPTS: wanted 1 or more, got True"),
        ("RESULT_DAYS", 0, "RESULT_DAYS: wanted a number of days above 0, or None, got 0"),
        ("RESULT_DAYS", "7", "RESULT_DAYS: wanted a number of days above 0, or None, got '7'"),
        ("on_commit", True, "'on_commit': wanted one of url, token_file, ON_COMMIT, MAX_ATTEMPTS"),
    ],
)
def test_invalid_option_is_named(project: DjangoBench, name: str, value: Any, said: str) -> None:
    with project.configured(**{name: value}):
        [problem] = _problems()
        assert problem.startswith("timerstore.E001 TASKS['default']: OPTIONS: ")
        with pytest.raises(InvalidTaskBackend, match=said):
            project.tasks.find("x" * 32)
        with pytest.raises(InvalidTaskBackend, match=said):
            sample_tasks.add.enqueue(1, 2)


def test_queue_name_that_is_too_long_is_named(project: DjangoBench) -> None:
    with project.configured(QUEUES=["default", "emails", "x" * 91]):
        [problem] = _problems()
        assert problem.startswith("timerstore.E002 TASKS['default']: QUEUES: queue 'xxx")
        assert "wanted a name that is shorter by 1" in problem
    with project.configured(QUEUES=[]), pytest.raises(InvalidTask, match="shorter by 1"):
        sample_tasks.add.using(queue_name="x" * 91)
    with project.configured(QUEUES=[]):
        sample_tasks.add.using(queue_name="x" * 90).enqueue(1, 2)
        assert project.run_due("x" * 90) == 1


def test_results_can_be_copied_and_compared(project: DjangoBench) -> None:
    result = sample_tasks.add.enqueue(1, 2)
    assert dataclasses.asdict(project.backend.get_result(result.id)) == dataclasses.asdict(result)
