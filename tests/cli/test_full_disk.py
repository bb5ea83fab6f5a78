"""Commands on a full or failing disk: what they make can be made again, and reading works."""

import errno
import json
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import timerstore
from tests.crash import failing_calls
from tests.crash.failing_calls import TAKE_SPACE, FailingCalls
from tests.support.amounts import both
from tests.support.command_line import SMALL, Answer, CommandLine
from tests.support.inside import Disk
from timerstore.cli.exits import Exit
from timerstore.errors import FailedError

COUNT = 3


@pytest.fixture
def given(ts: CommandLine) -> Path:
    """A folder with stores, shards, backups and rows; `store` and `shards` have COUNT messages."""
    folder = ts.folder / "given"
    folder.mkdir()
    for name in ("store", "empty"):
        ts.fine("init", folder / name, *SMALL)
    for name in ("shards", "no-shards"):
        ts.fine("init", folder / name, "--shards", "2", *SMALL)
    for n in range(COUNT):
        ts.fine("put", folder / "store", "orders", f"body {n}", "--in", "1h")
        ts.fine("put", folder / "shards", "orders", f"body {n}", "--in", "1h", "--key", "k")
        if n == 0:
            ts.fine("backup", folder / "store", folder / "older")
    ts.fine("backup", folder / "store", folder / "backup")
    due_ms = round(time.time() * 1000) + 3_600_000
    rows = [{"topic": "orders", "body": f"body {n}", "deliver_at": due_ms} for n in range(COUNT)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


class Command(NamedTuple):
    """A command that makes something. A word that begins with `/` is a path in the folder."""

    text: str
    made: str
    count: int = COUNT

    def words(self, folder: Path) -> list[str]:
        """Return its words for a folder."""
        return [f"{folder}{word}" if word[0] == "/" else word for word in self.text.split()]


MAKING = (
    Command("init /new", "new", 0),
    Command("init /new --shards 2", "new", 0),
    Command("import /empty /rows.jsonl", "empty"),
    Command("import /no-shards /rows.jsonl", "no-shards"),
    Command("convert /store --to rocketmq", "store"),
    Command("restore /backup /new", "new"),
    Command("repair /store /new", "new"),
    Command("backup /store /new", "new"),
    Command("backup /store /older", "older"),
    Command("backup /shards/shard-00001 /new", "new"),
    Command("export /store /new.jsonl", "new.jsonl"),
    Command("export /shards /new.parquet", "new.parquet"),
)


def check_made(ts: CommandLine, folder: Path, command: Command) -> None:
    """Check that the result has every message, and so have the stores it was made from."""
    made = folder / command.made
    if command.text.startswith("backup"):
        ts.fine("verify", made)
        ts.fine("restore", made, folder / "restored")
        made = folder / "restored"
    if command.text.startswith("export"):
        ts.fine("import", folder / "empty", made)
        made = folder / "empty"
    for path, count in (
        (made, command.count),
        (folder / "store", COUNT),
        (folder / "shards", COUNT),
    ):
        ts.fine("verify", path)
        assert ts.fine("count", path).out == f"{count}\n"


def check_repeated(ts: CommandLine, folder: Path, command: Command, answer: Answer) -> None:
    """Check the error of a command, run it again, and check what it made."""
    if answer.code:
        assert answer.code in (Exit.LATER, Exit.ERROR)
        assert answer.err.startswith("error: ")
        assert "unexpected" not in answer.err
        if "the folder is complete" in answer.err:
            assert "a repeated command needs another folder" in answer.err
        else:
            ts.fine(*command.words(folder))
    check_made(ts, folder, command)


def failing(
    ts: CommandLine, folder: Path, command: Command, nth: int, code: int
) -> tuple[Answer, FailingCalls]:
    """Run a command whose n-th call fails, and all after it."""
    calls = FailingCalls(folder)
    with calls.installed():
        calls.fail(nth, code, once=False)
        answer = ts(*command.words(folder))
        calls.heal()
    return answer, calls


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(errno.ENOSPC, id="ENOSPC"),
        pytest.param(errno.EIO, id="EIO", marks=pytest.mark.more),
    ],
)
@pytest.mark.parametrize("command", MAKING, ids=lambda one: one.text)
@pytest.mark.parametrize("few", both("failing calls of a command"))
def test_command_can_be_repeated_after_a_failure_of_any_call(
    ts: CommandLine, given: Path, command: Command, code: int, few: int
) -> None:
    """FailingCalls does not see the writes of an export; test_exporting.py has them."""
    folder = ts.folder / "tried"
    shutil.copytree(given, folder)
    calls = FailingCalls(folder)
    with calls.installed():
        ts.fine(*command.words(folder))
    failed = 0
    step, last = calls.count // few, calls.count - few // 5
    for nth in {*range(1, calls.count, step), *range(last, calls.count)}:
        shutil.rmtree(folder)
        shutil.copytree(given, folder)
        answer, met = failing(ts, folder, command, nth, code)
        failed += answer.code != 0
        try:
            check_repeated(ts, folder, command, answer)
        except AssertionError as error:
            raise AssertionError(f"call {nth}, {met.failed[:3]}: {answer}") from error
    assert failed  # the threads of a store make other calls each time, perhaps fewer


@pytest.mark.parametrize("text", ["restore /backup /new", "repair /store /new"])
def test_folder_is_complete_when_only_the_last_sync_fails(
    ts: CommandLine, given: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, real = Command(text, "new"), Disk.sync_directory

    def sync(disk: Disk, path: Path) -> None:
        if path == given and (given / "new").exists():
            raise FailedError("sync directory: Input/output error", where=path)
        real(disk, path)

    with monkeypatch.context() as patched:
        patched.setattr(Disk, "sync_directory", sync)
        answer = ts(*command.words(given), "--json")
    error = json.loads(answer.err)
    assert answer.code == Exit.ERROR
    assert "the folder is complete, but a power cut may undo its name" in error["what"]
    assert error["do"].startswith("open the store, which makes its name durable")
    assert "wanted a new or empty folder" in ts(*command.words(given)).err
    check_made(ts, given, command)


@pytest.mark.parametrize("name", ["store", "shards"])
def test_reading_command_needs_no_space(
    ts: CommandLine, given: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No byte can be written below the folder, and no name made. So syncs have nothing to write."""
    monkeypatch.setitem(failing_calls.ONLY, errno.ENOSPC, TAKE_SPACE - {"fsync", "fdatasync"})
    path = given / name
    with timerstore.open_shards(path) if name == "shards" else timerstore.open(path) as store:
        first = next(store.pending())
    calls = FailingCalls(given)
    with calls.installed():
        calls.fail(1, errno.ENOSPC, once=False)
        assert ts.fine("count", path).out == f"{COUNT}\n"
        assert ts.fine("count", path, "--from", "now").out == f"{COUNT}\n"
        [topic] = ts.fine("ls", path, "--json").rows
        assert (topic["topic"], topic["pending"]) == ("orders", COUNT)
        ts.fine("verify", path)
        found = ts.fine("histogram", path, "--json").rows
        assert sum(row["count"] for row in found) == COUNT
        for words in ([first.handle], [first.message_id, "--topic", "orders"]):
            assert ts.fine("explain", path, *words, "--json").row["state"] == "pending"
        assert ts("put", path, "orders", "x").code == Exit.LATER
    assert ts.fine("count", path, "--from", "now").out == f"{COUNT}\n"


@pytest.mark.parametrize("name", ["store", "shards", "read-only"])
def test_reading_call_needs_no_space(given: Path, name: str) -> None:
    def opened() -> Any:
        if name == "shards":
            return timerstore.open_shards(given / "shards", threads=False)
        return timerstore.open(given / "store", threads=False, read_only=name == "read-only")

    calls = FailingCalls(given)
    with calls.installed(), opened() as store:
        calls.fail(1, errno.ENOSPC, once=False)
        found = list(store.pending())
        assert len(found) == COUNT
        assert store.histogram().counts.sum() == COUNT
        assert store.explain(found[0].handle).state == "pending"
        assert store.explain(found[0]).state == "pending"
        assert store.topics()["orders"]
        assert store.stats()["pending_messages"] == COUNT
        reports = store.verify() if name == "shards" else [store.verify()]
        assert all(report.clean for report in reports)
        assert not calls.failed
        calls.heal()
