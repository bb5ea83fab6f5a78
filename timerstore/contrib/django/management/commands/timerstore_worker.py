"""`manage.py timerstore_worker`: run the tasks of a backend until SIGTERM or SIGINT.

With DEBUG, Django's autoreload starts the worker again when code changes. It has the main thread,
so a reload or a signal ends the interpreter, which first ends the worker.
"""

import argparse
import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import django
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import autoreload

from timerstore.contrib.django.backend import TimerStoreBackend
from timerstore.contrib.django.management.backend_option import (
    add_backend_option,
    backend_of,
    count,
)
from timerstore.contrib.django.processes import supervise
from timerstore.contrib.django.worker import Worker
from timerstore.errors import TimerStoreError

_STOP_TIMEOUT_MAX_S = 1e6
_SAME_S = 1.0
"""Signals that come so soon one after the other are one request to stop."""


class Command(BaseCommand):
    """The worker."""

    help = "Run tasks of Django from a timerstore store."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options of the worker."""
        add_backend_option(parser)
        parser.add_argument("--queues", help="Names, separated by commas (all QUEUES).")
        parser.add_argument(
            "--threads", type=count, default=1, help="Tasks at a time in a process (%(default)s)."
        )
        parser.add_argument(
            "--processes", type=count, default=1, help="How many processes (%(default)s)."
        )
        parser.add_argument(
            "--stop-timeout",
            type=_seconds,
            default=30.0,
            help="Seconds that running tasks have to end when the worker stops (%(default)s).",
        )

    def handle(self, **options: Any) -> None:
        """Run until a signal."""
        backend = backend_of(options["backend"])
        queues = _queues(backend, options["queues"])
        work = (backend.alias, queues, options["threads"], options["stop_timeout"])
        self.stdout.write(f"worker of {', '.join(queues)} at {backend.settings.url}")
        if settings.DEBUG:
            autoreload.run_with_reloader(_run_reloaded, options["processes"], work)
        else:
            _run(options["processes"], work)


def _run_reloaded(processes: int, work: tuple[str, list[str], int, float]) -> None:
    """Run in a thread of autoreload. After an error it would watch the code, without a worker."""
    try:
        _run(processes, work)
    except CommandError as error:
        sys.stdout.flush()
        sys.stderr.write(f"CommandError: {error}\n")
        sys.stderr.flush()
        os._exit(error.returncode)


def _run(processes: int, work: tuple[str, list[str], int, float]) -> None:
    autoreload.raise_last_exception()  # of code that could not be imported when it was reloaded
    if processes == 1:
        _run_worker(*work)
        return
    stopping = threading.Event()
    _on_signals(stopping.set)
    supervise(processes, _run_process, work, stopping, work[-1])


def _run_process(*work: Any) -> None:
    django.setup()
    try:
        _run_worker(*work)
    except CommandError as error:
        raise SystemExit(f"CommandError: {error}") from error


def _run_worker(alias: str, queues: list[str], threads: int, stop_timeout_s: float) -> None:
    backend = backend_of(alias)
    worker = Worker(backend, queues, threads)
    _on_signals(worker.stop)
    atexit.register(worker.finish, stop_timeout_s)
    try:
        left = worker.run(stop_timeout_s)
    except TimerStoreError as error:
        raise CommandError(f"the worker has ended: {error}") from error
    finally:
        atexit.unregister(worker.finish)
        backend.close()
    if left:
        raise CommandError(f"{left} tasks did not end within {stop_timeout_s:g} s")


def _on_signals(stop: Callable[[], None]) -> None:
    """Stop at the first SIGTERM or SIGINT. One that comes a second later ends the process.

    A signal to the group of the processes comes twice: from its sender and from the parent.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # autoreload has the signals

    first_s: list[float] = []

    def handle(number: int, _frame: Any) -> None:
        now_s = time.monotonic()
        if first_s and now_s > first_s[0] + _SAME_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        first_s.append(now_s)
        stop()

    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, handle)


def _queues(backend: TimerStoreBackend, given: str | None) -> list[str]:
    queues = sorted(backend.queues) if given is None else [one.strip() for one in given.split(",")]
    if not queues:
        raise CommandError("--queues: wanted names, as QUEUES of the backend is empty")
    unknown = [one for one in queues if backend.queues and one not in backend.queues]
    if unknown:
        known = ", ".join(sorted(backend.queues))
        raise CommandError(f"--queues: wanted some of {known}, got {', '.join(unknown)}")
    return queues


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= _STOP_TIMEOUT_MAX_S:
        raise argparse.ArgumentTypeError(
            f"wanted 0 to {_STOP_TIMEOUT_MAX_S:g} seconds, got {text!r}"
        )
    return found
