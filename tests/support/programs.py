"""Programs of their own: how they end, and what they leave."""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import NoReturn

PATIENCE_S = 60.0


def run_program(
    text: str,
    *arguments: str | Path,
    options: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end; `subprocess.TimeoutExpired` if it does not end."""
    return subprocess.run(
        [sys.executable, *options, "-c", dedent(text), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, **(env or {})},
    )


def end_child(work: Callable[[], bool], *, patience_s: int) -> NoReturn:
    """End a forked child: with 0 if `work` returns True, 2 if it returns False, 1 if it raises.

    A signal ends it after `patience_s` seconds.
    """
    code = 1
    signal.alarm(patience_s)
    try:
        code = 0 if work() else 2
    except BaseException:  # noqa: BLE001 - printed, and then the child ends
        traceback.print_exc()
    finally:
        os._exit(code)


def run_child(work: Callable[[], bool], *, patience_s: int) -> int:
    """Fork, end the child by `work`, and return its exit code, negative if a signal ended it."""
    child = os.fork()
    if child == 0:
        end_child(work, patience_s=patience_s)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
