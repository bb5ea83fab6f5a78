"""Where snippets run: a folder of their own, with `timerstore` in PATH."""

import sys
from pathlib import Path

import pytest

from tests.support.command_line import environment


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the environment of a shell in an empty folder."""
    tools = tmp_path / "tools"
    tools.mkdir()
    command = tools / "timerstore"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m timerstore.cli "$@"\n')
    command.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    given = environment()
    return {**given, "PATH": f"{tools}:{given['PATH']}"}
