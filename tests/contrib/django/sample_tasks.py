"""Tasks that the tests enqueue."""

from typing import Any

from django.tasks import TaskContext, task

import tests.support.django_bench  # noqa: F401 - it sets up Django

ran: list[Any] = []
"""What the tasks of this process did."""


@task
def add(left: int, right: int) -> int:
    ran.append((left, right))
    return left + right


@task(queue_name="emails", priority=50)
async def send(address: str) -> str:
    ran.append(address)
    return f"sent to {address}"


@task(takes_context=True)
def tell(context: TaskContext) -> list[Any]:
    return [context.task_result.id, context.attempt, context.task_result.status]


@task(takes_context=True)
def fail_until(context: TaskContext, attempt: int) -> int:
    if context.attempt < attempt:
        raise ValueError(f"attempt {context.attempt}")
    return context.attempt


@task
def leave() -> None:
    raise SystemExit("leave")


@task
def make_text(characters: int) -> str:
    return "x" * characters


@task
def make_function() -> Any:
    return lambda: None
