"""Each command, by what it answers and by its exit code."""

import errno
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import timerstore
from tests.support import broker_fixtures
from tests.support.command_line import COMMAND, SMALL, Answer, CommandLine, in_shell
from timerstore import shards
from timerstore.cli import main, tables
from timerstore.cli.command import COMMANDS
from timerstore.cli.exits import TABLE, Exit
from timerstore.errors import FullError
from timerstore.files.disk import Disk
from timerstore.store import TimerStore


def test_the_first_five_minutes(ts: CommandLine) -> None:
    path = ts.init()
    put = ts.fine("put", path, "orders", "hello", "--in", "100ms", "--key", "4711").out
    assert re.search(r"^put \w{32}: due .*\n  handle \S+$", put)
    assert ts.fine("count", path).out == "1\n"
    followed = ts.fine("follow", path, "orders", "-n", "1")
    assert followed.out.rstrip().endswith("key=4711  hello")
    assert ts.fine("count", path).out == "0\n"
    assert ts.fine("get", path, "orders", "--body").out == "hello\n"
    assert ts.fine("ls", path).out.splitlines()[1].split() == ["orders", "1", "0", "1"]
    assert ts.fine("verify", path).out.startswith(f"{path}: clean\n")


def test_json_says_what_text_says(ts: CommandLine) -> None:
    path = ts.init("--json")
    put = ts.fine(
        *("put", path, "orders", "hi", "--in", "1h", "--key", "a", "--key", "b"),
        *("--tag", "paid", "--property", "region=eu", "--id", "order-1", "--json"),
    ).row
    assert put["message_id"] == "order-1"
    assert put["queue_offset"] is None
    again = ts.fine(
        "put", path, "orders", "hi", "--in", "1h", "--key", "a", "--id", "order-1", "--json"
    )
    assert again.row["duplicate"]
    [found] = ts.fine("get", path, "orders", "--key", "b", "--json").rows
    assert found["handle"] == put["handle"]
    assert (found["tags"], found["properties"]) == ("paid", {"region": "eu"})
    assert found["delivered_ms"] is None
    assert found["due_ms"] == put["due_ms"]
    [listed] = ts.fine("ls", path, "--json").rows
    assert listed == {"topic": "orders", "queues": 1, "waiting": 1, "arrived": 0}
    assert ts.fine("count", path, "--topic", "orders", "--json").row["waiting"] == 1


def test_cancel_and_move(ts: CommandLine) -> None:
    path = ts.init()
    first, second = (
        ts.fine("put", path, "orders", body, "--in", "1h", "--key", "k", "--json").row["handle"]
        for body in ("one", "two")
    )
    moved = ts.fine("move", path, first, "--in", "2h", "--json").row
    assert moved["result"] == "MOVED"
    assert moved["handle"] != first
    assert ts("move", path, first, "--in", "2h").out.startswith("ALREADY_CANCELLED ")
    assert ts("move", path, first, "--in", "2h").code == Exit.NOT_SO
    assert ts.fine("count", path, "--until", "2000-01-01T00:00Z").out == "0\n"
    assert ts.fine("count", path, "--from", "2000-01-01T00:00Z").out == "2\n"
    assert ts.fine("cancel", path, second).out == f"CANCELLED {second}\n"
    assert ts.fine("cancel", path, second).out == f"ALREADY_CANCELLED {second}\n"
    assert ts.fine("cancel", path, "--topic", "orders", "--key", "k").out.startswith("CANCELLED ")
    nothing = ts("cancel", path, "--topic", "orders", "--key", "k")
    assert (nothing.code, nothing.out) == (Exit.NOT_SO, "")
    assert "nothing waits for topic 'orders' with the key 'k'" in nothing.err
    assert ts.fine("count", path).out == "0\n"
    wrong = ts("cancel", path, "nonsense")
    assert wrong.code == Exit.ERROR
    assert "  do     give the handle as `put` told it" in wrong.err


def test_a_message_of_a_level_has_no_handle_and_says_so(ts: CommandLine) -> None:
    path = ts.init()
    assert (
        ts.fine("put", path, "orders", "x", "--level", "5", "--key", "k", "--json").row["handle"]
        == ""
    )
    refused = ts("cancel", path, "--topic", "orders", "--key", "k")
    assert refused.code == Exit.NOT_SO
    assert "fixed level" in refused.err


def test_spread(ts: CommandLine) -> None:
    path = ts.init()
    for _ in range(5):
        ts.fine("put", path, "mail", "x", "--at", "2030-01-01T00:00Z", "--spread", "1h")
    due = [row["deliver_ms"] - 1_893_456_000_000 for row in ts.fine("dump", path, "waiting").rows]
    assert len(set(due)) > 1
    assert all(0 <= one <= 3_600_000 for one in due)


def test_replace(ts: CommandLine) -> None:
    path = ts.init()
    for body in ("first", "second"):
        ts.fine(
            "put", path, "mail", body, "--in", "1h", "--key", "u7", "--replace", "--at-most", "2h"
        )
    assert ts.fine("count", path).out == "1\n"
    assert ts.fine("get", path, "mail", "--key", "u7", "--json").rows[-1]["body"] == "second"
    assert "wanted one --key" in ts("put", path, "mail", "x", "--replace").err
    assert "only with --replace" in ts("put", path, "mail", "x", "--at-most", "1s").err


def test_histogram(ts: CommandLine) -> None:
    path = ts.init()
    due = [
        "2030-01-01T00:00Z",
        "2030-01-01T00:59:59.999Z",
        "2030-01-01T03:00Z",
        "2030-01-02T00:00Z",
    ]
    for k, at in enumerate(due):
        ts.fine("put", path, f"t{k % 2}", "x", "--at", at)
    ts.fine("put", path, "t0", "level", "--level", "18")
    words = ("histogram", path, "--from", "2030-01-01T00:00Z", "--until", "2030-01-02T00:00Z")
    rows = ts.fine(*words, "--json").rows
    assert [row["count"] for row in rows] == [2, 0, 0, 1] + [0] * 20
    assert rows[0]["begin"] == "2030-01-01T00:00:00.000Z"
    assert [row["count"] for row in ts.fine(*words, "--topic", "t1", "--json").rows][:2] == [1, 0]
    by_day = ts.fine(*words, "--by", "day")
    assert re.search(r" 3  █{40}$", by_day.out.splitlines()[1])
    assert by_day.err.startswith("3 messages from ")
    assert len(ts.fine(*words, "--by", "second").out.splitlines()) == 1 + 3
    today = ts.fine("histogram", path, "--json").rows
    assert sum(row["count"] for row in today) == 1
    with timerstore.open(path):
        for more in ((), ("--topic", "t1"), ("--by", "day")):
            beside = ts.fine(*words, *more, "--json").rows
            assert sum(row["count"] for row in beside) == (1 if "t1" in more else 3)
        assert ts.fine(*words, "--json").rows == rows
        beside = ts.fine("histogram", path, "--json").rows
        assert sum(row["count"] for row in beside) == 1
        assert ts("explain", path, "x", "--topic", "t0").code == Exit.LOCKED


def test_explain(ts: CommandLine) -> None:
    path = ts.init()
    put = ts.fine("put", path, "orders", "x", "--in", "1m", "--json").row
    told = ts.fine("explain", path, put["handle"])
    assert told.out.startswith(f"{put['message_id']} of orders: waiting\n  why ")
    assert re.search(
        r"^  slot +[\d,]+, read at .*; place 1 of 1 in its chain$", told.out, re.MULTILINE
    )
    assert re.search(r"^  put +\d{4}-.*, log offset 0$", told.out, re.MULTILINE)
    ts.fine("cancel", path, put["handle"])
    row = ts.fine("explain", path, put["message_id"], "--topic", "orders", "--json").row
    assert row["state"] == "cancelled"
    assert [one["what"] for one in row["history"]] == ["put", "cancelled"]
    now = ts.fine("put", path, "orders", "now", "--json").row["message_id"]
    assert (
        "  where    queue 0, offset 0\n" in ts.fine("explain", path, now, "--topic", "orders").out
    )
    nobody = ts("explain", path, "nobody", "--topic", "orders")
    assert nobody.code == Exit.NOT_SO
    assert "unknown" in nobody.out
    assert "or a message id and --topic" in ts("explain", path, "nobody").err


def test_groups_commit_what_they_were_given(ts: CommandLine) -> None:
    path = ts.init()
    for body in "abc":
        ts.fine("put", path, "orders", body)
    assert ts.fine("get", path, "orders", "--group", "billing", "-n", "2", "--body").out == "a\nb\n"
    assert ts.fine("follow", path, "orders", "--group", "billing", "-n", "1", "--body").out == "c\n"
    assert ts("get", path, "orders", "--group", "billing").code == Exit.NOT_SO
    assert ts("get", path, "orders", "--group", "billing", "--wait", "20ms").code == Exit.NOT_SO
    [row] = ts.fine("ls", path, "--groups", "--json").rows
    assert row == {"topic": "orders", "group": "billing", "queue": 0, "committed": 3, "behind": 0}


def test_follow_without_a_group_leaves_no_trace(ts: CommandLine) -> None:
    path = ts.init()
    ts.fine("put", path, "orders", "a")
    assert ts.fine("follow", path, "orders", "--for", "10ms").out == ""
    assert ts.fine("follow", path, "orders", "--all", "-n", "1", "--body").out == "a\n"
    began = ts.fine("follow", path, "orders", "--from", "2000-01-01T00:00Z", "-n", "1", "--json")
    assert began.row["body"] == "a"
    assert ts.fine("ls", path, "--groups").out == ""


def test_filters(ts: CommandLine) -> None:
    path = ts.init()
    ts.fine("put", path, "orders", "a", "--tag", "paid", "--property", "amount=7")
    ts.fine("put", path, "orders", "b", "--tag", "late")
    assert ts.fine("get", path, "orders", "--tag", "late || x", "--body").out == "b\n"
    assert ts.fine("get", path, "orders", "--sql", "amount > 5", "--body").out == "a\n"
    assert ts.fine("get", path, "orders", "--offset", "1", "--body").out == "b\n"
    assert ts("get", path, "orders", "--sql", "amount >").code == Exit.ERROR
    assert ts("get", path, "orders", "--queue", "7").code == Exit.ERROR


def test_what_a_message_holds_steers_no_terminal(ts: CommandLine) -> None:
    path = ts.init()
    ts.fine("put", path, "orders", "a\x1b[2Jb\u202ec\nd")
    line = ts.fine("get", path, "orders").out
    assert line.endswith("  a\\x1b[2Jb\\x202ec\\nd\n")
    assert ts.fine("get", path, "orders", "--json").row["body"] == "a\x1b[2Jb\u202ec\nd"


# --- beside another process -----------------------------------------------------------------------


def test_beside_a_process_that_has_it_open(ts: CommandLine) -> None:
    path = ts.init()
    with timerstore.open(path) as store:
        handle = store.put("orders", b"later", delay=3600, keys="k").handle
        store.put_every("jobs", b"x", every=3600, name="beat")
        store.put("orders", b"now", tags="t")
        store.flush()
        pid = os.getpid()
        assert f"open in process {pid}" in ts.fine("ls", path).err
        assert ts.fine("count", path, "--json").row == {"waiting": 2, "open_in": pid}
        assert ts.fine("every", path, "--json").row["name"] == "beat"
        assert ts.fine("get", path, "orders", "--body").out == "now\n"
        assert ts("get", path, "orders", "--tag", "u").code == Exit.NOT_SO
        followed = ts.fine("follow", path, "orders", "--all", "-n", "1", "--json")
        assert followed.row["body"] == "now"
        assert "reading beside it" in followed.err
        assert ts.fine("verify", path).code == 0
        assert ts.fine("top", path, "--once", "--json").row["stores"][0]["open_in"] == pid
        for refused in (
            ("put", path, "orders", "x"),
            ("cancel", path, handle),
            ("get", path, "orders", "--group", "g"),
            ("get", path, "orders", "--key", "k"),
            ("backup", path, ts.folder / "b"),
            ("count", path, "--until", "now"),
            ("receive", path, "orders", "--group", "g"),
            ("ack", path, "r"),
            ("nack", path, "r"),
            ("extend", path, "r"),
            ("pace", path, "orders=1"),
            ("every", path, "orders", "x", "--every", "1m"),
            ("every", path, "--cancel", "beat"),
        ):
            answer = ts(*refused)
            assert (answer.code, answer.out) == (Exit.LOCKED, ""), refused
            assert "beside it run: ls, count, get" in answer.err
        assert store.cancel(handle) == "CANCELLED"


def test_of_another_process_the_pid_is_told(ts: CommandLine) -> None:
    path = ts.init()
    program = (
        "import sys, timerstore\n"
        f"with timerstore.open({str(path)!r}):\n    print('open', flush=True)\n    sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        answer = ts("put", path, "orders", "x", "--json")
        assert answer.code == Exit.LOCKED
        told = json.loads(answer.err)
        assert told["error"] == "LockedError"
        assert told["got"] == f"process {other.pid}"
        assert told["exit"] == 3
        assert ts.fine("count", path, "--json").row["open_in"] == other.pid
        other.communicate()
    ts.fine("put", path, "orders", "x")


def test_a_brokers_store_is_read_and_left_as_it_is(ts: CommandLine) -> None:
    path = broker_fixtures.unpack("clean-small-segments", ts.folder / "broker")
    before = {one: one.read_bytes() for one in path.rglob("*") if one.is_file()}
    waiting = len(ts.fine("dump", path, "waiting").rows)
    assert waiting > 100
    assert ts.fine("count", path, "--json").row == {"waiting": waiting, "open_in": None}
    listed = ts.fine("ls", path, "--json").rows
    assert sum(row["waiting"] for row in listed) == waiting
    assert {row["arrived"] for row in listed} == {None}
    topic = next(row["topic"] for row in ts.fine("dump", path, "deliveries").rows)
    got = ts.fine("get", path, topic, "--json")
    assert "a broker wrote it" in got.err
    assert all(row["topic"] == topic for row in got.rows)
    assert ts.fine("follow", path, topic, "--all", "-n", "3", "--json").rows == got.rows[:3]
    pulse = ts.fine("top", path, "--once", "--json").row
    assert pulse["waiting"] is None
    assert ts.fine("verify", path).code == 0
    assert {one: one.read_bytes() for one in path.rglob("*") if one.is_file()} == before


# --- tables, files --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["waiting.parquet", "waiting.jsonl"])
def test_what_waits_goes_into_another_store(ts: CommandLine, name: str) -> None:
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
        [{name: row[name] for name in kept} for row in ts.fine("dump", one, "waiting").rows]
        for one in (path, target)
    ]
    for part in rows:
        part.sort(key=lambda row: row["message_id"])
    assert rows[0] == rows[1]
    assert ts.fine("dump", path, "waiting", "--topic", "t1").rows[0]["body"] == "body 1"


def test_tables(ts: CommandLine) -> None:
    path = ts.init()
    ts.fine("put", path, "orders", "a", "--in", "1m")
    ts.fine("put", path, "orders", "b")
    kinds = [row["kind"] for row in ts.fine("dump", path).rows]
    assert kinds == ["timer", "ordinary"]
    assert len(ts.fine("dump", path, "-n", "1").rows) == 1
    [slot] = ts.fine("dump", path, "slots").rows
    assert slot["count"] == 1
    [timer] = ts.fine("dump", path, "timers", "--columns", "cancelled,rolled").rows
    assert timer == {"cancelled": False, "rolled": False}
    file = ts.folder / "messages.parquet"
    assert ts.fine("export", path, file, "--table", "messages", "--json").row["rows"] == 2
    assert [one.name for one in ts.folder.iterdir() if one.name.startswith("messages")] == [
        file.name
    ]
    assert ts("export", path, ts.folder / "messages.csv").code == Exit.ERROR
    assert ts("dump", path, "slots", "--topic", "orders").code == Exit.ERROR
    assert "'slots'" in ts("dump", path, "slot").err


def test_import_names_the_line(ts: CommandLine) -> None:
    path, file = ts.init(), ts.folder / "rows.jsonl"
    for line, text in (
        ('{"topic": "a", "body": "x", "delivr_at": 1}', "delivr_at: not known; known are body"),
        ('{"topic": "a"}', "body: there is none"),
        (
            '{"topic": "a", "body": "x", "deliver_at": "2026-01-01T00:00"}',
            "wanted a time with its zone",
        ),
        ('{"topic": "a", "body": "x", "body_base64": "eA=="}', "wanted one of the two"),
        (
            '{"topic": "a", "body": "x", "deliver_at": 123456789012345678901234567890}',
            "deliver_at: wanted a time, or epoch ms",
        ),
        (
            '{"topic": "a", "body": "x", "deliver_ms": -9223372036854775809}',
            "deliver_ms: wanted a time, or epoch ms",
        ),
        ('{"topic": "a", "body": "x", "keys": 5}', "no message"),
        ('{"topic": "a", "body": "x", "keys": ["k", 5]}', "no message"),
        ('{"topic": "a", "body": "x", "tags": "\\ud800"}', "no message"),
        ('{"topic": "a", "body": "x", "properties": {"a": "\\ud800"}}', "no message"),
        ("[" * 200_000, "no message: nested too deep"),
        ("[]", "wanted an object, got list"),
        ("{", "no message"),
    ):
        file.write_text('{"topic": "a", "body": "x"}\n' + line + "\n")
        answer = ts("import", path, file)
        assert answer.code == Exit.ERROR
        assert text in answer.err
        assert f"{file} line 2" in answer.err
    assert ts.fine("count", path).out == "0\n"


def test_import_refuses_or_leaves_out_rows_that_are_wrong(ts: CommandLine) -> None:
    path, file = ts.init(), ts.folder / "rows.jsonl"
    rows = [
        {"topic": topic, "body": "x", "deliver_at": "2100-01-01T00:00Z"}
        for topic in ("a", "!", "b")
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = ("-c", "delay_ms_max=31_000_000_000_000")
    refused = ts("import", path, file, *config)
    assert refused.code == Exit.ERROR
    assert "row 2: topic" in refused.err
    assert ts.fine("count", path).out == "0\n"
    taken = ts.fine("import", path, file, "--on-invalid", "skip", *config)
    assert "1 row left out, the first: row 2: topic" in taken.err
    assert ts.fine("count", path).out == "2\n"


def test_backup_and_restore(ts: CommandLine) -> None:
    path, backup, again = ts.init(), ts.folder / "b", ts.folder / "again.store"
    ts.fine("put", path, "orders", "a", "--in", "1h")
    assert ts.fine("backup", path, backup, "--json").row["segment_count"] == 1
    assert ts.fine("verify", backup).out.startswith(f"{backup}: clean")
    ts.fine("restore", backup, again)
    assert ts("get", again, "orders").code == Exit.NOT_SO  # opens it: counts are made then
    assert ts.fine("count", again).out == "1\n"
    assert ts("restore", backup, again).code == Exit.ERROR
    assert "wanted a backup" in ts("restore", path, ts.folder / "x").err


def test_damage_is_named_and_repaired(ts: CommandLine) -> None:
    path, target = ts.init(), ts.folder / "repaired.store"
    for k in range(3):
        ts.fine("put", path, "orders", f"body {k}")
    log = path / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    at = data.index(b"body 1")
    data[at] ^= 1
    log.write_bytes(data)
    found = ts("verify", path, "--json")
    assert found.code == Exit.NOT_SO
    assert not found.row["clean"]
    assert str(log) in found.row["problems"][0]["where"]
    assert ts("get", path, "orders").code == Exit.NOT_SO
    assert "timerstore repair" in ts("get", path, "orders").err
    repaired = ts("repair", path, target)
    assert repaired.code == Exit.NOT_SO, "something was lost"
    bodies = ts.fine("get", target, "orders", "--body").out.splitlines()
    assert [one for one in bodies if one] == ["body 0", "body 2"]


# --- shards ---------------------------------------------------------------------------------------


def test_shards(ts: CommandLine) -> None:
    path = ts.init("--shards", "2")
    handles = [
        ts.fine("put", path, "orders", f"b{k}", "--in", "1h", "--key", key, "--json").row["handle"]
        for k, key in enumerate("adbe")  # two go to either of two shards
    ]
    ts.fine("put", path, "orders", "now", "--key", "a")
    rows = ts.fine("ls", path, "--json").rows
    assert sum(row["waiting"] for row in rows) == 4
    assert {row["shard"] for row in rows} == {0, 1}
    assert ts.fine("count", path).out == "4\n"
    ts.fine("cancel", path, handles[0])
    ts.fine("move", path, handles[1], "--at", "2030-01-01T00:00+01:00")
    assert ts.fine("get", path, "orders", "--json").row["body"] == "now"
    assert ts.fine("follow", path, "orders", "--all", "-n", "1", "--json").row["body"] == "now"
    file = ts.folder / "w.parquet"
    assert ts.fine("export", path, file, "--json").row["rows"] == 3
    other = ts.folder / "other.shards"
    ts.fine("init", other, "--shards", "3", *SMALL)
    ts.fine("import", other, file)
    assert ts.fine("count", other).out == "3\n"
    assert ts.fine("verify", path).out.count("clean") == 2
    assert ts.fine("top", path, "--once", "--json").row["waiting"] == 3
    assert ts.fine("explain", path, handles[1]).code == 0
    rows = ts.fine("histogram", path, "--until", "2031-01-01T00:00Z", "--by", "day", "--json").rows
    assert sum(row["count"] for row in rows) == 3
    alone = ts("backup", path, ts.folder / "b")
    [shard] = re.findall(r"each shard by itself, as (\S+)", alone.err)
    assert ts.fine("backup", shard, ts.folder / "b", "--json").row["segment_count"] == 1


@pytest.mark.parametrize("name", ["w.parquet", "w.jsonl"])
def test_an_export_that_finds_no_room_says_where_and_may_be_tried_again(
    ts: CommandLine, name: str
) -> None:
    path, file = ts.init(), ts.folder / name
    ts.fine("put", path, "orders", "b" * 2000, "--in", "1h")
    words = [*COMMAND, "export", str(path), str(file), "--json"]
    said = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *words], capture_output=True, check=False
    )
    error = json.loads(said.stderr.splitlines()[-1])
    assert (said.returncode, error["do"]) == (Exit.LATER, "make space and try again")
    assert error["where"] == f"{file}.part"
    assert list(ts.folder.iterdir()) == [path]


def test_two_exports_into_one_file_do_not_mix(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a job that takes longer than its hour: the second is refused, the first is whole."""
    path, file = ts.init(), ts.folder / "w.jsonl"
    ts.fine("put", path, "orders", "a", "--in", "1h")
    said: list[Answer] = []
    sync = tables._sync

    def meanwhile(part: Path) -> None:
        said.append(in_shell(["export", path, file]))
        assert part.exists()
        sync(part)

    monkeypatch.setattr(tables, "_sync", meanwhile)
    assert ts.fine("export", path, file, "--json").row["rows"] == 1
    assert said[0].code == Exit.LATER
    assert "another export writes the same file" in said[0].err
    assert file.read_text().count("\n") == 1
    assert sorted(one.name for one in ts.folder.iterdir()) == [path.name, "w.jsonl"]
    assert in_shell(["export", path, file]).code == Exit.FINE


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
@pytest.mark.parametrize("is_read", [False, True])
def test_an_export_does_not_wait_for_a_fifo_beside_its_target(
    ts: CommandLine, name: str, is_read: bool
) -> None:
    store = ts.init()
    ts.fine("put", store, "orders", "x", "--in", "1h")
    part = ts.folder / f"{name}.part"
    os.mkfifo(part)
    reader = os.open(part, os.O_RDONLY | os.O_NONBLOCK) if is_read else -1
    refused = in_shell(["export", store, ts.folder / name])
    assert refused.code == Exit.ERROR
    assert "something else stands" in refused.err
    assert str(part) in refused.err
    assert part.is_fifo(), "it is somebody's"
    if is_read:
        os.close(reader)
    part.unlink()
    ts.fine("export", store, ts.folder / name)


def test_export_leaves_nothing_out_that_is_committed(ts: CommandLine) -> None:
    path, file = ts.init("--shards", "2"), ts.folder / "w.parquet"
    ts.fine("put", path, "a", "put", "--in", "1h")
    rows = {"topic": ["a"] * 9, "body": [b"x"] * 9, "deliver_ms": [2_900_000_000_000] * 9}
    part = shards.stage(path, "query", 7, "p", pa.table(rows).to_batches())
    shards.commit(path, "query", 7, [part])
    refused = ts("export", path, file)
    assert refused.code == Exit.ERROR
    assert "1 committed version was not taken in: run ingest first" in refused.err
    assert "source 'query' version 7 is not in shards [0, 1]" in refused.err
    assert not file.exists()
    ts.fine("export", path, file, "--table", "messages")  # a table of the files, as they are
    shards.ingest(path)
    assert ts.fine("export", path, file, "--json").row["rows"] == 10


@pytest.mark.parametrize("kind", [(), ("--shards", "2")], ids=["store", "shards"])
def test_other_rows_under_a_used_run_id_are_refused(ts: CommandLine, kind: tuple[str, ...]) -> None:
    path, file = ts.init(*kind), ts.folder / "rows.jsonl"
    for rows, code in ((["one"], 0), (["two", "three"], Exit.ERROR), (["one"], 0)):
        file.write_text("".join(f'{{"topic": "a", "body": "{body}"}}\n' for body in rows))
        answer = ts("import", path, file, "--run-id", "daily")
        assert answer.code == code, answer
        assert ("other rows" in answer.err) == (code != 0)
    assert "1 row were there already" in answer.out
    assert [row["body"] for row in ts.fine("dump", path, "--topic", "a").rows] == ["one"]


def test_a_run_id_into_shards_is_no_nameless_writes(ts: CommandLine) -> None:
    path, file = ts.init("--shards", "2"), ts.folder / "rows.jsonl"
    file.write_text('{"topic": "a", "body": "x"}\n')
    run_id = "batch-0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"
    answer = ts("import", path, file, "--run-id", run_id)
    assert answer.code == Exit.ERROR
    assert "--run-id: wanted another form" in answer.err
    ts.fine("import", path, file, "--run-id", "batch-june")


@pytest.mark.parametrize("kind", [(), ("--shards", "2")], ids=["store", "shards"])
def test_import_tells_what_it_left_out(ts: CommandLine, kind: tuple[str, ...]) -> None:
    path, file = ts.init(*kind), ts.folder / "rows.parquet"
    topics = ["a"] * 9000 + ["!", "b", "?"]  # the first wrong one in the second batch
    rows = pa.table({"topic": topics, "body": [b"x"] * len(topics)})
    pq.write_table(rows, file)
    for words in ((), ("--json",)):
        told = ts.fine("import", path, file, "--on-invalid", "skip", *words)
        if words:
            assert (told.row["rows"], told.row["skipped"]) == (9001, 2)
            assert told.row["first_skipped"].startswith("row 9,001: topic")
        else:
            assert "2 rows left out, the first: row 9,001: topic" in told.err


@pytest.mark.parametrize("kind", [(), ("--shards", "2")], ids=["store", "shards"])
def test_import_gives_parquet_rows_the_topic_that_they_have_not(
    ts: CommandLine, kind: tuple[str, ...]
) -> None:
    path, file = ts.init(*kind), ts.folder / "rows.parquet"
    pq.write_table(pa.table({"body": [b"1", b"2"]}), file)
    assert "wanted a column topic" in ts("import", path, file).err
    assert ts.fine("import", path, file, "--topic", "given", "--json").row["rows"] == 2
    pq.write_table(pa.table({"topic": ["own"], "body": [b"3"]}), file)
    ts.fine("import", path, file, "--topic", "given")
    for topic, bodies in (("given", ["1", "2"]), ("own", ["3"])):
        found = ts.fine("dump", path, "--topic", topic).rows
        assert sorted(row["body"] for row in found) == bodies


def test_verify_goes_on_past_a_shard_that_does_not_read(ts: CommandLine) -> None:
    path = ts.init("--shards", "4")
    for k in range(8):
        ts.fine("put", path, "orders", f"b{k}", "--key", f"k{k}")
    shards = [path / f"shard-{k:05d}" for k in range(4)]
    shards[1].rename(ts.folder / "lost")
    log = shards[2] / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.seek(60)
        file.write(b"\xff")
    answer = ts("verify", path)
    assert answer.code == Exit.ERROR, "the worst of them"
    told = re.findall(r"(?m)^\S+(shard-\d+): (clean|\d+ problem)", answer.out)
    assert [(name[-1], what[:5]) for name, what in told] == [
        ("0", "clean"),
        ("2", "1 pro"),
        ("3", "clean"),
    ]
    assert answer.err.count("error: ") == 1
    assert str(shards[1]) in answer.err
    lines = ts("verify", path, "--json")
    assert [row["clean"] for row in lines.rows] == [True, False, True]
    assert json.loads(lines.err)["where"] == str(shards[1])
    (ts.folder / "lost").rename(shards[1])
    assert ts("verify", path).code == Exit.NOT_SO


# --- errors that teach ----------------------------------------------------------------------------


def test_where_there_is_no_store_every_command_says_what_to_do(ts: CommandLine) -> None:
    nowhere, file = ts.folder / "nowhere", ts.folder / "file"
    file.write_text("x")
    more = {
        "put": ["t", "x"],
        "get": ["t"],
        "follow": ["t"],
        "cancel": ["h"],
        "move": ["h", "--in", "1s"],
        "repair": [ts.folder / "new"],
        "export": [ts.folder / "x.parquet"],
        "explain": ["x", "--topic", "t"],
        "receive": ["t", "--group", "g"],
        "ack": ["r"],
        "nack": ["r"],
        "extend": ["r"],
        "pace": ["t=1"],
        "import": [file],
        "backup": [ts.folder / "b"],
        "restore": [ts.folder / "r"],
        "serve": ["--ui"],
        "convert": ["--to", "rocketmq"],
    }
    for name in COMMANDS.keys() - {"init", "bench", "demo"}:
        answer = ts(name, nowhere, *more.get(name, []))
        assert (answer.code, answer.out) == (Exit.ERROR, ""), name
        assert answer.err.startswith("error: no store there\n"), name
        assert f"timerstore init {nowhere}" in answer.err, name
        assert not nowhere.exists(), name
        assert "got    a file" in ts(name, file, *more.get(name, [])).err, name


def _link(path: Path) -> None:
    path.symlink_to("away")


def test_what_stays_as_it_is_is_not_tried_again(ts: CommandLine) -> None:
    """Opening it once more finds the same."""
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


def test_what_may_pass_is_tried_again(ts: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = ts.init()
    monkeypatch.setattr(os, "pwrite", failing)
    answer = ts("put", path, "t", "x")
    monkeypatch.undo()
    assert answer.code == Exit.ERROR
    assert "(EIO)" in answer.err
    assert "try again: opening reads what is on the disk" in answer.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["put", "t", "x", "--in", "soon"], "wanted a span as 250ms, 90s, 30m"),
        (["put", "t", "x", "--at", "noon"], "wanted a time as 2026-12-24T18:00+01:00"),
        (["put", "t", "x", "--in", "1s", "--at", "now"], "one of --in and --at"),
        (["put", "t", "x", "--in", "41w", "--level", "2"], "wanted one of"),
        (["put", "t", "x", "--in", "9999w"], "delay: wanted at most"),
        (["put", "t", "x", "--level", "0"], "level: wanted a whole number from 1 on"),
        (["put", "a/b", "x"], "topic"),
        (["put", "t", "x", "--property", "TAGS=x"], "TAGS"),
        (["put", "t", "x", "-c", "flsh=async"], "did you mean flush?"),
        (["put", "t", "x", "-c", "flush=never"], "flush: wanted 'sync' or 'async', got 'never'"),
        (["put", "t", "x", "-c", "wheel_slot_count=many"], "wanted a whole number, got 'many'"),
        (["put", "t", "x", "-c", "wheel_slot_count=64"], "wheel_slot_count"),
        (["put", "t", "x", "--lines"], "--lines: each line is a message"),
        (["cancel"], "wanted handles"),
        (["cancel", "--key", "k"], "--topic and --key go together"),
        (["move", "h"], "wanted --in or --at"),
        (["get", "t", "--max", "0"], "0 is not in the range"),
        (["top"], "top --once"),
        (["receive", "t"], "Missing option '--group'"),
        (["receive", "t", "--group", "g", "--lease", "soon"], "wanted a span as 250ms"),
        (["receive", "t", "--group", "g", "--lease", "0s"], "lease: wanted more than 0"),
        (["receive", "t", "--group", "a|b"], "group: wanted no |"),
        (["receive", "t", "--group", "g", "-n", "10001"], "10001 is not in the range"),
        (["ack"], "Missing argument 'RECEIPTS...'"),
        (["ack", "nonsense"], "give the receipt as `receive` told it"),
        (["nack", "nonsense"], "give the receipt as `receive` told it"),
        (["extend", "nonsense"], "give the receipt as `receive` told it"),
        (["pace"], "Missing argument 'TOPIC=RATE...'"),
        (["pace", "t"], "topic_rates: wanted topic=messages a second"),
        (["pace", "t=0"], "topic_rates: wanted 0.001 to 1000000, got t=0.0"),
        (["pace", "t=1", "t=2"], "topic_rates: wanted each topic once"),
        (["every", "t", "x"], "time: wanted one of --every and --cron"),
        (["every", "t", "x", "--every", "1s", "--cron", "* * * * *"], "one of --every and --cron"),
        (["every", "t", "x", "--every", "10ms"], "every: wanted at least 1000 ms"),
        (["every", "t", "x", "--cron", "often"], "cron: wanted minute hour day month weekday"),
        (["every", "t", "x", "--every", "1m", "--name", "a b"], "name: wanted 1 to 64"),
        (["every", "--name", "beat"], "wanted TOPIC and BODY"),
        (["every", "t", "--cancel", "beat"], "--cancel: ends what recurs"),
        (["every", "--missed", "some"], "'some' is not one of"),
    ],
)
def test_wrong_arguments_say_what_was_wanted(ts: CommandLine, words: list[str], text: str) -> None:
    path = ts.init()
    answer = ts(words[0], path, *words[1:])
    assert (answer.code, answer.out) == (Exit.ERROR, "")
    assert text in answer.err
    assert ts.fine("count", path).out == "0\n"


def test_sizes_of_init_stay(ts: CommandLine) -> None:
    path = ts.init()
    ts.fine("put", path, "orders", "a", "--in", "1s")
    for folder, size in (("commitlog", 1 << 20), ("timerlog", 1 << 16)):
        [file] = (path / folder).iterdir()
        assert file.stat().st_size == size
    assert (path / "timerwheel").stat().st_size == 2048 * 32
    told = ts("put", path, "orders", "a", "-c", "commit_log_segment_bytes=2097152")
    assert "configured 2097152, but" in told.err


def test_a_taken_folder_is_left_alone(ts: CommandLine) -> None:
    path = ts.init()
    assert "there is one already" in ts("init", path).err
    full = ts.folder / "full"
    full.mkdir()
    (full / "letter").write_text("dear")
    assert ts("init", full).code == Exit.ERROR
    assert [one.name for one in full.iterdir()] == ["letter"]


def test_an_init_that_was_cut_off_may_be_given_again(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, here; a kill leaves the same."""
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
    assert [one.name for one in path.iterdir()] == ["lock"]
    (shards_path / ".cluster.json.17.0a0b0c0d.tmp").touch()  # of one killed a step later
    for words in ([path], [shards_path, "--shards", "2"]):
        ts.fine("init", *words)
        ts.fine("put", words[0], "orders", "a")
    (ts.folder / "other" / "shard-00000" / "commitlog").mkdir(parents=True)
    assert "shards with something in them" in ts("init", ts.folder / "other", "--shards", "2").err


def test_no_path_at_all_is_not_the_working_directory(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a script whose variable is not set."""
    path = ts.init()
    monkeypatch.chdir(path)
    for words in (["init", ""], ["put", "", "t", "x"], ["count", ""], ["backup", path, ""]):
        answer = ts(*words)
        assert (answer.code, answer.out) == (Exit.ERROR, "")
        assert "wanted a path, got ''" in answer.err
    assert ts.fine("count", ".").out == "0\n"


def test_help_of_every_command_and_the_table_of_codes(ts: CommandLine) -> None:
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


def test_debug_shows_where_an_error_came_from(ts: CommandLine) -> None:
    assert "Traceback" in ts("--debug", "ls", ts.folder / "nowhere").err
    assert "Traceback" not in ts("ls", ts.folder / "nowhere").err


class Speaking:
    """The command line with streams of another encoding, which refuse what they cannot say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
        self._monkeypatch = monkeypatch
        self._encoding = encoding

    def __call__(self, *words: object, given: bytes = b"") -> tuple[int, bytes, bytes]:
        raw = [io.BytesIO(given), io.BytesIO(), io.BytesIO()]
        with self._monkeypatch.context() as patch:
            for name, one in zip(("stdin", "stdout", "stderr"), raw, strict=True):
                patch.setattr(sys, name, io.TextIOWrapper(one, self._encoding, "strict"))
            code = main([os.fspath(word) for word in words])  # type: ignore[call-overload]
            sys.stdout.flush()
            sys.stderr.flush()
            return code, raw[1].getvalue(), raw[2].getvalue()


def test_what_a_stream_cannot_say_is_escaped(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ts.init()
    ts.fine("put", path, "t", "5 € 🙂 é")
    ts.fine("put", path, "t", "x", "--in", "1h")
    latin = Speaking(monkeypatch, "iso-8859-1")
    for words in (["get", path, "t"], ["histogram", path], ["top", path, "--once"], ["ls", path]):
        assert latin(*words)[0] == 0
    assert latin("get", path, "t")[1].endswith(b"  5 \\u20ac \\U0001f642 \xe9\n")
    for encoding in ("iso-8859-1", "ascii", "utf-8"):
        for words in (["dump", path, "-n", "1"], ["get", path, "t", "--json"]):
            code, out, _ = Speaking(monkeypatch, encoding)(*words)
            assert code == 0
            assert json.loads(out.decode(encoding))["body"] == "5 € 🙂 é", "JSON stays JSON"


def test_names_that_are_no_utf8(ts: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = Speaking(monkeypatch, "utf-8")
    path = f"{ts.folder}/bad\udcffdir"
    code, out, err = strict("init", path, *SMALL)
    assert (code, err) == (0, b"")
    assert b"bad\\udcffdir" in out
    code, out, _ = strict("verify", path, "--json")
    assert (code, json.loads(out)["path"]) == (0, path)
    code, _, err = strict("explain", path, "\udcff", "--topic", "t")
    assert code == Exit.ERROR
    assert b"half a surrogate pair" in err
    rows = f"{path}.parquet"
    ts.fine("put", path, "t", "x", "--in", "1h")
    assert strict("export", path, rows)[0] == 0
    assert b"put 1 row" in strict("import", path, rows, "--topic", "t")[1]
    code, _, err = strict("dump", path, "--topic", "\udcff")
    assert code == Exit.ERROR
    assert b"--topic: half a surrogate pair" in err
    code, _, err = strict("put", path, "\udcff", "x")
    assert code == Exit.ERROR
    assert err.startswith(b"error: topic")


@pytest.mark.parametrize("command", ["ack", "nack", "extend", "cancel"])
def test_input_that_is_no_utf8_is_a_line_that_is_wrong(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    strict = Speaking(monkeypatch, "utf-8")
    code, out, err = strict(command, ts.init(), "-", given=b"\xff\xfe\n")
    assert (code, out) == (Exit.ERROR, b"")
    assert re.search(rb"do +give the (receipt|handle) as", err)


def test_input_that_is_nested_too_deep_is_a_line_that_is_wrong(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict, path, deep = Speaking(monkeypatch, "utf-8"), ts.init(), b"[" * 200_000
    code, _, err = strict("ack", path, "-", given=b'\n{"receipt":' + deep + b"\n")
    assert code == Exit.ERROR
    assert b"where  line 2 of standard input" in err
    code, _, err = strict("import", path, "-", given=b"\n\n" + deep + b"\n")
    assert code == Exit.ERROR
    assert b"where  - line 3" in err


@pytest.mark.parametrize("error", [RuntimeError("what?"), MemoryError(), OverflowError("far")])
def test_what_nobody_foresaw_is_one_message(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def raise_it(*_: object) -> None:
        raise error

    path = ts.init()
    monkeypatch.setattr("timerstore.cli.listing.stores_in", raise_it)
    answer = ts("ls", path)
    assert (answer.code, answer.out) == (Exit.ERROR, "")
    first, *rest = answer.err.splitlines()
    assert first == f"error: nobody foresaw this: {error!r}"
    assert rest == ["  do     timerstore --debug ... shows where it came from: report it"]
    assert "Traceback" in ts("--debug", "ls", path).err
    told = json.loads(ts("ls", path, "--json").err)
    assert (told["error"], told["exit"]) == (type(error).__name__, 2)


def test_bench_and_demo(ts: CommandLine) -> None:
    lines = ts.fine("bench", "-n", "1000", "--json").rows
    assert [one["n"] for one in lines] == [50, 1000, 1000, 1000]
    demo = ts.fine("demo", "-n", "500", "--seconds", "0.6", "--json").row
    assert demo["passed"]
    assert demo["scheduled"] == demo["delivered"] == 500


def test_demo_says_fail_where_one_is_missing(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_many = TimerStore.put_many

    def lossy(self, topic, bodies, *, deliver_ms):  # type: ignore[no-untyped-def]
        data, offsets = bodies
        return put_many(self, topic, (data, offsets[:-1]), deliver_ms=deliver_ms[:-1])

    monkeypatch.setattr(TimerStore, "put_many", lossy)
    monkeypatch.setattr("timerstore.cli.trying._GRACE_S", 0.1)
    answer = ts("demo", "-n", "50", "--seconds", "0.6")
    assert answer.code == Exit.NOT_SO
    assert "lost 1, doubled 0, early 0" in answer.out
    assert answer.out.endswith("FAIL\n")


def test_demo_keeps_a_folder_that_was_named(ts: CommandLine) -> None:
    kept = ts.folder / "kept.store"
    ts.fine("demo", "-n", "10", "--seconds", "0.6", "--directory", kept, "--plain")
    assert ts.fine("ls", kept, "--json").row["arrived"] == 10
    assert Path(kept).is_dir()


def test_convert_for_a_broker_and_back(ts: CommandLine) -> None:
    path = ts.init("-c", "far_wheel=own")
    ts.fine("put", path, "orders", "one", "--in", "365d", "-c", "far_wheel=own")
    wheel = Path(path) / "timerwheel"
    longer = wheel.stat().st_size  # a broker takes no other length than its own
    told = ts.fine("convert", path, "--to", "rocketmq").out
    assert told == f"a broker may open {path}\n  1 message waiting, 1 moved to the wheel\n"
    assert wheel.stat().st_size == longer - 32
    again = ts.fine("convert", path, "--to", "rocketmq", "--json").row
    assert again == {"path": str(path), "to": "rocketmq", "waiting": 1, "moved": 0, "far": 0}
    back = ts.fine("convert", path, "--to", "timerstore").out
    assert back == f"{path} is ours\n  1 message waiting, 0 moved to the wheel\n"
    assert ts.fine("count", path).out == "1\n"


def test_convert_refuses_what_is_no_closed_store(ts: CommandLine) -> None:
    nothing = ts("convert", str(ts.folder / "none"), "--to", "rocketmq")
    assert nothing.code != Exit.FINE
    assert "no store there" in nothing.err
    assert not (ts.folder / "none").exists()
    path = ts.init()
    assert ts("convert", path).code == Exit.ERROR  # to what?
    assert ts("convert", path, "--to", "kafka").code == Exit.ERROR
    with timerstore.open(path):
        assert ts("convert", path, "--to", "rocketmq").code == Exit.LOCKED
