"""`manage.py timerstore_tasks`, and the options of `manage.py timerstore_worker`."""

import io
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="NOT RUN: Django 6, which needs Python 3.12")

from django.core.management import CommandError, call_command
from django.tasks import TaskResultStatus
from django.test import override_settings
from django.utils import timezone

from tests.contrib.django import sample_tasks
from tests.support.django_bench import DjangoBench
from timerstore.contrib.django import TaskCancelledError
from timerstore.contrib.django.task_topics import task_topic

NAME = "tests.contrib.django.sample_tasks"


def _told(*words: str) -> list[str]:
    out = io.StringIO()
    call_command("timerstore_tasks", *words, stdout=out, skip_checks=True)
    return out.getvalue().splitlines()


def test_counts_of_each_queue(project: DjangoBench) -> None:
    assert _told() == ["queue  deferred  ready  running  in_backoff  failed"]
    with project.configured(MAX_ATTEMPTS=2):
        for _ in range(2):
            sample_tasks.add.enqueue(1, 2)
        sample_tasks.add.using(run_after=timezone.now() + timedelta(days=1)).enqueue(1, 2)
        sample_tasks.fail_until.using(queue_name="emails").enqueue(9)
        assert project.lease() is not None
        assert project.run_due("emails") == 1
        assert _told() == [
            "queue  deferred  ready  running  in_backoff  failed",
            "default  1  1  1  0  0",
            "emails  0  0  0  1  0",
        ]
        project.turn(1)
        assert project.run_due("emails") == 1
        assert _told()[2] == "emails  0  0  0  0  1"


def test_pending_tasks_in_the_order_of_their_time(project: DjangoBench) -> None:
    times = [timezone.now() + timedelta(hours=hours) for hours in (3, 1, 2)]
    ids = [sample_tasks.add.using(run_after=one).enqueue(1, 2).id for one in times]
    rows = [f"{times[k].isoformat()}  {ids[k]}  default  {NAME}.add" for k in (1, 2, 0)]
    assert _told("pending") == rows
    assert _told("pending", "--limit", "2") == rows[:2]
    project.turn(2.5 * 3600)
    assert _told("pending") == rows[2:]


def test_running_tasks_and_those_between_attempts(project: DjangoBench) -> None:
    with project.configured(MAX_ATTEMPTS=2):
        first = sample_tasks.add.enqueue(1, 2)
        record = project.leased()
        record.start("host:7:1")
        project.tasks.save(record)
        second = sample_tasks.fail_until.enqueue(9)
        project.run_due()
        second.refresh()
        at = second.last_attempted_at.isoformat()
        assert {tuple(one.split("  ")) for one in _told("running")} == {
            (record.last_attempted_at, first.id, "default", f"{NAME}.add", "attempt 1 at host:7:1"),
            (at, second.id, "default", f"{NAME}.fail_until", "waits for attempt 2"),
        }


def test_failed_task_runs_again_with_all_its_attempts(project: DjangoBench) -> None:
    with project.configured(MAX_ATTEMPTS=1):
        result = sample_tasks.fail_until.enqueue(2)
        project.run_due()
        result.refresh()
        at = result.finished_at.isoformat()
        error = "ValueError: attempt 1"
        assert _told("failed") == [f"{at}  {result.id}  default  {NAME}.fail_until  {error}"]
    with project.configured(MAX_ATTEMPTS=2):
        assert _told("retry", result.id) == [f"enqueued again: {result.id}"]
        result.refresh()
        assert (result.status, result.errors) == (TaskResultStatus.READY, [])
        assert _told("failed") == []
        with pytest.raises(CommandError, match=f"{result.id}: not one of the failed tasks"):
            _told("retry", result.id)
        assert project.run_due() == 1
        project.turn(1)
        assert project.run_due() == 1
        result.refresh()
        assert (result.status, result.attempts) == (TaskResultStatus.SUCCESSFUL, 2)


def test_cancel_of_a_task_that_waits(project: DjangoBench) -> None:
    result = sample_tasks.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1, 2)
    assert _told("cancel", result.id) == [f"cancelled: {result.id}"]
    assert _told("pending") == []
    project.turn(3601)
    assert project.run_due() == 0
    result.refresh()
    assert (result.status, result.is_finished) == (TaskResultStatus.FAILED, True)
    assert result.errors[0].exception_class is TaskCancelledError
    with pytest.raises(CommandError, match="wanted a task that waits for its time, found FAILED"):
        _told("cancel", result.id)


def test_cancel_of_a_task_that_is_due_changes_nothing(project: DjangoBench) -> None:
    result = sample_tasks.add.enqueue(1, 2)
    with pytest.raises(CommandError, match="wanted a task that waits for its time, found READY"):
        _told("cancel", result.id)
    with pytest.raises(CommandError, match=f"no task {'x' * 32}"):
        _told("cancel", "x" * 32)
    assert project.run_due() == 1


@pytest.mark.parametrize("command", ["timerstore_tasks", "timerstore_worker"])
def test_backend_that_is_not_one_of_ours(project: DjangoBench, command: str) -> None:
    def run(alias: str) -> None:
        call_command(command, "--backend", alias, skip_checks=True)

    with pytest.raises(CommandError, match="--backend: wanted one of default, got 'other'"):
        run("other")
    dummy = {"BACKEND": "django.tasks.backends.dummy.DummyBackend"}
    with (
        override_settings(TASKS={"default": dummy}),
        pytest.raises(CommandError, match="wanted a TimerStoreBackend, got django"),
    ):
        run("default")


@pytest.mark.parametrize(
    ("queues", "words", "said"),
    [
        ([], [], "--queues: wanted names, as QUEUES of the backend is empty"),
        (["a", "b"], ["--queues", "a,c,d"], "--queues: wanted some of a, b, got c, d"),
        (["a"], ["--threads", "0"], "--threads: wanted 1 or more, got '0'"),
        (["a"], ["--processes", "x"], "--processes: wanted 1 or more, got 'x'"),
        (["a"], ["--stop-timeout=-5"], "--stop-timeout: wanted 0 to 1e.06 seconds, got '-5'"),
        (["a"], ["--stop-timeout", "nan"], "--stop-timeout: wanted 0 to .* got 'nan'"),
        (["a", "b"], ["--queues", "a, c"], "--queues: wanted some of a, b, got c$"),
    ],
)
def test_options_of_the_worker_are_checked(
    project: DjangoBench, queues: list[str], words: list[str], said: str
) -> None:
    options: dict[str, Any] = {"skip_checks": True}
    with project.configured(QUEUES=queues), pytest.raises(CommandError, match=said):
        call_command("timerstore_worker", *words, **options)


def test_limit_of_a_list_is_checked(project: DjangoBench) -> None:
    with pytest.raises(CommandError, match="--limit: wanted 1 or more, got '-3'"):
        _told("pending", "--limit=-3")


def test_messages_of_other_programs_are_left_out(project: DjangoBench) -> None:
    topic = task_topic("default", "default")
    for delay in (None, 60, None):
        project.bench.store.put(topic, b"[]", priority=4, delay=delay)
    assert project.lease() is not None
    assert project.run_due() == 1
    assert _told()[1] == "default  1  0  1  0  1"
    assert [_told(one) for one in ("pending", "running", "failed")] == [[], [], []]
    with pytest.raises(CommandError, match="not one of the failed tasks"):
        _told("retry", "x" * 32)


def test_error_of_the_store_is_one_of_the_command(
    project: DjangoBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timerstore.contrib.django.store_connections.RETRY_S", 0.0)
    with (
        project.configured(url="unix:///nowhere/tasks.sock"),
        pytest.raises(CommandError, match="unix:///nowhere/tasks"),
    ):
        _told()
