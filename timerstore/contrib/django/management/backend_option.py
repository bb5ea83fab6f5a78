"""The option `--backend` of both commands, and the type of those that are counts."""

import argparse

from django.core.management.base import CommandError, CommandParser
from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, task_backends

from timerstore.contrib.django.backend import TimerStoreBackend


def add_backend_option(parser: CommandParser) -> None:
    """Add `--backend` to a command."""
    parser.add_argument(
        "--backend", default=DEFAULT_TASK_BACKEND_ALIAS, help="The alias in TASKS (%(default)s)."
    )


def count(text: str) -> int:
    """Return the value of an option that is a count (argparse)."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"wanted 1 or more, got {text!r}")
    return int(text)


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
