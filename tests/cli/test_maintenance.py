"""Commands `backup`, `restore`, `verify`, `repair` and `convert`."""

import json
import re
from pathlib import Path

import timerstore
from tests.support.command_line import CommandLine
from timerstore.cli.exits import Exit


def test_restore_recreates_a_backed_up_store(ts: CommandLine) -> None:
    path, backup, again = ts.init(), ts.folder / "b", ts.folder / "again.store"
    ts.fine("put", path, "orders", "a", "--in", "1h")
    assert ts.fine("backup", path, backup, "--json").row["segment_count"] == 1
    assert ts.fine("verify", backup).out.startswith(f"{backup}: clean")
    ts.fine("restore", backup, again)
    assert ts("get", again, "orders").code == Exit.NOT_SO  # opening the store creates its counts
    assert ts.fine("count", again).out == "1\n"
    assert ts("restore", backup, again).code == Exit.ERROR
    assert "wanted a backup" in ts("restore", path, ts.folder / "x").err


def test_verify_reports_damage_and_repair_copies_the_rest(ts: CommandLine) -> None:
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


def test_verify_continues_after_an_unreadable_shard(ts: CommandLine) -> None:
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
    assert answer.code == Exit.ERROR, "the highest code of a shard"
    found = re.findall(r"(?m)^\S+(shard-\d+): (clean|\d+ problem)", answer.out)
    assert [(name[-1], what[:5]) for name, what in found] == [
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


def test_convert_for_a_broker_and_back_reports_counts(ts: CommandLine) -> None:
    path = ts.init("-c", "far_wheel=own")
    ts.fine("put", path, "orders", "one", "--in", "365d", "-c", "far_wheel=own")
    wheel = Path(path) / "timerwheel"
    longer = wheel.stat().st_size  # a broker rejects a file of another length
    converted = ts.fine("convert", path, "--to", "rocketmq").out
    assert (
        converted
        == f"converted {path} for a RocketMQ broker\n  1 message pending, 1 moved to the wheel\n"
    )
    assert wheel.stat().st_size == longer - 32
    again = ts.fine("convert", path, "--to", "rocketmq", "--json").row
    assert again == {"path": str(path), "to": "rocketmq", "pending": 1, "moved": 0, "far": 0}
    back = ts.fine("convert", path, "--to", "timerstore").out
    assert back == f"converted {path} for timerstore\n  1 message pending, 0 moved to the wheel\n"
    assert ts.fine("count", path).out == "1\n"


def test_convert_rejects_a_missing_or_open_store(ts: CommandLine) -> None:
    missing = ts("convert", str(ts.folder / "none"), "--to", "rocketmq")
    assert missing.code != Exit.FINE
    assert "no store at this path" in missing.err
    assert not (ts.folder / "none").exists()
    path = ts.init()
    assert ts("convert", path).code == Exit.ERROR  # --to is missing
    assert ts("convert", path, "--to", "kafka").code == Exit.ERROR
    with timerstore.open(path):
        assert ts("convert", path, "--to", "rocketmq").code == Exit.LOCKED
