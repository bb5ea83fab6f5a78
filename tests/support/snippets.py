"""Snippets of Markdown: found by section, run, and compared with what they say that they print.

    ```python    runs, in one namespace a section      ```console   `$ command`, and its output
    ```text      directly behind one of python: what that printed

In expected output, `...` stands for any text.
"""

import contextlib
import doctest
import io
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from timerstore.cli import main

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "timerstore" / "docs"
_FENCE = re.compile(r"^```([a-z]*)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Snippet(NamedTuple):
    """One fenced block."""

    kind: str
    more: str
    text: str


class Section(NamedTuple):
    """The snippets below one heading."""

    page: str
    name: str
    snippets: list[Snippet]


def sections(page: Path) -> Iterator[Section]:
    """Return the sections of a page that have a snippet."""
    for part in re.split(r"^(?=##? )", page.read_text(), flags=re.MULTILINE):
        snippets = [Snippet(m[1], m[2].strip(), m[3]) for m in _FENCE.finditer(part)]
        if snippets:
            yield Section(page.name, part.splitlines()[0].strip("# "), snippets)


def stands_alone(section: Section) -> bool:
    """Return whether it can run: its first Python snippet has imports."""
    first = next((one.text for one in section.snippets if one.kind == "python"), "import ")
    return first.startswith(("import ", "from "))


def check(said: str, printed: str, what: str) -> None:
    """Compare the output shown on a page with the real output."""
    checker = doctest.OutputChecker()
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert checker.check_output(said, printed, flags), f"{what}\nsaid:\n{said}\ncame:\n{printed}"


def run(section: Section, shell: dict[str, str]) -> int:
    """Run a section's snippets in the current folder, and return their number."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed, ran, runs = "", 0, stands_alone(section)
    for snippet in section.snippets:
        if snippet.kind == "python" and ("no-run" in snippet.more or not runs):
            compile(snippet.text, section.page, "exec")
            printed = ""
        elif snippet.kind == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(snippet.text, f"{section.page}: {section.name}", "exec"), names)
            printed, ran = out.getvalue(), ran + 1
        elif snippet.kind == "text":
            check(snippet.text, printed, section.name)
        elif snippet.kind == "console":
            ran += run_console(snippet.text, shell)
    return ran


def run_console(text: str, shell: dict[str, str]) -> int:
    """Run the commands of a console snippet, and compare the output of each."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert not parts[0], "a console begins with a command"
    for part in parts[1:]:
        command, _, said = part.partition("\n")
        check(
            said, "".join(_told(one.strip(), shell) for one in command.split(";")), f"$ {command}"
        )
    return len(parts) - 1


def _told(command: str, shell: dict[str, str]) -> str:
    """Return the output of a command. Our own run in this process, which is ten times as fast."""
    first, *words = shlex.split(command)
    is_unset = words[-1:] == [">/dev/null"]
    if first == "timerstore" and "|" not in words:
        said = io.BytesIO()
        out = io.TextIOWrapper(said, write_through=True)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            main(words[:-1] if is_unset else words)
        return "" if is_unset else said.getvalue().decode()
    done = subprocess.run(
        ["bash", "-c", command],
        env=shell,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout
