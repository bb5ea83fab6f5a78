"""Command `demo`: what it shows, its check, an interruption, and where it cannot run."""

import re
import shlex
import signal
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.command_line import COMMAND, CommandLine, Terminal, environment
from timerstore import TimerStore
from timerstore.cli.exits import Exit

SHORT = "demo", "--seconds", "0.6"
MARKS = "1. Put", "   reminder 1 ", "4. kill -9", "   reminder 4 "
"""Text in the order in which it appears."""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def test_demo_kills_a_process_and_checks_each_reminder(ts: CommandLine, temporary: Path) -> None:
    out = ts.fine("demo", "--seconds", "2.4").out  # time for the first sync of a slow disk
    assert [out.index(one) for one in MARKS] == sorted(out.index(one) for one in MARKS)
    came = [int(one) for one in re.findall(r"^   reminder (\d+) +\S+ late$", out, re.MULTILINE)]
    assert came == [1, 2, 3, 4, 5, 6, 8, 9, 10]
    assert "2. Cancel reminder 7: CANCELLED\n" in out
    assert "9 pending" in out
    assert len(re.findall("[∙•●]", out)) in (8, 9), "the hand may cover one"
    assert "lost 0, doubled 0, early 0, cancelled but came 0; the store is clean\nPASS" in out
    assert "\x1b" not in out
    assert not list(temporary.iterdir())


def test_demo_runs_in_a_checkout_that_is_not_built(
    ts: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other process is the installed program, too."""
    (tmp_path / "timerstore").mkdir()
    (tmp_path / "timerstore/__init__.py").write_text("import not_built")
    monkeypatch.chdir(tmp_path)
    assert "PASS" in ts.fine(*SHORT).out


def test_the_next_three_commands_work(
    ts: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a demo without a directory, and with one, which is kept."""
    monkeypatch.chdir(tmp_path)
    for more in ([], ["--directory", "kept.store"]):
        named = ts.fine(*SHORT, *more).out.partition("Try next:\n")[2].splitlines()
        assert len(named) == 3
        for line in named:
            program, *words = shlex.split(line)
            assert program == "timerstore"
            words = [{"5s": "50ms"}.get(one, one) for one in words]
            answer = ts(*words)
            assert answer.out
            assert answer.code == 0 or words[0] == "doctor"  # it does not like a store in memory
    assert ts.fine("ls", "kept.store", "--json").row["delivered"] == 9


@pytest.mark.parametrize(
    ("fault", "field"), [("drop", "lost"), ("double", "doubled"), ("early", "early")]
)
def test_demo_fails_on_a_fault(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch, fault: str, field: str
) -> None:
    real = TimerStore.pull

    def pull(store: TimerStore, *given, **named):  # type: ignore[no-untyped-def]
        first, *rest = real(store, *given, **named).messages
        early = SimpleNamespace(body=first.body, delivered_ms=first.due_ms - 1)
        firsts = {"drop": [], "double": [first, first], "early": [early]}[fault]
        return SimpleNamespace(messages=[*firsts, *rest])

    monkeypatch.setattr(TimerStore, "pull", pull)
    answer = ts(*SHORT, "--json")
    assert answer.code == Exit.NOT_SO
    assert answer.row[field] == 1
    assert not answer.row["passed"]


# --- terminals and signals ------------------------------------------------------------------------


@pytest.mark.more
@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_demo_fits_a_terminal(columns: int, variables: dict[str, str]) -> None:
    shown = Terminal(*SHORT, columns=columns, lines=60, **variables)
    assert shown.end() == 0
    text = shown.raw.decode().replace("\r", "")
    bare = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, bare.splitlines())) <= columns
    assert bare.endswith("\ntimerstore follow my.store jobs -n 1\n")
    assert "\x1b" not in bare
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]", text)) == (not variables), "colours"


def test_demo_is_readable_in_ascii(temporary: Path) -> None:
    done = subprocess.run(
        [*COMMAND, *SHORT],
        env=environment() | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert b"@" in done.stdout
    assert b"\\u" not in done.stdout


@pytest.mark.parametrize(
    "sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.more)]
)
@pytest.mark.parametrize("mark", MARKS)
def test_interrupted_demo_removes_its_folder_and_its_process(
    temporary: Path, mark: str, sent: signal.Signals
) -> None:
    with subprocess.Popen(
        [*COMMAND, "demo", "--seconds", "6"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as demo:
        assert demo.stdout is not None
        said = ""
        for line in demo.stdout:
            said += line
            if line.startswith(mark):
                break
        demo.send_signal(sent)
        _, err = demo.communicate(timeout=30)
    assert demo.returncode == (Exit.INTERRUPTED if sent == signal.SIGINT else Exit.TERMINATED)
    assert not err
    assert not list(temporary.iterdir())
    pid = re.search(r"Process (\d+)", said)
    assert pid is None or not Path(f"/proc/{pid[1]}").exists()


# --- where it cannot run --------------------------------------------------------------------------


def test_demo_leaves_a_directory_with_something_in_it_alone(ts: CommandLine) -> None:
    store = ts.init()
    file = ts.folder / "file"
    file.write_text("x")
    for path, got in ((store, "a store"), (file, "a file"), (ts.folder, "other files")):
        before = sorted(ts.folder.rglob("*"))
        for command in (SHORT, ("bench", "-n", "1000")):
            answer = ts(*command, "--directory", path)
            assert (answer.code, answer.out) == (Exit.ERROR, "")
            assert answer.err.startswith("error: cannot create a store at this path\n")
            assert f"got    {got}\n" in answer.err
        assert sorted(ts.folder.rglob("*")) == before
