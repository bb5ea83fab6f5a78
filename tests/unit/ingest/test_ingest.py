"""Rows of a version are stored exactly once, also after interruptions and repeated calls."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import NOW, Bench, small
from tests.support.driver import abandon
from tests.support.ingesting import StopError, batch_of, numbered, stop_at
from tests.support.inside import inside
from timerstore import CancelResult, MessageError, RowBatch
from timerstore._engine.base import failpoints
from timerstore._engine.format.store_paths import INGEST_TOPIC
from timerstore.errors import FullError


def headers(bench: Bench) -> list[dict[str, Any]]:
    return [json.loads(message.body) for message in bench.out(INGEST_TOPIC)]


def test_replay_of_a_version_appends_nothing(bench: Bench) -> None:
    batches = [batch_of(numbered(0, 3), [0, NOW + 1500, NOW - 5]), batch_of(numbered(3, 5))]
    receipt = bench.store.ingest("s", 0, batches)
    assert receipt == ("s", 0, 5, False)
    assert bench.store.ingested("s").ranges == (range(1),)
    bench.turn()
    assert bench.bodies() == [b"row-000000", b"row-000002", b"row-000003", b"row-000004"]
    bench.turn(1500)
    assert bench.bodies()[-1] == b"row-000001"
    before = bench.store.stats()["log_end_bytes"]
    for cut in (batches, [batch_of(numbered(0, 1), [0]), batch_of([], [])]):
        if cut is batches:
            assert bench.store.ingest("s", 0, iter(cut)) == ("s", 0, 5, True)
    assert bench.store.stats()["log_end_bytes"] == before
    assert [one["last"] for one in headers(bench)] == [False, True]
    bench.reopen()
    assert bench.store.ingest("s", 0, batches).is_replay
    assert 0 in bench.store.ingested("s")
    assert 1 not in bench.store.ingested("s")
    assert "x" not in bench.store.ingested("s")
    assert len(bench.bodies()) == 5


def test_replay_succeeds_when_the_clock_was_set_back(bench: Bench) -> None:
    far_ms = bench.config.delay_ms_max + bench.clock.now_ms
    rows = batch_of([b"a"], [far_ms])
    bench.store.ingest("s", 1, [rows])
    bench.turn(-1000)
    assert bench.store.ingest("s", 1, [rows]).is_replay
    with pytest.raises(MessageError, match="due"):
        bench.store.ingest("s", 2, [rows])


def test_all_columns_of_a_row_are_stored(bench: Bench) -> None:
    bench.store.ingest(
        "s",
        7,
        [
            batch_of(
                [b"a", b"", b"c"],
                [NOW + 1000, NOW + 2000, 0],
                keys=[b"k1 k2", b"", "ü".encode()],
                tags=[b"", b"red", b"blue"],
                ids=[b"id-a", b"", b"id-c"],
                properties={"region": "eu"},
            )
        ],
    )
    waiting = {one.message_id: one for one in bench.store.pending()}
    assert "id-a" in waiting
    assert bench.store.cancel(waiting["id-a"].handle) is CancelResult.CANCELLED
    bench.turn(2000)
    c, b = bench.out()
    assert (b.body, b.tags, b.keys, len(b.message_id)) == (b"", "red", (), 32)
    assert (c.body, c.tags, c.keys, c.message_id) == (b"c", "blue", ("ü",), "id-c")
    assert {m.properties["region"] for m in (b, c)} == {"eu"}
    assert "TS_GROUP" not in b.properties
    assert [m.body for m in bench.store.query("t", "id-c")] == [b"c"]
    assert [m.body for m in bench.store.query("t", "k2")] == []


def test_replay_compares_rows_but_not_batches(bench: Bench) -> None:
    rows, dues = numbered(0, 10), [NOW + 1000 + k for k in range(10)]
    bench.store.ingest("s", 1, [batch_of(rows, dues)])
    for cuts in ([0, 3, 3, 10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]):
        pieces = [batch_of(rows[a:b], dues[a:b]) for a, b in pairwise(cuts)]
        assert bench.store.ingest("s", 1, pieces) == ("s", 1, 10, True)
    others = [
        batch_of(rows[:9], dues[:9]),
        batch_of([*rows, b"x"], [*dues, 0]),
        batch_of([*rows[:9], b"row-00000x"], dues),
        batch_of(rows, [*dues[:9], dues[9] + 1]),
        batch_of(rows, dues, topic="u"),
        batch_of(rows, dues, tags=[b""] * 9 + [b"x"]),
        batch_of(rows, dues, keys=[b""] * 9 + [b"x"]),
        batch_of(rows, dues, ids=[b""] * 9 + [b"x"]),
        batch_of(rows, dues, properties={"a": "b"}),
        batch_of([rows[1], rows[0], *rows[2:]], dues),
    ]
    for other in others:
        with bench.refused(MessageError, "other rows than before"):
            bench.store.ingest("s", 1, [other])
    with bench.refused(MessageError, "got 0 with"):
        bench.store.ingest("s", 1, [])


@pytest.mark.parametrize("count", [0, 1, 8191, 8192, 8193, 20_000])
def test_any_number_of_rows_is_stored(bench: Bench, count: int) -> None:
    rows = numbered(0, count)
    assert bench.store.ingest("s", 3, [batch_of(rows)] if count else []).row_count == count
    bench.turn()
    assert bench.bodies() == rows
    found = headers(bench)
    assert [one["chunk"] for one in found] == list(range(len(found)))
    assert [one["last"] for one in found] == [False] * (len(found) - 1) + [True]
    assert sum(one["rows"] for one in found) == found[-1]["rows_so_far"] == count
    assert bench.store.ingest("s", 3, [batch_of(rows)] if count else []).is_replay


def test_sources_versions_and_topics_are_independent(bench: Bench) -> None:
    for version in (5, 0, 1, 3, 2):
        bench.store.ingest("a", version, [batch_of([b"a%d" % version])])
    bench.store.ingest("ü/b", 0, [batch_of([b"b"], topic="u"), batch_of([b"c"], topic="v")])
    for _ in range(2):
        found = bench.store.ingested("a")
        assert found.ranges == (range(4), range(5, 6))
        assert (found.contiguous, len(found), list(found)) == (3, 5, [0, 1, 2, 3, 5])
        assert bench.store.ingested("ü/b").ranges == (range(1),)
        assert bench.store.ingested("c") == type(found)("c", (), {})
        assert bench.store.ingested("c").contiguous is None
        bench.reopen()
    bench.turn()
    assert bench.bodies("u") + bench.bodies("v") == [b"b", b"c"]


@pytest.mark.usefixtures("chunks_of_five")
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize("how", ["goes on", "reopens", "is killed"])
def test_interrupted_version_continues_after_the_stored_rows(
    bench: Bench, nth: int, how: str
) -> None:
    rows = numbered(0, 17)
    stop_at("ingest_chunk_appended", nth)
    with pytest.raises(StopError):
        bench.store.ingest("s", 0, [batch_of(rows[:9]), batch_of(rows[9:])])
    failpoints.hook = None
    if how == "reopens":
        bench.reopen()
    elif how == "is killed":
        copy = bench.root.with_name("copy")
        shutil.copytree(bench.root, copy)
        abandon(bench.store)
        bench.root = copy
        bench.open()
    there = [5, 9, 14, 17][nth - 1]
    if how != "goes on":  # the ledger did not record the chunk; the next call finds it
        found = bench.store.ingested("s")
        assert (found.ranges == ()) == (there < 17)
        assert (found.partial or {}).get(0, 17) == there
    assert bench.store.ingest("s", 0, [batch_of(rows)]) == ("s", 0, 17, there == 17)
    bench.turn()
    assert bench.bodies() == rows


@pytest.mark.usefixtures("chunks_of_five")
def test_continued_version_must_have_the_stored_rows(bench: Bench) -> None:
    rows = numbered(0, 17)
    stop_at("ingest_chunk_appended", 2)
    with pytest.raises(StopError):
        bench.store.ingest("s", 0, [batch_of(rows)])
    failpoints.hook = None
    bench.reopen()
    for other in ([b"x", *rows[1:]], rows[:9]):
        with bench.refused(MessageError, "other rows than before: wanted 10 rows"):
            bench.store.ingest("s", 0, [batch_of(other)])
    # The rows after the stored ones are not known yet, so only the first rows must be equal.
    assert bench.store.ingest("s", 0, [batch_of(rows[:12])]) == ("s", 0, 12, False)


@pytest.mark.usefixtures("chunks_of_five")
def test_version_continues_when_the_clock_was_set_back(bench: Bench) -> None:
    rows, far_ms = numbered(0, 17), bench.config.delay_ms_max + bench.clock.now_ms
    stop_at("ingest_chunk_appended", 2)
    with pytest.raises(StopError):
        bench.store.ingest("s", 0, [batch_of(rows, [far_ms] * 17)])
    failpoints.hook = None
    bench.reopen()
    bench.turn(-1000)
    with pytest.raises(MessageError, match=f"7 are not: {far_ms} at 10"):  # none that is there
        bench.store.ingest("s", 0, [batch_of(rows, [far_ms] * 17)])
    due = [far_ms] * 10 + [far_ms - 1000] * 7
    with pytest.raises(MessageError, match=f"7 are not: {far_ms} at 1,"):
        bench.store.ingest("s", 0, [batch_of(rows[:9], due[:9]), batch_of(rows[9:], [far_ms] * 8)])
    batches = [batch_of(rows[:9], due[:9]), batch_of(rows[9:], due[9:])]
    assert bench.store.ingest("s", 0, batches) == ("s", 0, 17, False)
    assert bench.store.stats()["pending_messages"] == 17


@pytest.mark.usefixtures("chunks_of_five")
def test_error_in_the_batches_leaves_whole_chunks(bench: Bench) -> None:
    rows = numbered(0, 12)

    def broken() -> Any:
        yield batch_of(rows[:6])
        yield batch_of(rows[6:7])
        raise OSError("no more of these")

    with pytest.raises(OSError, match="no more"):
        bench.store.ingest("s", 0, broken())
    assert bench.store.ingested("s").partial == {0: 6}
    assert bench.store.ingest("s", 0, [batch_of(rows)]).row_count == 12
    bench.turn()
    assert bench.bodies() == rows


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (("", 0, []), "source: wanted 1 to 255 bytes"),
        (("x" * 256, 0, []), "source"),
        (("ü" * 128, 0, []), "source"),
        (("\ud800", 0, []), "source"),
        ((None, 0, []), "source: wanted text"),
        (("s", -1, []), "version"),
        (("s", 2**63, []), "version"),
        (("s", True, []), "version"),
        (("s", "1", []), "version"),
        (("s", 0, [b"abc"]), "batches: wanted RowBatch, got bytes"),
        (("s", 0, batch_of([b"a"])), "batches: wanted several of RowBatch, got one RowBatch"),
        (("s", 0, None), "batches: wanted several of RowBatch, got one NoneType"),
        (("s", 0, [batch_of([b"a"], topic="a/b")]), "topic"),
        (("s", 0, [batch_of([b"a"], topic=INGEST_TOPIC)]), "reserved for the engine"),
        (("s", 0, [batch_of([b"a"], [1, 2])]), "due_ms: wanted 1 whole"),
        (("s", 0, [batch_of([b"a"], [NOW + 50 * 31_557_600_000])]), "due times of at most"),
        (("s", 0, [RowBatch("t", b"ab", [0, 1, 3], [0, 0])]), "bodies"),
        (("s", 0, [RowBatch("t", b"ab", [0, 2], [0.5])]), "due_ms"),
        (("s", 0, [RowBatch("t", "ab", [0, 2], [0])]), "bodies: wanted bytes"),
        (("s", 0, [RowBatch("t", b"ab", [0, 2], [0], keys=b"a")]), "keys: wanted texts and"),
        (("s", 0, [batch_of([b"a", b"b"], keys=[b"a"])]), "keys: wanted 3 whole offsets"),
        (("s", 0, [batch_of([b"a", b"b"], keys=[b"a", b"b\x02"])]), "control characters, row 1"),
        (("s", 0, [batch_of([b"a", b"b"], tags=[b"\xc3", b"\xa4"])]), "whole characters.*row 1"),
        (("s", 0, [batch_of([b"a", b"b"], tags=[b"a", b"\xff"])]), "tags: wanted UTF-8.*row 1"),
        (("s", 0, [batch_of([b"a", b"b"], ids=[b"", b"a b"])]), "no spaces, row 1"),
        (("s", 0, [batch_of([b"a", b"b"], ids=[b"", b"x" * 129])]), "got 129 in row 1"),
        (("s", 0, [batch_of([b"a"], properties={"TAGS": "x"})]), "reserved"),
        (("s", 0, [batch_of([b"a"], keys=[b"k" * 32_767])]), "properties: wanted at most"),
    ],
)
def test_invalid_batch_is_rejected_as_a_whole(bench: Bench, args: Any, match: str) -> None:
    with bench.refused(MessageError, match):
        bench.store.ingest(*args)
    assert not bench.store.ingested("s").partial


def test_ids_and_sources_of_the_largest_size_are_stored(bench: Bench) -> None:
    bench.store.ingest("ü" * 127, 2**63 - 1, [batch_of([b"a"], [NOW + 1], ids=[b"x" * 128])])
    (waits,) = bench.store.pending()
    assert waits.message_id == "x" * 128
    assert 2**63 - 1 in bench.store.ingested("ü" * 127)
    assert bench.store.cancel(waits.handle) is CancelResult.CANCELLED


def test_largest_message_is_stored(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(commit_log_segment_bytes=64 * 1024))
    largest = None
    for size in range(61_000, 56_000, -1):
        try:
            bench.store.ingest("s", 0, [batch_of([b"x" * size] * 2, [NOW + 5, 0])])
        except MessageError as error:
            assert "message: wanted at most" in str(error)  # noqa: PT017 - which one is it
            assert bench.store.stats()["log_end_bytes"] == 0
        else:
            largest = size
            break
    assert largest is not None
    bench.turn(5)
    assert [len(body) for body in bench.bodies()] == [largest, largest]
    bench.close()


def test_version_continues_after_a_full_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [b"%06d" % k + b"x" * 1000 for k in range(4000)]
    reserve = inside(bench.store).log.segments.reserve

    def full(offset: int) -> int:
        if offset > 3 << 20:
            raise FullError("no space", where="test")
        return reserve(offset)

    monkeypatch.setattr(inside(bench.store).log.segments, "reserve", full)
    with pytest.raises(FullError):
        bench.store.ingest("s", 0, [batch_of(rows)])
    there = (bench.store.ingested("s").partial or {})[0]
    assert 0 < there < 4000
    monkeypatch.undo()
    assert bench.store.ingest("s", 0, [batch_of(rows)]) == ("s", 0, 4000, False)
    bench.turn()
    assert bench.bodies() == rows
