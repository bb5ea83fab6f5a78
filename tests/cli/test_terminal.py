"""Commands on a terminal and with pipes: screens, keys, signals and broken pipes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import timerstore
from tests.support.command_line import (
    COMMAND,
    SMALL,
    Answer,
    CommandLine,
    Terminal,
    environment,
    in_shell,
)
from timerstore.cli.exits import Exit

pytestmark = pytest.mark.more  # each test starts some processes


@pytest.fixture
def store(ts: CommandLine) -> Path:
    return ts.init()


# --- top ------------------------------------------------------------------------------------------


def test_top_shows_pending_messages_and_moves_its_hand(store: Path) -> None:
    with timerstore.open(store) as open_store:
        for k in range(40):
            open_store.put("orders", b"x", delay=48 + 0.2 * k, flush="async")  # shown before due
        open_store.put("invoices", b"x", delay=7200)
        open_store.flush()
        top = Terminal("top", store, "--every", "300ms")
        # After the next checkpoint, and not while the hand is drawn at its next place.
        screen = top.wait_until(r"(?s)\A(?=.*1 min +\d+ █.* a automatic)[^◆]*◆[^◆]*\Z")
        lines = screen.splitlines()
        assert f"open in process {os.getpid()}" in lines[0]
        assert "the next 60 seconds" in screen
        assert re.search(r"[·∙•●◆] +41 +[·∙•●◆]", screen), screen
        assert re.search(r"orders +40 +0 +0", screen)
        assert screen.count("◆") == 1
        assert all(len(line) <= 100 for line in lines)
        hand = _hand(screen)
        for _ in range(60):
            if _hand(screen := top.read()) != hand:
                break
        assert _hand(screen) != hand, "the hand does not move"
        top.child.send("h")
        top.wait_until(r"(?s)the next 24 hours.*41 in 24 hours|41 in 24 hours.*the next 24 hours")
        top.child.send("q")
        assert top.end() == 0


def _hand(screen: str) -> tuple[int, int] | None:
    for y, line in enumerate(screen.splitlines()):
        if "◆" in line:
            return y, line.index("◆")
    return None


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (160, 50)])
def test_top_fits_its_terminal(store: Path, columns: int, lines: int) -> None:
    top = Terminal("top", store, columns=columns, lines=lines)
    # The terminal gets its size shortly after its program has started.
    screen = top.wait_until(rf"\A(.*\n){{{lines - 1}}} q quit").splitlines()
    assert "closed: nothing is delivered" in screen[0]
    assert re.search(r"\d\d:\d\d:\d\d$", screen[0])
    for line in screen[1 : lines - 1]:
        assert len(line) == columns, line
        assert line[-1] in "╮│╯"
    top.child.sendintr()
    assert top.end() == Exit.INTERRUPTED


def test_top_restores_the_terminal(store: Path) -> None:
    shell = Terminal("top", store, "-n", "1")
    assert shell.end() == 0
    assert shell.raw.count(b"\x1b[?1049h") == 1, "the alternate screen"
    assert shell.raw.rindex(b"\x1b[?1049l") > shell.raw.rindex(b"q quit"), "the main screen again"
    assert shell.raw.rindex(b"\x1b[?25h") > shell.raw.rindex(b"\x1b[?25l"), "the cursor shows"


# --- text, colours, bars --------------------------------------------------------------------------


def test_table_is_cut_to_a_terminal_but_not_to_a_pipe(ts: CommandLine, store: Path) -> None:
    topic = "t" * 120
    ts.fine("put", store, topic, "x")
    shown = Terminal("ls", store, columns=60)
    assert shown.end() == 0
    assert all(len(line) <= 60 for line in shown.read().splitlines())
    assert f"{topic}       1        0          1\n" in in_shell(["ls", store]).out


def test_errors_are_red_only_on_a_terminal(tmp_path: Path) -> None:
    shown = Terminal("ls", tmp_path / "nowhere")
    raw = shown.child.read()
    assert b"\x1b[1;31merror: no store at this path" in raw
    assert "\x1b" not in in_shell(["ls", tmp_path / "nowhere"]).err


@pytest.mark.parametrize("words", [["--json"], []])
def test_full_output_is_not_reported_as_a_full_store(
    ts: CommandLine, store: Path, words: list[str]
) -> None:
    """The message is stored; only the output is lost."""
    put, get = ["put", store, "orders", "x"], ["get", store, "orders"]
    for command in (put, get, ["ls", store], ["top", store, "--once"]):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [*COMMAND, *map(str, [*command, *words])],
                env=environment(),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
            )
        assert done.returncode == Exit.ERROR
        assert "the result cannot be written" in done.stderr
        assert "standard output" in done.stderr
    assert ts.fine("get", store, "orders", "--json").rows[-1]["body"] == "x"


def test_progress_bar_is_shown_only_on_a_terminal(ts: CommandLine, store: Path) -> None:
    ts.fine("put", store, "orders", "x")
    assert b"reading" in Terminal("verify", store).child.read()
    assert in_shell(["verify", store]).err == ""


def test_completion_offers_commands_and_options(store: Path) -> None:
    def complete(words: str) -> list[str]:
        asked = {**environment(), "_TIMERSTORE_COMPLETE": "bash_complete", "COMP_WORDS": words}
        asked["COMP_CWORD"] = str(len(words.split(" ")) - 1)
        done = subprocess.run(
            COMMAND, env=asked, capture_output=True, text=True, timeout=60, check=False
        )
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert complete("timerstore ex") == ["extend", "explain", "export"]
    assert complete("timerstore re") == ["receive", "requeue", "repair", "restore"]
    assert "--receipts" in complete("timerstore put --re")
    script = {**environment(), "_TIMERSTORE_COMPLETE": "bash_source"}
    done = subprocess.run(
        COMMAND, env=script, capture_output=True, text=True, timeout=60, check=False
    )
    assert "complete -o nosort -F _timerstore_completion timerstore" in done.stdout


# --- pipes ----------------------------------------------------------------------------------------


def test_put_lines_reads_standard_input(store: Path) -> None:
    lines = b"one\ntwo\r\n\nthree"
    done = in_shell(["put", store, "orders", "--lines", "--tag", "t"], given=lines)
    assert done == Answer(0, "put 3 messages to orders\n", "1 empty line skipped\n")
    got = in_shell(["get", store, "orders", "--body"])
    assert got.out == "one\ntwo\nthree\n"
    many = b"".join(b"%d\n" % k for k in range(25_000))
    answer = in_shell(["put", store, "many", "--lines", "--in", "1h", "--json"], given=many)
    assert json.loads(answer.out) == {"topic": "many", "put": 25_000, "empty_lines": 0}
    assert in_shell(["count", store]).out == "25000\n"
    receipts = in_shell(["put", store, "r", "--lines", "--in", "1h", "--receipts"], given=b"a\nb\n")
    handles = [line.split()[1] for line in receipts.out.splitlines()[:2]]
    cancelled = in_shell(["cancel", store, "-"], given="\n".join(handles).encode())
    assert cancelled.out.count("CANCELLED") == 2


def test_body_from_standard_input_keeps_every_byte(store: Path) -> None:
    body = bytes(range(256)) * 4
    in_shell(["put", store, "orders"], given=body)
    raw = subprocess.run(
        [*COMMAND, "get", str(store), "orders", "--body"],
        capture_output=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert raw.stdout == body + b"\n"
    line = in_shell(["get", store, "orders", "--json"])
    other = store.with_name("other.store")
    in_shell(["init", other, *SMALL])
    assert in_shell(["import", other, "-"], given=line.out.encode()).code == 0
    again = in_shell(["get", other, "orders", "--json"]).row
    assert again["body_base64"] == line.row["body_base64"]


def test_put_lines_names_the_line_that_is_too_large(store: Path) -> None:
    lines = b"a\n" + b"x" * 2_000_000 + b"\n"
    done = in_shell(["put", store, "orders", "--lines"], given=lines)
    assert done.code == Exit.ERROR
    assert re.search(r"lines [12] to 2 were not put", done.err)
    # The lines of an earlier read are stored.
    assert in_shell(["get", store, "orders", "--body"]).out in ("", "a\n")


def test_broken_pipe_ends_a_command_without_a_message(store: Path) -> None:
    given = b"".join(b"line %d\n" % k for k in range(20_000))
    in_shell(["put", store, "orders", "--lines"], given=given)
    for command in (["dump", store], ["follow", store, "orders", "--all"]):
        words = " ".join(map(str, [*COMMAND, *command]))
        done = subprocess.run(
            ["bash", "-c", f"{words} | head -1; echo ${{PIPESTATUS[0]}}"],
            capture_output=True,
            env=environment(),
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout.splitlines()[1] == str(int(Exit.READER_GONE)), done
        assert "Traceback" not in done.stderr
        assert "BrokenPipe" not in done.stderr
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:  # closed before the first output
        words = [*COMMAND, "top", str(store), "--once"]
        status = subprocess.run(
            words, stdout=gone, env=environment(), timeout=60, check=False
        ).returncode
    assert status == Exit.READER_GONE
    assert in_shell(["verify", store]).code == 0


def run_closed(closed: str, *words: object) -> Answer:
    done = subprocess.run(
        ["bash", "-c", f'"$@" {closed}', "bash", *COMMAND, *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(),
        text=True,
        timeout=60,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "words",
    [["put", "STORE", "t", "x"], ["get", "STORE", "t", "--group", "g", "--body"],
     ["get", "STORE", "t", "--json"], ["receive", "STORE", "t", "--group", "g"],
     ["receive", "STORE", "t", "--group", "g", "--json"], ["follow", "STORE", "t", "--all"],
     ["ack", "STORE", "-"], ["ls", "STORE"], ["--help"], ["nothing-such"], []],
)  # fmt: skip
def test_closed_output_is_rejected_before_anything_is_done(store: Path, words: list[str]) -> None:
    in_shell(["put", store, "t", "work"])
    given: list[object] = [one.replace("STORE", str(store)) for one in words]
    answer = run_closed(">&-", *given)
    assert (answer.code, answer.out) == (Exit.ERROR, "")
    if "--json" in words:
        assert json.loads(answer.err)["where"] == "standard output"
    else:
        assert answer.err.startswith("error: standard output is closed")
    assert run_closed("<&- >&- 2>&-", *given) == Answer(Exit.ERROR, "", "")
    for group in ("g", "other"):  # nothing was committed, leased or put
        rows = in_shell(["get", store, "t", "--group", group, "--json"]).rows
        assert [row["body"] for row in rows] == ["work"]


@pytest.mark.parametrize(
    "words",
    [["put", "STORE", "t"], ["put", "STORE", "t", "-"], ["put", "STORE", "t", "--lines"],
     ["ack", "STORE", "-"], ["nack", "STORE", "-"], ["extend", "STORE", "-"],
     ["bury", "STORE", "-"], ["requeue", "STORE", "g", "-"],
     ["cancel", "STORE", "-"], ["import", "STORE", "-"],
     ["every", "STORE", "t", "--every", "5s"]],
)  # fmt: skip
def test_closed_input_is_an_error_when_it_is_read(store: Path, words: list[str]) -> None:
    answer = run_closed("<&-", *[one.replace("STORE", str(store)) for one in words])
    assert answer.code == Exit.ERROR
    assert answer.out == ("put 0 messages to t\n" if "--lines" in words else "")
    assert answer.err.startswith("error: standard input is closed")
    assert in_shell(["ls", store]).code == Exit.FINE
    assert in_shell(["get", store, "t"]).code == Exit.NOT_SO  # nothing was put


def test_closed_unused_streams_change_nothing(store: Path) -> None:
    assert run_closed("<&-", "put", store, "t", "x").code == Exit.FINE
    for closed in ("2>&-", "<&- 2>&-"):
        assert run_closed(closed, "get", store, "t", "--body") == Answer(Exit.FINE, "x\n", "")
        assert run_closed(closed, "get", store, "none") == Answer(Exit.NOT_SO, "", "")
        assert run_closed(closed, "ls", store / "none") == Answer(Exit.ERROR, "", "")


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, Exit.TERMINATED)],
)
@pytest.mark.parametrize("command", ["follow", "put"])
def test_signal_closes_the_store(
    ts: CommandLine, store: Path, command: str, number: int, code: Exit
) -> None:
    ts.fine("put", store, "orders", "x")
    more = ["--all"] if command == "follow" else ["--lines"]
    child = subprocess.Popen(
        [*COMMAND, command, str(store), "orders", *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        if command == "put":
            child.stdin.write(b"one\n")
            child.stdin.flush()
            _wait_until_open(store, child)
        else:
            child.stdout.readline()
        child.send_signal(number)
        _, errors = child.communicate(timeout=30)
    assert child.returncode == code
    assert b"Traceback" not in errors
    assert not (store / "abort").exists(), "the store was not closed"


def _wait_until_open(store: Path, child: subprocess.Popen[bytes]) -> None:
    while not (store / "abort").exists():
        assert child.poll() is None


def test_ctrl_c_at_a_terminal_interrupts_follow(store: Path) -> None:
    follow = Terminal("follow", store, "orders")
    follow.wait_for("Ctrl-C ends")
    follow.child.sendintr()
    assert follow.end() == Exit.INTERRUPTED
    assert "Traceback" not in follow.read()


def test_interrupted_import_continues_when_repeated(store: Path) -> None:
    file = store.with_name("rows.jsonl")
    rows = (
        json.dumps({"topic": "t", "body": str(k), "deliver_at": "2100-01-01T00:00Z"})
        for k in range(20_000)
    )
    file.write_text("\n".join(rows))
    config = ["-c", "delay_ms_max=31000000000000"]
    command = ["import", str(store), str(file), *config]
    with subprocess.Popen(
        [*COMMAND, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as child:
        _wait_until_open(store, child)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)
    assert child.returncode == Exit.INTERRUPTED
    assert not (store / "abort").exists()
    assert in_shell(command).code == 0
    assert in_shell(["count", store]).out == "20000\n"
    answer = in_shell(["dump", store, "transactions"]).row
    assert answer["rows"] == 20_000


def test_second_ctrl_c_ends_the_process_at_once(store: Path) -> None:
    program = (
        "import signal, sys, time\n"
        "from timerstore.cli.stopping import stopping\n"
        "with stopping() as stop:\n"
        "    print('in', flush=True)\n"
        "    while not stop.is_asked: time.sleep(0.01)\n"
        "    print('goes on', flush=True)\n"
        "    while True: time.sleep(0.01)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment()
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == b"goes on\n", "the first signal only sets a flag"
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == Exit.INTERRUPTED
