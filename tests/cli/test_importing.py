"""Command `import`: valid and invalid rows, run ids and replays."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.command_line import CommandLine
from timerstore.cli.exits import Exit


def test_import_error_names_the_line(ts: CommandLine) -> None:
    path, file = ts.init(), ts.folder / "rows.jsonl"
    for line, text in (
        ('{"topic": "a", "body": "x", "delivr_at": 1}', "unknown: delivr_at; known: body"),
        ('{"topic": "a"}', "body: wanted body or body_base64, got neither"),
        (
            '{"topic": "a", "body": "x", "deliver_at": "2026-01-01T00:00"}',
            "wanted a time with its zone",
        ),
        (
            '{"topic": "a", "body": "x", "body_base64": "eA=="}',
            "body, body_base64: wanted one of them, got both",
        ),
        (
            '{"topic": "a", "body": "x", "deliver_at": 123456789012345678901234567890}',
            "deliver_at: wanted a time, or epoch ms",
        ),
        (
            '{"topic": "a", "body": "x", "deliver_ms": -9223372036854775809}',
            "deliver_ms: wanted a time, or epoch ms",
        ),
        ('{"topic": "a", "body": "x", "keys": 5}', "is not a message"),
        ('{"topic": "a", "body": "x", "keys": ["k", 5]}', "is not a message"),
        ('{"topic": "a", "body": "x", "tags": "\\ud800"}', "is not a message"),
        ('{"topic": "a", "body": "x", "properties": {"a": "\\ud800"}}', "is not a message"),
        ("[" * 200_000, "not a message: nested too deeply"),
        ("[]", "wanted an object, got list"),
        ("{", "is not a message"),
    ):
        file.write_text('{"topic": "a", "body": "x"}\n' + line + "\n")
        answer = ts("import", path, file)
        assert answer.code == Exit.ERROR
        assert text in answer.err
        assert f"{file} line 2" in answer.err
    assert ts.fine("count", path).out == "0\n"


def test_import_rejects_or_skips_invalid_rows(ts: CommandLine) -> None:
    path, file = ts.init(), ts.folder / "rows.jsonl"
    rows = [
        {"topic": topic, "body": "x", "deliver_at": "2100-01-01T00:00Z"}
        for topic in ("a", "!", "b")
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = ("-c", "delay_ms_max=31_000_000_000_000")
    failed = ts("import", path, file, *config)
    assert failed.code == Exit.ERROR
    assert "row 2: topic" in failed.err
    assert ts.fine("count", path).out == "0\n"
    skipped = ts.fine("import", path, file, "--on-invalid", "skip", *config)
    assert "1 row skipped, the first: row 2: topic" in skipped.err
    assert ts.fine("count", path).out == "2\n"


@pytest.mark.parametrize("kind", [(), ("--shards", "2")], ids=["store", "shards"])
def test_import_rejects_other_rows_under_a_used_run_id(
    ts: CommandLine, kind: tuple[str, ...]
) -> None:
    path, file = ts.init(*kind), ts.folder / "rows.jsonl"
    for rows, code in ((["one"], 0), (["two", "three"], Exit.ERROR), (["one"], 0)):
        file.write_text("".join(f'{{"topic": "a", "body": "{body}"}}\n' for body in rows))
        answer = ts("import", path, file, "--run-id", "daily")
        assert answer.code == code, answer
        assert ("other rows" in answer.err) == (code != 0)
    assert "already imported, 1 row" in answer.out
    assert [row["body"] for row in ts.fine("dump", path, "--topic", "a").rows] == ["one"]


def test_import_into_shards_rejects_a_generated_run_id(ts: CommandLine) -> None:
    path, file = ts.init("--shards", "2"), ts.folder / "rows.jsonl"
    file.write_text('{"topic": "a", "body": "x"}\n')
    run_id = "batch-0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"
    answer = ts("import", path, file, "--run-id", run_id)
    assert answer.code == Exit.ERROR
    assert "--run-id: wanted another form" in answer.err
    ts.fine("import", path, file, "--run-id", "batch-june")


@pytest.mark.parametrize("kind", [(), ("--shards", "2")], ids=["store", "shards"])
def test_import_reports_skipped_rows(ts: CommandLine, kind: tuple[str, ...]) -> None:
    path, file = ts.init(*kind), ts.folder / "rows.parquet"
    topics = ["a"] * 9000 + ["!", "b", "?"]  # the first invalid row is in the second batch
    rows = pa.table({"topic": topics, "body": [b"x"] * len(topics)})
    pq.write_table(rows, file)
    for words in ((), ("--json",)):
        answer = ts.fine("import", path, file, "--on-invalid", "skip", *words)
        if words:
            assert (answer.row["rows"], answer.row["skipped"]) == (9001, 2)
            assert answer.row["first_skipped"].startswith("row 9,001: topic")
        else:
            assert "2 rows skipped, the first: row 9,001: topic" in answer.err


@pytest.mark.parametrize("kind", [(), ("--shards", "2")], ids=["store", "shards"])
def test_import_topic_applies_to_rows_without_a_topic(
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


def test_import_keeps_order_of_rows_with_different_properties(ts: CommandLine) -> None:
    path, file = ts.init(), ts.folder / "rows.jsonl"
    wanted = [{"n": str(n % 3), "row": str(n)} if n % 4 else {} for n in range(40)]
    lines = ({"topic": "a", "body": "x", "properties": one} for one in wanted)
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    ts.fine("import", path, file)
    found = ts.fine("dump", path, "--topic", "a").rows
    own = ({name: row["properties"].get(name) for name in ("n", "row")} for row in found)
    assert [{name: text for name, text in one.items() if text} for one in own] == wanted
