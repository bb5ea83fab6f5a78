"""The command line, called in this process or as a terminal user would: a pseudo-terminal, whose
screen a terminal emulator keeps.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pexpect
import pyte
import pytest

from timerstore.cli import main

SMALL = [
    word
    for setting in (
        "commit_log_segment_bytes=1_048_576",
        "timer_log_segment_bytes=65_536",
        "wheel_slot_count=2048",
        "precision_ms=100",
        "index_slot_count=50",
        "index_entry_count=2000",
    )
    for word in ("-c", setting)
]
COMMAND = [sys.executable, "-m", "timerstore.cli"]
COLUMNS, LINES = 100, 30


class Answer(NamedTuple):
    """The output of a command."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return its JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def row(self) -> dict[str, Any]:
        [row] = self.rows
        return row


class CommandLine:
    """Runs commands in this process."""

    def __init__(self, capfd: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capfd = capfd
        self.folder = folder
        self.store = folder / "orders.store"

    def __call__(self, *words: object) -> Answer:
        self._capfd.readouterr()
        code = main([str(word) for word in words])
        out, err = self._capfd.readouterr()
        return Answer(code, out, err)

    def fine(self, *words: object) -> Answer:
        answer = self(*words)
        assert answer.code == 0, answer
        return answer

    def init(self, *words: object) -> Path:
        self.fine("init", self.store, *SMALL, *words)
        return self.store


def environment() -> dict[str, str]:
    """Return our environment without COLUMNS and LINES, because a terminal has its own size."""
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color"}


def in_shell(command: Sequence[object], *, given: bytes = b"", **how: Any) -> Answer:
    """Run a command as a process, with pipes."""
    done = subprocess.run(
        [*COMMAND, *map(str, command)],
        input=given,
        capture_output=True,
        env=environment(),
        timeout=60,
        check=False,
        **how,
    )
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


class Terminal:
    """A command on its own terminal; `screen` is the text that a person would see."""

    def __init__(
        self, *words: object, columns: int = COLUMNS, lines: int = LINES, **variables: str
    ) -> None:
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self.child = pexpect.spawn(
            COMMAND[0],
            [*COMMAND[1:], *map(str, words)],
            env=environment() | variables,
            dimensions=(lines, columns),
            timeout=30,
        )

    def read(self, seconds: float = 0.1) -> str:
        """Read the output to the end of a frame, and return the screen."""
        with contextlib.suppress(pexpect.TIMEOUT, pexpect.EOF, ValueError):  # closed
            while True:
                data = self.child.read_nonblocking(1 << 20, timeout=seconds)
                self.raw += data
                self._stream.feed(data)
                seconds = 0.03  # within a frame there is no such pause
        return "\n".join(line.rstrip() for line in self._screen.display)

    def wait_for(self, text: str, seconds: float = 30) -> str:
        """Read until the screen shows a text."""
        return self.wait_until(re.escape(text), seconds)

    def wait_until(self, pattern: str, seconds: float = 30) -> str:
        """Read until the screen matches a pattern."""
        for _ in range(int(seconds * 10)):
            screen = self.read()
            if re.search(pattern, screen):
                return screen
            if not self.child.isalive():
                break
        screen = self.read()
        assert re.search(pattern, screen), screen
        return screen

    def end(self) -> int:
        """Wait until the command ends, and return its exit code."""
        while self.child.isalive():
            self.read()
        self.read()
        self.child.close()
        return int(self.child.exitstatus if self.child.exitstatus is not None else -1)
