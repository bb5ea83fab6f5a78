"""The exit code of a command whose standard output or error is a full device."""

import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import COMMAND, CommandLine, environment
from timerstore.cli.exits import Exit

pytestmark = pytest.mark.more  # each test starts some processes


OUT, ERR = "stdout", "stderr"


def run(words: list[object], *full: str, unbuffered: bool = False) -> tuple[int, str, str]:
    """Return the exit code, output and error; a full stream is returned as empty text."""
    with Path("/dev/full").open("wb") as device:
        streams = {name: device if name in full else subprocess.PIPE for name in (OUT, ERR)}
        env = {key: value for key, value in environment().items() if key != "PYTHONUNBUFFERED"}
        done = subprocess.run(
            [*COMMAND, *map(str, words)],
            env={**env, "PYTHONUNBUFFERED": "1"} if unbuffered else env,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=60,
            check=False,
            **streams,  # type: ignore[arg-type]
        )
    return done.returncode, done.stdout or "", done.stderr or ""


@pytest.fixture
def store(ts: CommandLine) -> Path:
    path = ts.init()
    ts.fine("put", path, "orders", "x")
    return path


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["ls", "STORE"], Exit.FINE, "orders"),
        (["histogram", "STORE"], Exit.FINE, "due, by hour"),
        (["get", "STORE", "nothing"], Exit.NOT_SO, ""),
        (["ls", "STORE/none"], Exit.ERROR, ""),
        (["nothing-such"], Exit.ERROR, ""),
        (["--debug", "cancel", "STORE", "x"], Exit.ERROR, ""),
        ([], Exit.ERROR, ""),
        (["--help"], Exit.FINE, "Exit codes:"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("unbuffered", [False, True])
def test_full_standard_error_does_not_change_the_result(
    store: Path, words: list[str], code: Exit, expected: str, unbuffered: bool
) -> None:
    given: list[object] = [one.replace("STORE", str(store)) for one in words]
    got, out, _ = run(given, ERR, unbuffered=unbuffered)
    assert got == code == run(given)[0]
    assert expected in out


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], ["ls", "--help"], ["every", "list", "--help"],
            ["ls", "STORE"], ["dump", "STORE"]],
)  # fmt: skip
@pytest.mark.parametrize("unbuffered", [False, True])
def test_full_standard_output_is_reported(store: Path, words: list[str], unbuffered: bool) -> None:
    given: list[object] = [one.replace("STORE", str(store)) for one in words]
    code, _, errors = run(given, OUT, unbuffered=unbuffered)
    assert code == Exit.ERROR
    assert "error: the result cannot be written" in errors
    assert "where  standard output" in errors
    assert "Traceback" not in errors
    assert run(given, OUT, ERR, unbuffered=unbuffered)[0] == Exit.ERROR


def test_main_restores_the_streams_of_its_caller(store: Path) -> None:
    script = (
        "import sys\nfrom timerstore.cli import main\nout, err = sys.stdout, sys.stderr\n"
        f"assert main(['count', {str(store)!r}]) == 0\n"
        "print('mine', file=out, flush=True)\nprint('mine, too', file=err, flush=True)\n"
        "del out, err\nassert main(['--version']) == 0\n"
    )
    done = subprocess.run(
        [COMMAND[0], "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "mine, too\n")
    assert done.stdout.split("\n")[1] == "mine"
