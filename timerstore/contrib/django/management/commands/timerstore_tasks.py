"""`manage.py timerstore_tasks`: show the tasks of a backend, cancel one, run a failed one again."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from timerstore.contrib.django.management.backend_option import (
    add_backend_option,
    backend_of,
    count,
)
from timerstore.contrib.django.task_record import READY, RUNNING, TaskRecord
from timerstore.contrib.django.task_store import QueueCounts, TaskStore
from timerstore.errors import TimerStoreError

_LISTS = {
    "pending": "tasks that wait for their run_after",
    "running": "tasks that a worker runs, and tasks that wait for their next attempt",
    "failed": "tasks that have failed",
}


class Command(BaseCommand):
    """Without an action it shows how many tasks of each queue are in each state."""

    help = "Show the tasks of a backend, cancel one, or run a failed one again."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the actions."""
        add_backend_option(parser)
        actions = parser.add_subparsers(dest="action", metavar="ACTION")
        for name, shown in _LISTS.items():
            action = actions.add_parser(name, help=f"List {shown}.")
            action.add_argument(
                "--limit", type=count, default=50, help="List at most so many (50)."
            )
        for name, effect in (
            ("cancel", "Cancel a task that waits for its run_after."),
            ("retry", "Run a failed task again."),
        ):
            actions.add_parser(name, help=effect).add_argument("id", help="The id of its result.")

    def handle(self, **options: Any) -> None:
        """Perform an action."""
        try:
            self._perform(backend_of(options["backend"]).tasks, options)
        except TimerStoreError as error:
            raise CommandError(str(error)) from error

    def _perform(self, tasks: TaskStore, options: dict[str, Any]) -> None:
        rows: Iterable[tuple[Any, ...]]
        match options["action"]:
            case "pending":
                rows = ((one.run_after, *_task(one)) for one in tasks.deferred())
            case "running":
                rows = (
                    (one.last_attempted_at, *_task(one), _state(one))
                    for one in tasks.begun()
                    if one.status in (READY, RUNNING)
                )
            case "failed":
                rows = ((one.finished_at, *_task(one), one.last_error) for one in tasks.failed())
            case "cancel":
                return self._cancel(tasks, options["id"])
            case "retry":
                return self._retry(tasks, options["id"])
            case _:
                return self._show([QueueCounts._fields, *tasks.counts()])
        return self._show(islice(rows, options["limit"]))

    def _show(self, rows: Iterable[Iterable[Any]]) -> None:
        for row in rows:
            self.stdout.write("  ".join("-" if one is None else str(one) for one in row))

    def _cancel(self, tasks: TaskStore, result_id: str) -> None:
        record = tasks.find(result_id)
        if record is None:
            raise CommandError(f"no task {result_id}")
        if not tasks.cancel(record):
            raise CommandError(
                f"{result_id}: wanted a task that waits for its time, found {record.status}"
            )
        self.stdout.write(f"cancelled: {result_id}")

    def _retry(self, tasks: TaskStore, result_id: str) -> None:
        if not tasks.repeat(result_id):
            raise CommandError(f"{result_id}: not one of the failed tasks")
        self.stdout.write(f"enqueued again: {result_id}")


def _task(record: TaskRecord) -> tuple[str, str, str]:
    return record.id, record.queue_name, record.path


def _state(record: TaskRecord) -> str:
    if record.status == RUNNING:
        return f"attempt {len(record.worker_ids)} at {record.worker_ids[-1]}"
    return f"waits for attempt {len(record.worker_ids) + 1}"
