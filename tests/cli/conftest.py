"""Fixtures of the tests of the command line."""

from pathlib import Path

import pytest

from tests.support.command_line import CommandLine


@pytest.fixture
def ts(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    """The command line, and a folder."""
    return CommandLine(capfd, tmp_path)
