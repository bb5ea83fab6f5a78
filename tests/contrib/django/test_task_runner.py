"""Attempts of tasks: outcomes, retries, lost workers and leases, signals."""

import json
import logging
import threading
from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="NOT RUN: Django 6, which needs Python 3.12")

from django.tasks import TaskResult, TaskResultStatus
from django.tasks.signals import task_finished, task_started

from tests.contrib.django import sample_tasks
from tests.support.django_bench import DjangoBench
from timerstore.contrib.django import WorkerLostError
from timerstore.contrib.django.task_runner import LEASE_S, TaskRunner
from timerstore.contrib.django.task_topics import task_topic
from timerstore.errors import UnavailableError


def _refreshed(result: TaskResult) -> TaskResult:
    result.refresh()
    return result


def _states(project: DjangoBench) -> list[str]:
    """Return the states that were saved, oldest first."""
    return [json.loads(one)["status"] for one in project.bench.bodies("django|default")]


def _letters(project: DjangoBench) -> list[str | None]:
    return [one.error for one in project.tasks.store.dead_letters("django-default")]


def test_failed_task_has_its_error_and_is_a_dead_letter(project: DjangoBench) -> None:
    result = sample_tasks.fail_until.enqueue(2)
    assert project.run_due() == 1
    project.turn(3600)
    assert project.run_due() == 0
    found = _refreshed(result)
    assert (found.status, found.attempts) == (TaskResultStatus.FAILED, 1)
    assert found.finished_at is not None
    [error] = found.errors
    assert error.exception_class is ValueError
    assert error.traceback.startswith("Traceback (most recent call last)")
    assert error.traceback.endswith("ValueError: attempt 1\n")
    with pytest.raises(ValueError, match="Task failed"):
        _ = found.return_value
    assert _letters(project) == ["ValueError: attempt 1"]


def test_task_is_tried_again_after_a_back_off(project: DjangoBench) -> None:
    with project.configured(MAX_ATTEMPTS=3):
        result = sample_tasks.fail_until.enqueue(3)
        assert project.run_due(worker_id="first") == 1
        found = _refreshed(result)
        assert (found.status, found.finished_at) == (TaskResultStatus.READY, None)
        first_started = found.started_at
        assert project.run_due() == 0
        project.turn(1)
        assert project.run_due(worker_id="second") == 1
        project.turn(1)
        assert project.run_due() == 0
        project.turn(1)
        assert project.run_due(worker_id="third") == 1
        found = _refreshed(result)
        assert (found.status, found.return_value) == (TaskResultStatus.SUCCESSFUL, 3)
        assert found.worker_ids == ["first", "second", "third"]
        assert [one.traceback[-10:] for one in found.errors] == ["attempt 1\n", "attempt 2\n"]
        assert found.started_at == first_started < found.last_attempted_at
        assert _letters(project) == []


def test_last_attempt_fails_the_task(project: DjangoBench) -> None:
    with project.configured(MAX_ATTEMPTS=2):
        result = sample_tasks.fail_until.enqueue(3)
        project.run_due()
        project.turn(1)
        project.run_due()
        project.turn(3600)
        assert project.run_due() == 0
        found = _refreshed(result)
        assert (found.status, found.attempts, len(found.errors)) == (TaskResultStatus.FAILED, 2, 2)


@pytest.mark.parametrize(
    ("task", "error", "said"),
    [
        (sample_tasks.leave, SystemExit, "SystemExit: leave"),
        (sample_tasks.make_function, TypeError, "Unsupported type"),
    ],
)
def test_any_outcome_is_one_of_the_task(
    project: DjangoBench, task: Any, error: type, said: str
) -> None:
    result = task.enqueue()
    project.run_due()
    found = _refreshed(result)
    assert found.status == TaskResultStatus.FAILED
    assert found.errors[0].exception_class is error
    assert said in found.errors[0].traceback


def test_return_value_that_is_too_large_fails_the_task(project: DjangoBench) -> None:
    result = sample_tasks.make_text.enqueue(300_000)
    project.run_due()
    found = _refreshed(result)
    assert found.status == TaskResultStatus.FAILED
    assert "body: wanted at most 200000 bytes" in found.errors[0].traceback


def test_attempt_of_a_dead_worker_counts(project: DjangoBench) -> None:
    result = sample_tasks.add.enqueue(1, 2)
    record = project.leased()
    record.start("dead")
    project.tasks.save(record)
    project.turn(LEASE_S - 1)
    assert project.run_due() == 0
    sample_tasks.ran.clear()
    project.turn(2)
    assert project.run_due() == 1
    assert sample_tasks.ran == []
    found = _refreshed(result)
    assert (found.status, found.worker_ids) == (TaskResultStatus.FAILED, ["dead"])
    assert found.errors[0].exception_class is WorkerLostError
    assert "worker dead died" in found.errors[0].traceback
    assert len(_letters(project)) == 1


def test_task_of_a_dead_worker_runs_again_if_it_has_attempts(project: DjangoBench) -> None:
    with project.configured(MAX_ATTEMPTS=2):
        result = sample_tasks.add.enqueue(1, 2)
        record = project.leased()
        record.start("dead")
        project.tasks.save(record)
        project.turn(LEASE_S + 1)
        assert project.run_due(worker_id="alive") == 1
        found = _refreshed(result)
        assert (found.return_value, found.worker_ids) == (3, ["dead", "alive"])
        assert len(found.errors) == 1


def test_lease_without_an_attempt_does_not_count(project: DjangoBench) -> None:
    result = sample_tasks.add.enqueue(1, 2)
    assert project.lease() is not None
    project.turn(LEASE_S + 1)
    assert project.run_due() == 1
    assert _refreshed(result).attempts == 1


def test_outcome_that_was_saved_but_not_settled_is_not_run_again(project: DjangoBench) -> None:
    sample_tasks.ran.clear()
    for task in (sample_tasks.add.enqueue(1, 2), sample_tasks.fail_until.enqueue(9)):
        record = project.leased()
        assert record.id == task.id
        record.start("dead")
        if task.args == [9]:
            record.fail(ValueError("no"), 1)
        else:
            record.succeed(3)
        project.tasks.save(record)
    project.turn(LEASE_S + 1)
    saved = _states(project)
    assert project.run_due() == 2
    assert (sample_tasks.ran, _states(project)) == ([], saved)
    assert _letters(project) == ["ValueError: no"]
    project.turn(LEASE_S + 1)
    assert project.run_due() == 0


def test_attempt_that_lost_its_lease_saves_nothing(
    project: DjangoBench, caplog: pytest.LogCaptureFixture
) -> None:
    result = sample_tasks.add.enqueue(1, 2)
    message = project.lease()
    project.turn(LEASE_S + 1)
    assert project.run_due(worker_id="second") == 1
    saved = _states(project)
    with caplog.at_level(logging.ERROR):
        TaskRunner(project.backend, "first", threading.Event()).run(message)
    assert _states(project) == saved
    assert _refreshed(result).worker_ids == ["second"]


def test_lease_is_renewed_while_the_task_runs(
    project: DjangoBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(left: int, right: int) -> int:
        before = project.tasks.store.backlog(task_topic("default", "default"), "django-default")
        return before.leased

    monkeypatch.setattr(TaskRunner, "_call", lambda _self, record: work(*record.args))
    result = sample_tasks.add.enqueue(1, 2)
    message = project.lease()
    project.turn(LEASE_S - 1)
    TaskRunner(project.backend, "worker", threading.Event()).run(message)  # it renews at once
    project.turn(30)
    assert project.run_due() == 0
    assert _refreshed(result).return_value == 1


def test_old_database_connections_are_closed_around_a_task(
    project: DjangoBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_tasks, "ran", steps := [])
    monkeypatch.setattr(
        "timerstore.contrib.django.task_runner.close_old_connections", lambda: steps.append("close")
    )
    sample_tasks.add.enqueue(1, 2)
    project.run_due()
    assert steps == ["close", (1, 2), "close"]


def test_signals_of_an_attempt(project: DjangoBench, caplog: pytest.LogCaptureFixture) -> None:
    found = []

    def note(sender: type, task_result: TaskResult, **_more: Any) -> None:
        found.append((sender, task_result.id, task_result.status))
        raise RuntimeError("of a receiver")

    signals = (task_started, task_finished)
    for one in signals:
        one.connect(note)
    try:
        first, second = sample_tasks.add.enqueue(1, 2), sample_tasks.leave.enqueue()
        with caplog.at_level(logging.INFO):
            project.run_due()
    finally:
        for one in signals:
            one.disconnect(note)
    assert found == [
        (type(project.backend), first.id, TaskResultStatus.RUNNING),
        (type(project.backend), first.id, TaskResultStatus.SUCCESSFUL),
        (type(project.backend), second.id, TaskResultStatus.RUNNING),
        (type(project.backend), second.id, TaskResultStatus.FAILED),
    ]
    [failed] = [one for one in caplog.records if one.name == "django.tasks" and one.exc_info]
    assert second.id in failed.getMessage()
    assert _refreshed(first).status == TaskResultStatus.SUCCESSFUL


def test_no_signal_of_an_end_while_attempts_are_left(project: DjangoBench) -> None:
    found = []
    with project.configured(MAX_ATTEMPTS=2):
        task_finished.connect(lambda **more: found.append(more["task_result"].status), weak=False)
        try:
            sample_tasks.fail_until.enqueue(9)
            project.run_due()
            assert found == []
            project.turn(1)
            project.run_due()
        finally:
            task_finished.receivers.pop()
            task_finished.sender_receivers_cache.clear()
    assert found == [TaskResultStatus.FAILED]


def test_task_without_code_fails(project: DjangoBench, monkeypatch: pytest.MonkeyPatch) -> None:
    result = sample_tasks.add.enqueue(1, 2)
    with monkeypatch.context() as patched:
        patched.delattr(sample_tasks, "add")
        assert project.run_due() == 1
        with pytest.raises(ImportError, match="add"):
            project.backend.get_result(result.id)
    found = _refreshed(result)
    assert found.errors[0].exception_class is ImportError


def test_message_that_is_no_task_is_buried(
    project: DjangoBench, caplog: pytest.LogCaptureFixture
) -> None:
    topic = task_topic("default", "default")
    for body in (b"\xff", b"[]", b'{"id": "x"}'):
        project.bench.store.put(topic, body, priority=4)
    assert project.run_due() == 3
    assert [one.error[:28] for one in project.tasks.store.dead_letters("django-default")] == [
        "wanted the record of a task,"
    ] * 3
    assert "wanted the record of a task, got b'[]'" in caplog.text


def test_runner_waits_for_a_store_that_does_not_answer(
    project: DjangoBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stopping = threading.Event()
    runner = TaskRunner(project.backend, "worker", stopping)
    monkeypatch.setattr("timerstore.contrib.django.task_runner._PAUSE_S", 0)
    answers = [UnavailableError("no server"), UnavailableError("no server"), "answer"]

    def call() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert runner.insist(call) == "answer"
    assert caplog.text.count("no server") == 2
    with pytest.raises(UnavailableError, match="not one that can pass"):
        runner.insist(lambda: _raise(UnavailableError("not one that can pass", retryable=False)))
    stopping.set()
    with pytest.raises(UnavailableError, match="at the end"):
        runner.insist(lambda: _raise(UnavailableError("at the end")))


def _raise(error: Exception) -> Any:
    raise error
