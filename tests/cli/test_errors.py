"""Error messages of the command line, with all their parts, and their exit codes."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.command_line import SMALL, CommandLine
from tests.support.inside import Disk
from timerstore.cli.command import COMMANDS
from timerstore.cli.exits import TABLE, Exit
from timerstore.errors import FullError


def test_command_suggests_init_when_there_is_no_store(ts: CommandLine) -> None:
    nowhere, file = ts.folder / "nowhere", ts.folder / "file"
    file.write_text("x")
    more = {
        "put": ["t", "x"],
        "get": ["t"],
        "follow": ["t"],
        "cancel": ["h"],
        "delete-topic": ["t"],
        "move": ["h", "--in", "1s"],
        "repair": [ts.folder / "new"],
        "export": [ts.folder / "x.parquet"],
        "explain": ["x", "--topic", "t"],
        "receive": ["t", "--group", "g"],
        "ack": ["r"],
        "nack": ["r"],
        "bury": ["r"],
        "dead-letters": ["g"],
        "requeue": ["g", "--all"],
        "extend": ["r"],
        "pace": ["t=1"],
        "import": [file],
        "backup": [ts.folder / "b"],
        "restore": [ts.folder / "r"],
        "serve": ["--ui"],
        "convert": ["--to", "rocketmq"],
    }
    for name in COMMANDS.keys() - {"init", "bench", "demo", "ping", "doctor", "completion"}:
        answer = ts(name, nowhere, *more.get(name, []))
        assert (answer.code, answer.out) == (Exit.ERROR, ""), name
        assert answer.err.startswith("error: no store at this path\n"), name
        assert f"timerstore init {nowhere}" in answer.err, name
        assert not nowhere.exists(), name
        assert "got    a file" in ts(name, file, *more.get(name, [])).err, name


def _link(path: Path) -> None:
    path.symlink_to("away")


def test_permanent_error_does_not_advise_to_try_again(ts: CommandLine) -> None:
    path, file = ts.init(), ts.folder / "afile"
    file.write_text("x")
    answers = [ts("init", file / "x")]
    for name, makes in (
        ("lock", (Path.mkdir, _link)),
        ("timerwheel", (Path.mkdir, _link)),
        ("timerstore/watermark", (Path.mkdir,)),
        ("commitlog", (_link, Path.touch)),
    ):
        kept = (path / name).rename(ts.folder / "kept")
        for make in makes:
            make(path / name)
            answers.append(ts("put", path, "t", "x"))
            (path / name).rename(ts.folder / f"away-{len(answers)}")
        kept.rename(path / name)
    for answer in answers:
        assert answer.code == Exit.ERROR, answer
        assert "try again" not in answer.err, answer.err
    assert "ENOTDIR" in answers[0].err
    ts.fine("put", path, "t", "x")


def test_transient_error_advises_to_try_again(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = ts.init()
    monkeypatch.setattr(os, "pwrite", failing)
    answer = ts("put", path, "t", "x")
    monkeypatch.undo()
    assert answer.code == Exit.ERROR
    assert "(EIO)" in answer.err
    assert "try again; opening recovers the store from disk" in answer.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["put", "t", "x", "--in", "soon"], "wanted a span such as 250ms, 90s, 30m"),
        (["put", "t", "x", "--at", "noon"], "wanted a time such as 2026-12-24T18:00+01:00"),
        (["put", "t", "x", "--in", "1s", "--at", "now"], "wanted --in or --at"),
        (["put", "t", "x", "--in", "41w", "--level", "2"], "wanted one of"),
        (["put", "t", "x", "--in", "9999w"], "delay: wanted at most"),
        (["put", "t", "x", "--level", "0"], "level: wanted a whole number from 1 on"),
        (["put", "a/b", "x"], "topic"),
        (["put", "t", "x", "--property", "TAGS=x"], "TAGS"),
        (["put", "t", "x", "-c", "flsh=async"], "did you mean flush?"),
        (["put", "t", "x", "-c", "flush=never"], "flush: wanted 'sync' or 'async', got 'never'"),
        (["put", "t", "x", "-c", "wheel_slot_count=many"], "wanted an integer, got 'many'"),
        (["put", "t", "x", "-c", "wheel_slot_count=64"], "wheel_slot_count"),
        (["put", "t", "x", "--lines"], "--lines: each line is a message"),
        (["cancel"], "wanted handles"),
        (["cancel", "--key", "k"], "--topic and --key go together"),
        (["move", "h"], "wanted --in or --at"),
        (["get", "t", "--max", "0"], "0 is not in the range"),
        (["top"], "top --once"),
        (["receive", "t"], "Missing option '--group'"),
        (["receive", "t", "--group", "g", "--lease", "soon"], "wanted a span such as 250ms"),
        (["receive", "t", "--group", "g", "--lease", "0s"], "lease: wanted more than 0"),
        (["receive", "t", "--group", "a|b"], "group: wanted no |"),
        (["receive", "t", "--group", "g", "-n", "10001"], "10001 is not in the range"),
        (["ack"], "Missing argument 'RECEIPTS...'"),
        (["ack", "nonsense"], "give the receipt that `receive` printed"),
        (["nack", "nonsense"], "give the receipt that `receive` printed"),
        (["bury", "nonsense"], "give the receipt that `receive` printed"),
        (["requeue", "g", "nonsense"], "give the receipt that `dead-letters` printed"),
        (["extend", "nonsense"], "give the receipt that `receive` printed"),
        (["pace"], "Missing argument 'TOPIC=RATE...'"),
        (["pace", "t"], "topic_rates: wanted topic=messages a second"),
        (["pace", "t=0"], "topic_rates: wanted 0.001 to 1000000, got t=0.0"),
        (["pace", "t=1", "t=2"], "topic_rates: wanted each topic once"),
        (["every", "t", "x"], "time: wanted one of --every and --cron"),
        (["every", "t", "x", "--every", "1s", "--cron", "* * * * *"], "one of --every and --cron"),
        (["every", "t", "x", "--every", "10ms"], "every: wanted at least 1000 ms"),
        (["every", "t", "x", "--cron", "often"], "cron: wanted minute hour day month weekday"),
        (["every", "t", "x", "--cron", "@every 1h"], "for a fixed interval use every="),
        (["every", "t", "x", "--every", "1m", "--name", "a b"], "name: wanted 1 to 64"),
        (["every", "--name", "beat"], "wanted TOPIC and BODY"),
        (["every", "t", "--cancel", "beat"], "--cancel: ends a recurring message"),
        (["every", "--missed", "some"], "'some' is not one of"),
    ],
)
def test_invalid_argument_error_shows_the_expected_value(
    ts: CommandLine, words: list[str], text: str
) -> None:
    path = ts.init()
    answer = ts(words[0], path, *words[1:])
    assert (answer.code, answer.out) == (Exit.ERROR, "")
    assert text in answer.err
    assert ts.fine("count", path).out == "0\n"


def test_init_fixes_the_sizes_of_files(ts: CommandLine) -> None:
    path = ts.init()
    ts.fine("put", path, "orders", "a", "--in", "1s")
    for folder, size in (("commitlog", 1 << 20), ("timerlog", 1 << 16)):
        [file] = (path / folder).iterdir()
        assert file.stat().st_size == size
    assert (path / "timerwheel").stat().st_size == 2048 * 32
    answer = ts("put", path, "orders", "a", "-c", "commit_log_segment_bytes=2097152")
    assert "configured 2097152, but" in answer.err


def test_init_rejects_a_directory_in_use(ts: CommandLine) -> None:
    path = ts.init()
    assert "the directory already has a store" in ts("init", path).err
    full = ts.folder / "full"
    full.mkdir()
    (full / "letter").write_text("dear")
    assert ts("init", full).code == Exit.ERROR
    assert [one.name for one in full.iterdir()] == ["letter"]


def test_init_can_be_repeated_after_a_failure(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is a full disk. A killed command leaves the same files."""
    path, shards_path = ts.folder / "orders.store", ts.folder / "shards"
    make = Disk.make_directory

    def full_at(name: str) -> Callable[[Disk, Path], None]:
        def make_directory(disk: Disk, where: Path) -> None:
            if where.name == name:
                raise FullError("make directory", where=where)
            make(disk, where)

        return make_directory

    for words, name in (([path], "timerstore"), ([shards_path, "--shards", "2"], "shard-00001")):
        with monkeypatch.context() as full:
            full.setattr(Disk, "make_directory", full_at(name))
            assert ts("init", *words).code == Exit.LATER
    assert {one.name for one in path.iterdir()} <= {"lock", "unfinished-init"}
    (
        shards_path / ".cluster.json.17.0a0b0c0d.tmp"
    ).touch()  # left by a command that was killed one step later
    for words in ([path], [shards_path, "--shards", "2"]):
        ts.fine("init", *words)
        ts.fine("put", words[0], "orders", "a")
    (ts.folder / "other" / "shard-00000" / "commitlog").mkdir(parents=True)
    assert "cannot create a store" in ts("init", ts.folder / "other", "--shards", "2").err


def test_repeated_init_may_have_other_sizes(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first one made does not matter, except files that are not its own."""
    path, letter = ts.folder / "orders.store", ts.folder / "orders.store" / "letter"
    remove = Disk.unlink

    def full(disk: Disk, where: Path) -> None:
        if where.name == "unfinished-init":
            raise FullError("remove", where=where)
        remove(disk, where)

    made: list[list[str]] = [["precision_ms=100"], ["wheel_slot_count=2048"], ["precision_ms=10"]]
    counts: list[list[str]] = [[], ["--shards", "3"], ["--shards", "2"]]
    with monkeypatch.context() as patched:
        patched.setattr(Disk, "unlink", full)
        for words, settings in zip(counts, made, strict=True):
            assert ts("init", path, *words, "-c", *settings).code == Exit.LATER
            letter.write_text("dear")
    ts.fine("init", path, *SMALL)
    assert not list(path.glob("shard-*"))
    assert ts.fine("verify", path)
    assert letter.read_text() == "dear"
    ts.fine("put", path, "orders", "a", "-c", "precision_ms=100", "-c", "wheel_slot_count=2048")


@pytest.mark.parametrize("words", [(), ("--shards", "2")])
@pytest.mark.parametrize("is_killed", [False, True])
def test_init_rejects_an_unfinished_store_with_messages(
    ts: CommandLine, words: tuple[str, ...], is_killed: bool
) -> None:
    path = ts.init(*words)
    (path / "unfinished-init").touch()
    if is_killed:
        put = f"""import os, timerstore
store = timerstore.open{"_shards" if words else ""}({str(path)!r}, threads=False)
store.put("orders", b"a", delay=3600, flush="async")
os.kill(os.getpid(), 9)"""
        subprocess.run([sys.executable, "-c", put], check=False)
    else:
        ts.fine("put", path, "orders", "a", "--in", "1h")
        ts.fine("count", path, "--from", "now")  # an opening empties the staging file
    assert "already has a store" in ts("init", path, *words, "-c", "precision_ms=10").err
    assert not (path / "unfinished-init").exists()
    assert ts.fine("count", path, "--from", "now").out == "1\n"


def test_init_rejects_unfinished_shards_with_committed_rows(ts: CommandLine) -> None:
    path, rows = ts.init("--shards", "2"), ts.folder / "rows.jsonl"
    (path / "unfinished-init").touch()
    rows.write_text('{"topic": "orders", "body": "a"}\n')
    with timerstore.open_shards(path, threads=False):  # the import only commits
        ts.fine("import", path, rows)
    assert "already has a store" in ts("init", path, "--shards", "3").err


def test_empty_path_is_rejected(ts: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script passes an empty path if its variable is not set."""
    path = ts.init()
    monkeypatch.chdir(path)
    for words in (["init", ""], ["put", "", "t", "x"], ["count", ""], ["backup", path, ""]):
        answer = ts(*words)
        assert (answer.code, answer.out) == (Exit.ERROR, "")
        assert "wanted a path, got ''" in answer.err
    assert ts.fine("count", ".").out == "0\n"


def test_help_lists_every_command_and_exit_code(ts: CommandLine) -> None:
    whole = ts.fine("--help").out
    for code, text in TABLE.items():
        assert f"{int(code):3}  {text}" in whole
    for name, (_, text) in COMMANDS.items():
        assert name in whole
        assert text
        assert f"timerstore {name}" in ts.fine(name, "--help").out
    assert ts("pt").code == Exit.ERROR
    assert ts().code == Exit.ERROR
    assert "--json" in ts.fine("bench", "--help").out


def test_debug_shows_a_traceback(ts: CommandLine) -> None:
    assert "Traceback" in ts("--debug", "ls", ts.folder / "nowhere").err
    assert "Traceback" not in ts("ls", ts.folder / "nowhere").err


@pytest.mark.parametrize("error", [RuntimeError("what?"), MemoryError(), OverflowError("far")])
def test_unexpected_error_is_one_message(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def raise_it(*_: object) -> None:
        raise error

    path = ts.init()
    monkeypatch.setattr("timerstore.cli.listing.stores_in", raise_it)
    answer = ts("ls", path)
    assert (answer.code, answer.out) == (Exit.ERROR, "")
    first, *rest = answer.err.splitlines()
    assert first == f"error: unexpected error: {error!r}"
    assert rest == ["  do     report it as a bug, with the output of `timerstore --debug ...`"]
    assert "Traceback" in ts("--debug", "ls", path).err
    reported = json.loads(ts("ls", path, "--json").err)
    assert (reported["error"], reported["exit"]) == (type(error).__name__, 2)


def test_put_lines_counts_what_is_stored_when_the_disk_is_full(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ts.init()
    ts.fine("put", path, "orders", "before")
    given = ts.folder / "lines"
    given.write_bytes(b"x" * 2000 + b"\n" + b"".join(b"y" * 2000 + b"\n" for _ in range(1000)))
    real = Disk.open

    def no_new_segments(disk: Disk, where: Path, *args: Any, **named: Any) -> Any:
        if where.parent.name == "commitlog" and not where.exists():
            raise FullError("no space", where=where)
        return real(disk, where, *args, **named)

    with monkeypatch.context() as full, given.open() as lines:
        full.setattr(Disk, "open", no_new_segments)
        full.setattr("sys.stdin", lines)
        answer = ts("put", path, "orders", "--lines", "--json")
    assert answer.code == Exit.LATER
    assert 0 < answer.row["put"] < 1001
    stored = ts.fine("get", path, "orders", "-n", "2000", "--body").out.splitlines()
    assert len(stored) == 1 + answer.row["put"]
