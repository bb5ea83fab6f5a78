"""The state of a task, as the JSON of a message.

A task is one message in the topic of its queue: the record with which it was enqueued. Each later
state is a message in the topic of results. A record has the dotted path of its task, so that it can
be read without the code; `result` imports it.

Raises: ValueError for bytes that are no record.
"""

import json
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from traceback import format_exception
from typing import Any

from django.tasks import Task, TaskResult, TaskResultStatus
from django.tasks.base import TaskError
from django.utils import timezone
from django.utils.json import normalize_json
from django.utils.module_loading import import_string

_DAY_S = 86_400
_TRACEBACK_CHARACTERS_MAX = 100_000  # a message has at most 4 MB

READY, RUNNING = TaskResultStatus.READY.value, TaskResultStatus.RUNNING.value
FAILED, SUCCESSFUL = TaskResultStatus.FAILED.value, TaskResultStatus.SUCCESSFUL.value


class WorkerLostError(Exception):
    """The worker of an attempt died, or lost its lease; the attempt may have had effects."""


class TaskCancelledError(Exception):
    """The task was cancelled before its time."""


@dataclass(slots=True, kw_only=True)
class TaskRecord:
    """A task and its attempts. Times are texts in ISO format."""

    id: str
    path: str
    args: list[Any]
    kwargs: dict[str, Any]
    priority: int
    queue_name: str
    run_after: str | None = None
    enqueued_at: str | None = None
    status: str = READY
    started_at: str | None = None
    finished_at: str | None = None
    last_attempted_at: str | None = None
    errors: list[dict[str, str]] = field(default_factory=list)
    worker_ids: list[str] = field(default_factory=list)
    return_value: Any = None

    @classmethod
    def of(cls, result: TaskResult) -> "TaskRecord":
        """Return the record of a task that is being enqueued."""
        task, enqueued_at = result.task, result.enqueued_at
        return cls(
            id=result.id,
            path=task.module_path,
            args=result.args,
            kwargs=result.kwargs,
            priority=task.priority,
            queue_name=task.queue_name,
            run_after=None if task.run_after is None else task.run_after.isoformat(),
            enqueued_at=None if enqueued_at is None else enqueued_at.isoformat(),
        )

    @classmethod
    def from_bytes(cls, body: bytes) -> "TaskRecord":
        """Return the record in a message."""
        try:
            return cls(**json.loads(body))
        except (TypeError, ValueError) as error:
            raise ValueError(f"wanted the record of a task, got {body[:80]!r}: {error}") from error

    def to_bytes(self) -> bytes:
        """Return the record as the body of a message."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @property
    def is_final(self) -> bool:
        """Whether no attempt follows."""
        return self.status in (FAILED, SUCCESSFUL)

    def is_older_than(self, days: float | None) -> bool:
        """Whether the last change of state was more than `days` ago; None: it counts as younger.

        `run_after` counts as a change. The state's message has no `expires_ms`: if the store passed
        over the last state of a task, it would show a worker, or a reader, the state before it.
        """
        last = self.finished_at or self.last_attempted_at
        changes = [last] if last else [self.enqueued_at, self.run_after]
        at_s = max(datetime.fromisoformat(one).timestamp() for one in changes if one)
        return days is not None and time.time() > at_s + days * _DAY_S

    @property
    def last_error(self) -> str | None:
        """The last line of the last attempt's traceback, or None."""
        return self.errors[-1]["traceback"].strip().rpartition("\n")[2] if self.errors else None

    def result(self, alias: str) -> TaskResult:
        """Return the record as Django's TaskResult, with the task of the present code.

        Raises:
            ImportError: there is no such task any more.
            ValueError: there is something else in its place.
            InvalidTask: the backend does not accept it any more, as when its queue was removed.
        """
        task = import_string(self.path)
        if not isinstance(task, Task):
            raise ValueError(f"{self.path}: wanted a task, got {type(task).__name__}")
        result = TaskResult(
            task=replace(
                task,
                priority=self.priority,
                queue_name=self.queue_name,
                run_after=_time(self.run_after),
                backend=alias,
            ),
            id=self.id,
            status=TaskResultStatus(self.status),
            enqueued_at=_time(self.enqueued_at),
            started_at=_time(self.started_at),
            finished_at=_time(self.finished_at),
            last_attempted_at=_time(self.last_attempted_at),
            args=self.args,
            kwargs=self.kwargs,
            backend=alias,
            errors=[TaskError(**one) for one in self.errors],
            worker_ids=list(self.worker_ids),
        )
        object.__setattr__(result, "_return_value", self.return_value)
        return result

    # --- changes of state ---

    def enqueue_again(self) -> None:
        """Begin as a task that was enqueued now."""
        self.enqueued_at = _now()

    def start(self, worker_id: str) -> None:
        """Begin an attempt."""
        self.status = RUNNING
        self.last_attempted_at = _now()
        self.started_at = self.started_at or self.last_attempted_at
        self.worker_ids.append(worker_id)

    def succeed(self, value: Any) -> None:
        """End the task with its return value. TypeError: JSON cannot hold the value."""
        self.return_value = normalize_json(value)
        self.status, self.finished_at = SUCCESSFUL, _now()

    def fail(self, error: BaseException, attempts_max: int) -> None:
        """End an attempt with an error. The task is ready again, unless it was the last attempt."""
        kind = type(error)
        trace = "".join(format_exception(error))[-_TRACEBACK_CHARACTERS_MAX:]
        path = f"{kind.__module__}.{kind.__qualname__}"
        self.errors.append({"exception_class_path": path, "traceback": trace})
        self.return_value = None
        if len(self.worker_ids) < attempts_max:
            self.status, self.finished_at = READY, None
        else:
            self.status, self.finished_at = FAILED, _now()


def _now() -> str:
    found: datetime = timezone.now()
    return found.isoformat()


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
