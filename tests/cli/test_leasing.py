"""Commands for leases and dead letters, and `pace` and `every`."""

import io
import json
import re
from pathlib import Path

import pytest

import timerstore
from tests.support.command_line import SMALL, CommandLine, in_shell
from timerstore import StoreConfig
from timerstore.cli.exits import Exit

ALL = ("--group", "g", "-n", "100", "--json")


def _shards(ts: CommandLine, count: int = 3) -> Path:
    path = ts.folder / "orders.shards"
    ts.fine("init", path, "--shards", count, *SMALL)
    return path


# --- leases ---------------------------------------------------------------------------------------


def test_lease_commands_report_each_result(ts: CommandLine) -> None:
    path = ts.init()
    for body in ("one", "two", "three"):
        ts.fine("put", path, "orders", body, "--key", body)
    answer = ts.fine("receive", path, "orders", "--group", "g", "--lease", "1h").out
    found = re.fullmatch(
        r".*  key=one  one\n  attempt 1; leased until .* \(in .*\)\n  receipt (\S+)\n", answer
    )
    assert found is not None
    [two, three] = ts.fine("receive", path, "orders", *ALL, "--lease", "1h").rows
    assert (two["body"], two["attempt"], two["is_last_attempt"]) == ("two", 1, False)
    assert two["lease_until_ms"] > two["due_ms"]
    nothing = ts("receive", path, "orders", "--group", "g", "--wait", "20ms")
    assert (nothing.code, nothing.out) == (Exit.NOT_SO, "")
    assert "no messages of orders for g" in nothing.err
    first = found[1]
    assert ts.fine("ack", path, first).out == f"ACKED {first}\n"
    again = ts("ack", path, first)
    assert (again.code, again.out) == (Exit.NOT_SO, f"SETTLED {first}\n")
    longer = ts.fine("extend", path, two["receipt"], "--lease", "2h", "--json").row
    assert (longer["result"], longer["was"]) == ("EXTENDED", two["receipt"])
    assert longer["lease_until_ms"] > two["lease_until_ms"]
    late = ts("extend", path, two["receipt"])
    assert (late.code, late.out) == (Exit.NOT_SO, f"SETTLED {two['receipt']}\n")
    given_back = ts.fine("nack", path, three["receipt"], "--in", "0s", "--json").row
    assert given_back == {"receipt": three["receipt"], "result": "NACKED"}
    [third] = ts.fine("receive", path, "orders", *ALL, "--wait", "5s").rows
    assert (third["body"], third["attempt"]) == ("three", 2)
    mixed = ts("ack", path, third["receipt"], longer["receipt"], first, "--json")
    assert mixed.code == Exit.NOT_SO
    assert [row["result"] for row in mixed.rows] == ["ACKED", "ACKED", "SETTLED"]


def test_expired_message_is_delivered_again_and_then_dead_lettered(ts: CommandLine) -> None:
    path = ts.init()
    ts.fine("put", path, "orders", "x")
    how = ("--lease", "1ms", "--max-attempts", "2", "--wait", "5s")
    for attempt in (1, 2):
        row = ts.fine("receive", path, "orders", *ALL, *how).row
        assert (row["attempt"], row["is_last_attempt"]) == (attempt, attempt == 2)
    answer = ts.fine("follow", path, "%DLQ%g", "--all", "-n", "1", "--body")
    assert answer.out == "x\n"
    assert ts("ack", path, row["receipt"]).out.startswith("EXPIRED ")
    lost = ts("extend", path, row["receipt"], "--json")
    assert (lost.code, lost.row["result"]) == (Exit.NOT_SO, "EXPIRED")


def test_buried_messages_are_listed_and_requeued(ts: CommandLine) -> None:
    path = ts.init()
    for body in ("one", "two", "three"):
        ts.fine("put", path, "orders", body)
    rows = ts.fine("receive", path, "orders", *ALL, "--lease", "1h").rows
    none = ts("dead-letters", path, "g")
    assert (none.code, none.out) == (Exit.NOT_SO, "")
    assert "no dead letters of g" in none.err
    first, *others = [row["receipt"] for row in rows]
    why = ("--error", "no such\naddress")
    assert ts.fine("bury", path, first, *why).out == f"BURIED {first}\n"
    assert [row["result"] for row in ts.fine("bury", path, *others, "--json").rows] == [
        "BURIED", "BURIED"
    ]  # fmt: skip
    late = ts("bury", path, first)
    assert (late.code, late.out) == (Exit.NOT_SO, f"SETTLED {first}\n")
    text = ts.fine("dead-letters", path, "g", "-n", "1").out
    lines = r"  one\n  1 attempt; dead since .*\n  error no such\\naddress\n  receipt \S+\n"
    assert re.search(lines, text)
    dead = ts.fine("dead-letters", path, "g", "--topic", "orders", "--json").rows
    assert [(row["body"], row["group"], row["attempt"]) for row in dead] == [
        ("one", "g", 1), ("two", "g", 1), ("three", "g", 1)
    ]  # fmt: skip
    assert [row["error"] for row in dead] == ["no such\naddress", None, None]
    assert ts("dead-letters", path, "g", "--topic", "other").code == Exit.NOT_SO
    two = dead[1]["receipt"]
    assert ts.fine("requeue", path, "g", two).out == "requeued 1 message\n"
    again = ts("requeue", path, "g", two, "--json")
    assert (again.code, again.row) == (Exit.NOT_SO, {"requeued": 0})
    [row] = ts.fine("receive", path, "orders", *ALL, "--lease", "1h").rows
    assert (row["body"], row["attempt"]) == ("two", 1)
    lines = in_shell(["dead-letters", path, "g", "--json"]).out
    done = in_shell(["requeue", path, "g", "-", "--json"], given=lines.encode())
    assert (done.code, done.row) == (0, {"requeued": 2})
    assert ts("requeue", path, "g", "--all").code == Exit.NOT_SO
    for wrong in (("requeue", path, "g"), ("requeue", path, "g", two, "--all")):
        assert "wanted either RECEIPTS or --all" in ts(*wrong).err


def test_priorities_and_several_topics(ts: CommandLine) -> None:
    path = ts.init()
    ts.fine("put", path, "orders", "low")
    ts.fine("put", path, "orders", "high", "--priority", "9")
    ts.fine("put", path, "mail", "letter")
    both = ts("put", path, "orders", "x", "--priority", "1", "--queue", "1")
    assert both.code == Exit.ERROR
    assert "priority, queue_id: wanted one of them" in both.err
    done = in_shell(["put", path, "orders", "--lines", "--priority", "5"], given=b"a\nb\n")
    assert done.code == Exit.FINE
    rows = ts.fine("receive", path, "orders", "mail", *ALL).rows
    assert [row["body"] for row in rows] == ["high", "a", "b", "low", "letter"]
    assert [row["queue_id"] for row in rows] == [9, 5, 5, 0, 0]
    assert not any("_SYS_MSG_PRIORITY_" in row["properties"] for row in rows)
    made = ts.fine("every", path, "orders", "x", "--every", "1h", "--priority", "3", "--name", "n")
    assert "n" in made.out
    nothing = ts("receive", path, "orders", "mail", "--group", "g")
    assert "no messages of orders, mail for g" in nothing.err


def test_message_groups(ts: CommandLine) -> None:
    path = ts.init()
    for body in ("one", "two"):
        ts.fine("put", path, "orders", body, "--message-group", "customer")
    [row] = ts.fine("receive", path, "orders", *ALL, "--ordered").rows
    assert (row["body"], row["properties"]) == ("one", {})
    assert ts("receive", path, "orders", *ALL, "--ordered").code == Exit.NOT_SO
    ts.fine("ack", path, row["receipt"])
    [row] = ts.fine("receive", path, "orders", *ALL, "--ordered").rows
    assert row["body"] == "two"
    wrong = in_shell(["put", path, "orders", "--lines", "--message-group", "c"], given=b"a\n")
    assert wrong.code == Exit.ERROR
    assert "--lines: wanted no --message-group" in wrong.err


def test_dead_letters_of_shards_and_of_an_open_store(ts: CommandLine) -> None:
    path = _shards(ts)
    for k in range(6):
        ts.fine("put", path, "orders", f"{k}", "--key", f"k{k}")
    rows = ts.fine("receive", path, "orders", *ALL, "--lease", "1h").rows
    ts.fine("bury", path, *(row["receipt"] for row in rows))
    dead = ts.fine("dead-letters", path, "g", "--json").rows
    assert sorted(row["body"] for row in dead) == list("012345")
    assert all(row["receipt"].startswith(f"s{row['shard']:05d}.") for row in dead)
    assert ts.fine("requeue", path, "g", dead[0]["receipt"], "--json").row == {"requeued": 1}
    assert len(ts.fine("dead-letters", path, "g", "--json").rows) == 5
    with timerstore.open_shards(path) as store:
        assert len(ts.fine("dead-letters", path, "g", "--json").rows) == 5
        assert ts("requeue", path, "g", "--all").code == Exit.LOCKED
        assert store.requeue("g") == 5


def test_receive_applies_backoff_and_filters(ts: CommandLine) -> None:
    path = ts.init()
    ts.fine("put", path, "orders", "a", "--tag", "paid")
    ts.fine("put", path, "orders", "b", "--tag", "late")
    how = ("--tag", "late", "--backoff", "0s", "--backoff", "1h")
    row = ts.fine("receive", path, "orders", *ALL, *how).row
    assert row["body"] == "b"
    ts.fine("nack", path, row["receipt"])
    row = ts.fine("receive", path, "orders", *ALL, *how, "--wait", "5s").row
    assert row["attempt"] == 2
    ts.fine("nack", path, row["receipt"])
    assert ts("receive", path, "orders", *ALL, *how).code == Exit.NOT_SO
    wrong = ts("receive", path, "orders", *ALL, "--sql", "amount >")
    assert wrong.code == Exit.ERROR


def test_ack_reads_the_output_of_receive(ts: CommandLine) -> None:
    """`ack` reads its input to the end before it opens the store, so `receive` has closed it."""
    path = ts.init()
    for k in range(5):
        ts.fine("put", path, "orders", f"{k}")
    lines = in_shell(["receive", path, "orders", *ALL]).out
    assert len(lines.splitlines()) == 5
    done = in_shell(["ack", path, "-", "--json"], given=lines.encode())
    assert done.code == 0
    assert [row["result"] for row in done.rows] == ["ACKED"] * 5


def test_ack_names_the_line_without_a_receipt(
    ts: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ts.init()
    for line in ('{"result": "x"}', "{"):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"\n{line}\n"))
        answer = ts("ack", path, "-")
        assert (answer.code, answer.out) == (Exit.ERROR, "")
        assert "where  line 2 of standard input" in answer.err
    monkeypatch.setattr("sys.stdin", io.StringIO("bDEg\n"))
    assert "receipt: wanted `l1`, a checksum" in ts("ack", path, "-").err


def test_leases_work_on_shards(ts: CommandLine) -> None:
    path = _shards(ts)
    for k in range(9):
        ts.fine("put", path, "orders", f"{k}", "--key", f"k{k}")
    rows = ts.fine("receive", path, "orders", *ALL, "--lease", "1h").rows
    assert {row["shard"] for row in rows} == {0, 1, 2}
    assert sorted(row["body"] for row in rows) == [str(k) for k in range(9)]
    receipts = [row["receipt"] for row in rows]
    assert all(one.startswith("s0000") for one in receipts)
    acked = ts.fine("ack", path, *receipts[:7], "--json").rows
    assert [row["receipt"] for row in acked] == receipts[:7]
    ts.fine("extend", path, receipts[7])
    ts.fine("nack", path, receipts[8])
    failed = ts("ack", path, receipts[0].partition(".")[2])
    assert failed.code == Exit.ERROR
    assert "wanted one that names its shard" in failed.err


def test_put_options_work_on_shards(ts: CommandLine) -> None:
    path = _shards(ts)
    for body in ("first", "second"):
        ts.fine("put", path, "mail", body, "--in", "1h", "--key", "u7", "--replace")
    ts.fine("put", path, "mail", "x", "--in", "1h", "--spread", "1h")
    assert ts.fine("count", path).out == "2\n"
    assert ts.fine("get", path, "mail", "--key", "u7", "--json").rows[-1]["body"] == "second"
    lines = in_shell(["put", path, "mail", "--lines", "--level", "5"], given=b"a\nb\n")
    assert lines.out == "put 2 messages to mail\n"


# --- pace -----------------------------------------------------------------------------------------


@pytest.mark.more
@pytest.mark.parametrize("kind", ["store", "shards"])
def test_pace_delivers_a_burst_at_its_rate(ts: CommandLine, kind: str) -> None:
    path = ts.init() if kind == "store" else _shards(ts, 2)
    words = dict(word.split("=") for word in SMALL[1::2])
    still = StoreConfig(**{k: int(v) for k, v in words.items()}, stop_dequeue=True)
    opened = timerstore.open_shards if kind == "shards" else timerstore.open
    with opened(path, config=still) as store:
        keys = [f"k{k}" for k in range(30)]
        store.put_many("orders", [b"x"] * 30, delay=0.5, keys=keys)
        store.put("mail", b"later", delay=3600)
    some = ts.fine("pace", path, "orders=2", "mail=5", "--for", "2500ms", "--json")
    orders, mail = some.rows
    assert orders["topic"] == "orders"
    assert orders["per_second"] == 2
    assert 1 <= orders["came"] <= 15  # 15 deliveries take 7 s at this rate
    assert orders["came"] + orders["pending"] == 30
    assert mail == {"topic": "mail", "per_second": 5, "came": 0, "pending": 1}
    assert "pacing orders=2 mail=5: " in some.err
    rest = ts.fine("pace", path, "orders=1000", "--drain")
    assert rest.out == f"orders: {orders['pending']} delivered, 0 pending\n"


# --- every ----------------------------------------------------------------------------------------


def test_every_starts_lists_and_ends_recurring_messages(ts: CommandLine) -> None:
    path = ts.init()
    listed = ts.fine("every", path)
    assert (listed.out, listed.err) == ("", "no recurring messages\n")
    answer = ts.fine("every", path, "jobs", "tidy up", "--every", "90s", "--name", "tidy").out
    assert re.fullmatch(r"tidy: every 1m 30s to jobs\n  next .* \(in .*\)\n", answer)
    ts.fine(
        *("every", path, "jobs", "report", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin"),
        *("--missed", "skip", "--name", "nightly", "--key", "k", "--tag", "t", "--property", "a=b"),
    )
    first, second = ts.fine("every", path, "--json").rows
    assert (first["name"], first["cron"], first["every_ms"]) == ("nightly", "30 2 * * *", None)
    assert (first["missed"], first["timezone"]) == ("skip", "Europe/Berlin")
    assert (second["name"], second["every_ms"], second["runs"]) == ("tidy", 90_000, 1)
    lines = ts.fine("every", path).out.splitlines()
    assert lines[0].split() == ["name", "topic", "when", "missed", "runs", "next"]
    assert "30 2 * * * Europe/Berlin" in lines[1]
    daily = ts.fine("every", path, "jobs", "x", "--cron", "@daily", "--name", "daily", "--json")
    assert daily.row["cron"] == "0 0 * * *"
    ts.fine("every", path, "--cancel", "daily")
    same = ts.fine("every", path, "jobs", "tidy up", "--every", "90s", "--name", "tidy", "--json")
    assert same.row == second
    other = ts("every", path, "jobs", "tidy up", "--every", "91s", "--name", "tidy")
    assert other.code == Exit.ERROR
    assert "cancel_every it first" in other.err
    [due] = ts.fine("get", path, "jobs", "--key", "k", "--json").rows
    assert (due["tags"], due["properties"]) == ("t", {"a": "b"})
    assert ts.fine("every", path, "--cancel", "tidy").out == "ENDED tidy\n"
    gone = ts("every", path, "--cancel", "tidy", "--cancel", "nightly", "--json")
    assert gone.code == Exit.NOT_SO
    assert [row["result"] for row in gone.rows] == ["UNKNOWN", "ENDED"]
    assert ts.fine("count", path).out == "0\n"


def test_recurring_messages_are_delivered(ts: CommandLine) -> None:
    path = ts.init()
    ts.fine("every", path, "jobs", "x", "--every", "1s", "--start", "2020-01-01T00:00Z")
    assert ts.fine("follow", path, "jobs", "-n", "1", "--body").out == "x\n"
    assert in_shell(["every", path, "jobs", "--every", "1h"], given=b"of input").code == 0
    assert len(ts.fine("every", path, "--json").rows) == 2
    odd = ts.fine("every", path, "jobs", "y", "--every", "1h30m30s", "--name", "odd").out
    assert odd.startswith("odd: every 1h 30m 30s to jobs\n")


def test_every_works_on_shards(ts: CommandLine) -> None:
    path = _shards(ts)
    made = [
        ts.fine("every", path, "jobs", "x", "--every", "1h", "--name", name, "--json").row
        for name in "abcd"
    ]
    assert len({row["shard"] for row in made}) > 1
    assert ts.fine("every", path, "--json").rows == made
    assert ts.fine("every", path, "--cancel", "c").out == "ENDED c\n"
    assert [row["name"] for row in ts.fine("every", path, "--json").rows] == list("abd")


def test_every_reports_damaged_definitions(ts: CommandLine) -> None:
    path = ts.init()
    ts.fine("every", path, "jobs", "x", "--every", "1h", "--name", "a")
    file = Path(path) / "config" / "timerstoreRecurring.json"
    file.write_text(json.dumps({"format": 1}))
    answer = ts("every", path)
    assert (answer.code, answer.out) == (Exit.NOT_SO, "")
    assert "the definitions of recurring messages cannot be read" in answer.err
    assert f"where  {file}" in answer.err
