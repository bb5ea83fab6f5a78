"""Programs of their own: how they end, and what they leave."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

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
