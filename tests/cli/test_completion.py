"""Command `completion`, in real shells."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from tests.support.command_line import CommandLine, environment
from timerstore.cli.completing import SHELLS
from timerstore.cli.exits import Exit

SHOWS = {
    "bash": """
        complete_words() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)) COMPREPLY=()
            _timerstore_completion timerstore
            echo "${COMPREPLY[@]}"
        }
        complete_words timerstore doc
        complete_words timerstore completion f
        complete_words timerstore demo --sec
    """,
    "fish": """
        for line in "timerstore doc" "timerstore completion f" "timerstore demo --sec"
            complete -C $line | string split -f 1 \\t
        end
    """,
}
"""Programs that print what the shell makes of three lines."""


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that has the command `timerstore`."""
    program = tmp_path / "timerstore"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m timerstore.cli "$@"\n')
    program.chmod(0o755)
    found = environment()
    return {**found, "HOME": str(tmp_path), "PATH": f"{tmp_path}{os.pathsep}{found['PATH']}"}


def require(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"NOT RUN: {shell} is not installed")
    return found


def line_of(shell: str) -> str:
    return SHELLS[shell].partition("#")[0].strip()


@pytest.mark.parametrize("shell", SHOWS)
def test_shell_completes_commands_and_options(shell: str, variables: dict[str, str]) -> None:
    done = subprocess.run(
        [require(shell), "-c", f"{line_of(shell)}\n{SHOWS[shell]}"],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == (["doctor", "fish", "--seconds"], "")


def test_zsh_completes_a_command(variables: dict[str, str]) -> None:
    """In an interactive shell: zsh completes only at its own prompt."""
    shell = pexpect.spawn(
        require("zsh"), ["-f", "-i"], env=variables, timeout=60, encoding="utf-8", echo=False
    )
    try:
        shell.sendline(f"PS1=; autoload -U compinit; compinit -u; {line_of('zsh')}; echo rea''dy")
        shell.expect("ready")
        shell.send("timerstore doc\t")
        shell.expect("timerstore doctor")
    finally:
        shell.close(force=True)


@pytest.mark.parametrize("shell", SHELLS)
def test_help_names_the_line_of_each_shell(ts: CommandLine, shell: str) -> None:
    assert ts.fine("completion", shell).out
    assert SHELLS[shell] in ts.fine("completion", "--help").out


def test_unknown_shell_is_an_error(ts: CommandLine) -> None:
    answer = ts("completion", "tcsh")
    assert answer.code == Exit.ERROR
    assert "'bash', 'zsh', 'fish'" in answer.err
