"""Commands `dump` and `export`: tables of a store."""

import json
import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.command_line import COMMAND, SMALL, Answer, CommandLine, in_shell
from tests.support.inside import export_sync
from timerstore import shards
from timerstore.cli.exits import Exit


@pytest.mark.parametrize("name", ["pending.parquet", "pending.jsonl"])
def test_exported_messages_can_be_imported_into_another_store(ts: CommandLine, name: str) -> None:
    path, target = ts.init(), ts.folder / "other.store"
    for k in range(3):
        ts.fine(
            *("put", path, f"t{k % 2}", f"body {k}", "--in", f"{k + 1}h", "--key", f"k{k}"),
            *("--tag", "x", "--property", "a=b"),
        )
    handle = ts.fine("put", path, "t0", "gone", "--in", "1h", "--json").row["handle"]
    ts.fine("cancel", path, handle)
    ts.fine("put", path, "t0", "there already")
    ts.fine("put", path, "t0", "level", "--level", "18")
    file = ts.folder / name
    assert ts.fine("export", path, file, "--json").row["rows"] == 4
    ts.fine("init", target, *SMALL)
    first = ts.fine("import", target, file, "--json").row
    assert (first["rows"], first["is_replay"]) == (4, False)
    again = ts.fine("import", target, file, "--json").row
    assert (again["rows"], again["is_replay"]) == (4, True)
    assert ts.fine("count", target).out == "4\n"
    kept = ("topic", "body", "deliver_ms", "keys", "tags", "message_id", "properties")
    rows = [
        [{name: row[name] for name in kept} for row in ts.fine("dump", one, "pending").rows]
        for one in (path, target)
    ]
    for part in rows:
        part.sort(key=lambda row: row["message_id"])
    assert rows[0] == rows[1]
    assert ts.fine("dump", path, "pending", "--topic", "t1").rows[0]["body"] == "body 1"


def test_dump_and_export_write_each_table(ts: CommandLine) -> None:
    path = ts.init()
    ts.fine("put", path, "orders", "a", "--in", "1m")
    ts.fine("put", path, "orders", "b")
    kinds = [row["kind"] for row in ts.fine("dump", path).rows]
    assert kinds == ["timer", "ordinary"]
    assert len(ts.fine("dump", path, "-n", "1").rows) == 1
    [slot] = ts.fine("dump", path, "slots").rows
    assert slot["count"] == 1
    [timer] = ts.fine("dump", path, "timer_units", "--columns", "cancelled,rolled").rows
    assert timer == {"cancelled": False, "rolled": False}
    [timer] = ts.fine("dump", path, "timers", "--columns", "topic,size").rows
    assert timer["topic"] == "orders"
    assert ts.fine("dump", path, "timers", "--topic", "mail").rows == []
    file = ts.folder / "messages.parquet"
    assert ts.fine("export", path, file, "--table", "messages", "--json").row["rows"] == 2
    assert [one.name for one in ts.folder.iterdir() if one.name.startswith("messages")] == [
        file.name
    ]
    assert ts("export", path, ts.folder / "messages.csv").code == Exit.ERROR
    assert ts("dump", path, "slots", "--topic", "orders").code == Exit.ERROR
    assert "'slots'" in ts("dump", path, "slot").err


@pytest.mark.parametrize("name", ["w.parquet", "w.jsonl"])
def test_export_reports_a_full_disk_as_retryable(ts: CommandLine, name: str) -> None:
    path, file = ts.init(), ts.folder / name
    ts.fine("put", path, "orders", "b" * 2000, "--in", "1h")
    words = [*COMMAND, "export", str(path), str(file), "--json"]
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *words], capture_output=True, check=False
    )
    error = json.loads(done.stderr.splitlines()[-1])
    assert (done.returncode, error["do"]) == (Exit.LATER, "free space and try again")
    assert error["where"] == f"{file}.part"
    assert list(ts.folder.iterdir()) == [path]
    assert ts.fine("export", path, file, "--json").row["rows"] == 1


def test_second_export_to_the_same_file_is_rejected(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first export, which takes longer, is complete."""
    path, file = ts.init(), ts.folder / "w.jsonl"
    ts.fine("put", path, "orders", "a", "--in", "1h")
    second: list[Answer] = []
    export = export_sync()
    sync = export.value

    def export_again(part: Path) -> None:
        second.append(in_shell(["export", path, file]))
        assert part.exists()
        sync(part)

    monkeypatch.setattr(*export, export_again)
    assert ts.fine("export", path, file, "--json").row["rows"] == 1
    assert second[0].code == Exit.LATER
    assert "another export writes the same file" in second[0].err
    assert file.read_text().count("\n") == 1
    assert sorted(one.name for one in ts.folder.iterdir()) == [path.name, "w.jsonl"]
    assert in_shell(["export", path, file]).code == Exit.FINE


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
@pytest.mark.parametrize("is_read", [False, True])
def test_export_rejects_a_fifo_at_its_partial_file(
    ts: CommandLine, name: str, is_read: bool
) -> None:
    store = ts.init()
    ts.fine("put", store, "orders", "x", "--in", "1h")
    part = ts.folder / f"{name}.part"
    os.mkfifo(part)
    reader = os.open(part, os.O_RDONLY | os.O_NONBLOCK) if is_read else -1
    answer = in_shell(["export", store, ts.folder / name])
    assert answer.code == Exit.ERROR
    assert "it is not a regular file" in answer.err
    assert str(part) in answer.err
    assert part.is_fifo(), "the FIFO was removed"
    if is_read:
        os.close(reader)
    part.unlink()
    ts.fine("export", store, ts.folder / name)


def test_export_fails_while_committed_rows_are_not_ingested(ts: CommandLine) -> None:
    path, file = ts.init("--shards", "2"), ts.folder / "w.parquet"
    ts.fine("put", path, "a", "put", "--in", "1h")
    rows = {"topic": ["a"] * 9, "body": [b"x"] * 9, "deliver_ms": [2_900_000_000_000] * 9}
    part = shards.stage(path, "query", 7, "p", pa.table(rows).to_batches())
    shards.commit(path, "query", 7, [part])
    answer = ts("export", path, file)
    assert answer.code == Exit.ERROR
    assert "1 committed version was not ingested: run ingest first" in answer.err
    assert "source 'query' version 7 is not in shards [0, 1]" in answer.err
    assert not file.exists()
    ts.fine("export", path, file, "--table", "messages")  # a table of the files, as they are
    shards.ingest(path)
    assert ts.fine("export", path, file, "--json").row["rows"] == 10
