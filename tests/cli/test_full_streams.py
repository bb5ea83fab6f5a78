"""Standard output or error on a full device: the exit code says what became of the command."""

import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import COMMAND, CommandLine, environment
from timerstore.cli.exits import Exit

pytestmark = pytest.mark.more  # each test starts some processes


OUT, ERR = "stdout", "stderr"


def run(words: list[object], *full: str, unbuffered: bool = False) -> tuple[int, str, str]:
    """Exit code, output and error; a stream that is full says nothing."""
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
    ("words", "code", "said"),
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
def test_what_cannot_be_said_beside_the_answer_changes_nothing(
    store: Path, words: list[str], code: Exit, said: str, unbuffered: bool
) -> None:
    given: list[object] = [one.replace("STORE", str(store)) for one in words]
    got, out, _ = run(given, ERR, unbuffered=unbuffered)
    assert got == code == run(given)[0]
    assert said in out


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], ["ls", "--help"], ["every", "list", "--help"],
            ["ls", "STORE"], ["dump", "STORE"]],
)  # fmt: skip
@pytest.mark.parametrize("unbuffered", [False, True])
def test_an_answer_that_cannot_be_written_is_told_as_such(
    store: Path, words: list[str], unbuffered: bool
) -> None:
    given: list[object] = [one.replace("STORE", str(store)) for one in words]
    code, _, told = run(given, OUT, unbuffered=unbuffered)
    assert code == Exit.ERROR
    assert "error: the result cannot be written" in told
    assert "where  standard output" in told
    assert "Traceback" not in told
    assert run(given, OUT, ERR, unbuffered=unbuffered)[0] == Exit.ERROR


def test_who_calls_main_in_his_own_process_keeps_his_streams(store: Path) -> None:
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
