"""Results and exit codes of the commands."""

import json
import os
import re
import subprocess
import sys

import timerstore
from tests.support.broker import fixtures as broker_fixtures
from tests.support.command_line import SMALL, CommandLine
from timerstore.cli.exits import Exit


def test_commands_of_a_first_session_put_follow_count_and_verify(ts: CommandLine) -> None:
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


def test_json_output_has_the_fields_of_the_message(ts: CommandLine) -> None:
    path = ts.init("--json")
    put = ts.fine(
        *("put", path, "orders", "hi", "--in", "1h", "--key", "a", "--key", "b"),
        *("--tag", "paid", "--property", "region=eu", "--id", "order-1", "--json"),
    ).row
    assert put["message_id"] == "order-1"
    assert put["queue_offset"] is None
    again = ts.fine(
        *("put", path, "orders", "hi", "--in", "1h", "--key", "a", "--key", "b", "--tag", "paid"),
        *("--property", "region=eu", "--id", "order-1", "--json"),
    )
    assert again.row["duplicate"]
    [found] = ts.fine("get", path, "orders", "--key", "b", "--json").rows
    assert found["handle"] == put["handle"]
    assert (found["tags"], found["properties"]) == ("paid", {"region": "eu"})
    assert found["delivered_ms"] is None
    assert found["due_ms"] == put["due_ms"]
    [listed] = ts.fine("ls", path, "--json").rows
    assert listed == {"topic": "orders", "queues": 1, "pending": 1, "delivered": 0}
    assert ts.fine("count", path, "--topic", "orders", "--json").row["pending"] == 1


def test_cancel_and_move_report_each_message(ts: CommandLine) -> None:
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
    assert "no pending message of topic 'orders' has the key 'k'" in nothing.err
    assert ts.fine("count", path).out == "0\n"
    wrong = ts("cancel", path, "nonsense")
    assert wrong.code == Exit.ERROR
    assert "  do     give the handle that `put` printed" in wrong.err


def test_cancel_reports_a_delay_level_message_without_handle(ts: CommandLine) -> None:
    path = ts.init()
    assert (
        ts.fine("put", path, "orders", "x", "--level", "5", "--key", "k", "--json").row["handle"]
        == ""
    )
    answer = ts("cancel", path, "--topic", "orders", "--key", "k")
    assert answer.code == Exit.NOT_SO
    assert "of a delay level" in answer.err


def test_put_spread_draws_due_times_in_the_span(ts: CommandLine) -> None:
    path = ts.init()
    for _ in range(5):
        ts.fine("put", path, "mail", "x", "--at", "2030-01-01T00:00Z", "--spread", "1h")
    due = [row["deliver_ms"] - 1_893_456_000_000 for row in ts.fine("dump", path, "pending").rows]
    assert len(set(due)) > 1
    assert all(0 <= one <= 3_600_000 for one in due)


def test_put_replace_keeps_one_pending_message_per_key(ts: CommandLine) -> None:
    path = ts.init()
    for body in ("first", "second"):
        ts.fine(
            "put", path, "mail", body, "--in", "1h", "--key", "u7", "--replace", "--at-most", "2h"
        )
    assert ts.fine("count", path).out == "1\n"
    assert ts.fine("get", path, "mail", "--key", "u7", "--json").rows[-1]["body"] == "second"
    assert "wanted one --key" in ts("put", path, "mail", "x", "--replace").err
    assert "only with --replace" in ts("put", path, "mail", "x", "--at-most", "1s").err


def test_put_unique_stores_one_message_per_key(ts: CommandLine) -> None:
    path = ts.init()
    put = ("put", path, "mail", "x", "--in", "1h", "--key", "u7", "--unique")
    first, second = (ts.fine(*put, "--json").rows[0] for _ in range(2))
    assert (first["duplicate"], second["duplicate"]) == (False, True)
    assert first["handle"] == second["handle"]
    assert ts.fine(*put).out.startswith(f"already put {first['message_id']}: due ")
    assert ts.fine("count", path).out == "1\n"
    ts.fine("cancel", path, first["handle"])
    assert ts.fine(*put).out.startswith("put ")
    assert "wanted one --key" in ts("put", path, "mail", "x", "--unique").err
    assert "wanted one --key" in ts(*put, "--replace").err


def test_histogram_counts_pending_messages_by_due_time(ts: CommandLine) -> None:
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
            snapshot = ts.fine(*words, *more, "--json").rows
            assert sum(row["count"] for row in snapshot) == (1 if "t1" in more else 3)
        assert ts.fine(*words, "--json").rows == rows
        snapshot = ts.fine("histogram", path, "--json").rows
        assert sum(row["count"] for row in snapshot) == 1
        assert ts("explain", path, "x", "--topic", "t0").code == Exit.LOCKED


def test_explain_shows_state_and_history(ts: CommandLine) -> None:
    path = ts.init()
    put = ts.fine("put", path, "orders", "x", "--in", "1m", "--json").row
    answer = ts.fine("explain", path, put["handle"])
    assert answer.out.startswith(f"{put['message_id']} of orders: pending\n  why ")
    assert re.search(
        r"^  slot +[\d,]+, read at .*; entry 1 of 1 in its chain$", answer.out, re.MULTILINE
    )
    assert re.search(r"^  put +\d{4}-.*, log offset 0$", answer.out, re.MULTILINE)
    ts.fine("cancel", path, put["handle"])
    row = ts.fine("explain", path, put["message_id"], "--topic", "orders", "--json").row
    assert row["state"] == "cancelled"
    assert [one["what"] for one in row["history"]] == ["put", "cancelled"]
    now = ts.fine("put", path, "orders", "now", "--json").row["message_id"]
    assert (
        "  where    queue 0, offset 0\n" in ts.fine("explain", path, now, "--topic", "orders").out
    )
    unknown = ts("explain", path, "nothing", "--topic", "orders")
    assert unknown.code == Exit.NOT_SO
    assert "unknown" in unknown.out
    assert "or a message id and --topic" in ts("explain", path, "nothing").err


def test_group_commits_the_messages_it_read(ts: CommandLine) -> None:
    path = ts.init()
    for body in "abc":
        ts.fine("put", path, "orders", body)
    assert ts.fine("get", path, "orders", "--group", "billing", "-n", "2", "--body").out == "a\nb\n"
    assert ts.fine("follow", path, "orders", "--group", "billing", "-n", "1", "--body").out == "c\n"
    assert ts("get", path, "orders", "--group", "billing").code == Exit.NOT_SO
    assert ts("get", path, "orders", "--group", "billing", "--wait", "20ms").code == Exit.NOT_SO
    [row] = ts.fine("ls", path, "--groups", "--json").rows
    assert row == {"topic": "orders", "group": "billing", "queue": 0, "committed": 3, "behind": 0}


def test_follow_without_a_group_stores_no_offset(ts: CommandLine) -> None:
    path = ts.init()
    ts.fine("put", path, "orders", "a")
    assert ts.fine("follow", path, "orders", "--for", "10ms").out == ""
    assert ts.fine("follow", path, "orders", "--all", "-n", "1", "--body").out == "a\n"
    began = ts.fine("follow", path, "orders", "--from", "2000-01-01T00:00Z", "-n", "1", "--json")
    assert began.row["body"] == "a"
    assert ts.fine("ls", path, "--groups").out == ""


def test_get_filters_by_tag_sql_and_offset(ts: CommandLine) -> None:
    path = ts.init()
    ts.fine("put", path, "orders", "a", "--tag", "paid", "--property", "amount=7")
    ts.fine("put", path, "orders", "b", "--tag", "late")
    assert ts.fine("get", path, "orders", "--tag", "late || x", "--body").out == "b\n"
    assert ts.fine("get", path, "orders", "--sql", "amount > 5", "--body").out == "a\n"
    assert ts.fine("get", path, "orders", "--offset", "1", "--body").out == "b\n"
    assert ts("get", path, "orders", "--sql", "amount >").code == Exit.ERROR
    assert ts("get", path, "orders", "--queue", "7").code == Exit.ERROR


def test_get_escapes_control_characters_of_a_body(ts: CommandLine) -> None:
    path = ts.init()
    ts.fine("put", path, "orders", "a\x1b[2Jb\u202ec\nd")
    line = ts.fine("get", path, "orders").out
    assert line.endswith("  a\\x1b[2Jb\\x202ec\\nd\n")
    assert ts.fine("get", path, "orders", "--json").row["body"] == "a\x1b[2Jb\u202ec\nd"


def test_commands_when_another_process_has_the_store_open(ts: CommandLine) -> None:
    path = ts.init()
    with timerstore.open(path) as store:
        handle = store.put("orders", b"later", delay=3600, keys="k").handle
        store.put_every("jobs", b"x", every=3600, name="beat")
        store.put("orders", b"now", tags="t")
        store.flush()
        pid = os.getpid()
        assert f"open in process {pid}" in ts.fine("ls", path).err
        assert ts.fine("count", path, "--json").row == {"pending": 2, "open_in": pid}
        assert ts.fine("every", path, "--json").row["name"] == "beat"
        assert ts.fine("get", path, "orders", "--body").out == "now\n"
        assert ts("get", path, "orders", "--tag", "u").code == Exit.NOT_SO
        followed = ts.fine("follow", path, "orders", "--all", "-n", "1", "--json")
        assert followed.row["body"] == "now"
        assert "reading a snapshot" in followed.err
        assert ts.fine("verify", path).code == 0
        assert ts.fine("top", path, "--once", "--json").row["stores"][0]["open_in"] == pid
        for words in (
            ("put", path, "orders", "x"),
            ("cancel", path, handle),
            ("get", path, "orders", "--group", "g"),
            ("get", path, "orders", "--key", "k"),
            ("backup", path, ts.folder / "b"),
            ("count", path, "--until", "now"),
            ("receive", path, "orders", "--group", "g"),
            ("ack", path, "r"),
            ("nack", path, "r"),
            ("bury", path, "r"),
            ("requeue", path, "g", "--all"),
            ("extend", path, "r"),
            ("pace", path, "orders=1"),
            ("every", path, "orders", "x", "--every", "1m"),
            ("every", path, "--cancel", "beat"),
        ):
            answer = ts(*words)
            assert (answer.code, answer.out) == (Exit.LOCKED, ""), words
            assert "these commands work while it runs: ls, count, get" in answer.err
        assert store.cancel(handle) == "CANCELLED"


def test_locked_error_reports_owner_pid(ts: CommandLine) -> None:
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
        error = json.loads(answer.err)
        assert error["error"] == "LockedError"
        assert error["got"] == f"process {other.pid}"
        assert error["exit"] == 3
        assert ts.fine("count", path, "--json").row["open_in"] == other.pid
        other.communicate()
    ts.fine("put", path, "orders", "x")


def test_store_of_a_broker_is_read_and_not_changed(ts: CommandLine) -> None:
    path = broker_fixtures.unpack("clean-small-segments", ts.folder / "broker")
    before = {one: one.read_bytes() for one in path.rglob("*") if one.is_file()}
    waiting = len(ts.fine("dump", path, "pending").rows)
    assert waiting > 100
    assert ts.fine("count", path, "--json").row == {"pending": waiting, "open_in": None}
    listed = ts.fine("ls", path, "--json").rows
    assert sum(row["pending"] for row in listed) == waiting
    with timerstore.open(path, read_only=True) as store:
        for row in listed:
            queues = range(row["queues"])
            ends = [store.pull(row["topic"], queue, 0).max_offset for queue in queues]
            assert row["delivered"] == sum(ends)
    topic = next(row["topic"] for row in ts.fine("dump", path, "deliveries").rows)
    got = ts.fine("get", path, topic, "--json")
    assert "a broker wrote the store" in got.err
    assert all(row["topic"] == topic for row in got.rows)
    assert ts.fine("follow", path, topic, "--all", "-n", "3", "--json").rows == got.rows[:3]
    stats = ts.fine("top", path, "--once", "--json").row
    assert stats["pending"] == waiting
    assert ts.fine("verify", path).code == 0
    assert {one: one.read_bytes() for one in path.rglob("*") if one.is_file()} == before


def test_commands_work_on_shards(ts: CommandLine) -> None:
    path = ts.init("--shards", "2")
    handles = [
        ts.fine("put", path, "orders", f"b{k}", "--in", "1h", "--key", key, "--json").row["handle"]
        for k, key in enumerate("adbe")  # two keys per shard
    ]
    ts.fine("put", path, "orders", "now", "--key", "a")
    rows = ts.fine("ls", path, "--json").rows
    assert sum(row["pending"] for row in rows) == 4
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
    assert ts.fine("top", path, "--once", "--json").row["pending"] == 3
    assert ts.fine("explain", path, handles[1]).code == 0
    rows = ts.fine("histogram", path, "--until", "2031-01-01T00:00Z", "--by", "day", "--json").rows
    assert sum(row["count"] for row in rows) == 3
    alone = ts("backup", path, ts.folder / "b")
    [shard] = re.findall(r"give one shard, such as (\S+)", alone.err)
    assert ts.fine("backup", shard, ts.folder / "b", "--json").row["segment_count"] == 1


def test_bench_reports_its_counts(ts: CommandLine) -> None:
    lines = ts.fine("bench", "-n", "1000", "--json").rows
    assert [one["n"] for one in lines] == [50, 1000, 1000, 1000]
