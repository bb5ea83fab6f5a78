"""The option `--backend` of both commands."""

from django.core.management.base import CommandError, CommandParser
from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, task_backends

from timerstore.contrib.django.backend import TimerStoreBackend


def add_backend_option(parser: CommandParser) -> None:
    """Add `--backend` to a command."""
    parser.add_argument(
        "--backend", default=DEFAULT_TASK_BACKEND_ALIAS, help="The alias in TASKS (%(default)s)."
    )


def backend_of(alias: str) -> TimerStoreBackend:
    """Return a backend of `TASKS`. CommandError: there is none, or it is of another kind."""
    if alias not in task_backends.settings:
        known = ", ".join(sorted(task_backends.settings))
        raise CommandError(f"--backend: wanted one of {known}, got {alias!r}")
    backend = task_backends[alias]
    if not isinstance(backend, TimerStoreBackend):
        kind = f"{type(backend).__module__}.{type(backend).__qualname__}"
        raise CommandError(f"TASKS[{alias!r}]: wanted a TimerStoreBackend, got {kind}")
    return backend
