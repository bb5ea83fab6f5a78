"""The table of ingested versions, compared with the store's own list."""

import contextlib
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.arrow_rows import read_rows
from tests.support.bench import NOW, Bench
from tests.support.inside import INGEST_CHUNK_ROWS, ledger_of_part
from timerstore._engine.format import ledger_json
from timerstore._engine.format.ledger_json import Begun, Done, SourceState
from timerstore._engine.format.store_paths import INGEST_TOPIC
from timerstore._engine.snapshot.columns.table_scan import Bounds
from timerstore._engine.snapshot.position import take
from timerstore._engine.write.row_batch import RowBatch


@pytest.fixture(autouse=True)
def chunks_of_a_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*INGEST_CHUNK_ROWS, 100)


def batch(count: int, size: int = 200, first: int = 0) -> RowBatch:
    bodies = b"".join(b"%0*d" % (size, first + n) for n in range(count))
    return RowBatch("t", bodies, np.arange(count + 1) * size, np.zeros(count, np.int64))


def told(bench: Bench, root: Path | None = None, **how: Any) -> list[tuple[Any, ...]]:
    rows = read_rows(root if root is not None else bench.root, "transactions", **how)
    return [(r["source"], r["version"], r["rows"], r["applied_at"]) for r in rows]


def test_transactions_have_each_version_once(bench: Bench) -> None:
    for version, count in ((0, 3), (1, 400), (7, 0)):
        bench.store.ingest("orders", version, [batch(count)])
        bench.clock.advance(1000)
    bench.store.ingest("mail", 0, [batch(5)])
    bench.store.ingest("orders", 1, [batch(400)])  # a replay
    bench.store.flush()
    wanted = [
        ("orders", 0, 3, NOW),
        ("orders", 1, 400, NOW + 1000),
        ("orders", 7, 0, NOW + 2000),
        ("mail", 0, 5, NOW + 3000),
    ]
    assert told(bench) == wanted
    rows = read_rows(bench.root, "transactions")
    log_bytes = sum(row["bytes"] for row in rows)  # the log has more, by the headers alone
    messages = read_rows(bench.root, columns=("topic", "log_offset"), with_ledger=True)
    headers = [row for row in messages if row["topic"] == INGEST_TOPIC]
    assert len(headers) > 4  # the large one took several chunks
    assert 0 < log_bytes < take(bench.root).log_end
    assert (
        told(bench, bounds=Bounds(stored_from_ms=NOW + 1000, stored_to_ms=NOW + 3000))
        == (wanted[1:3])
    )


def test_transactions_leave_out_incomplete_version(bench: Bench) -> None:
    def broken() -> Any:
        yield batch(400)
        yield batch(3, first=400)  # one batch is read ahead
        raise InterruptedError

    with contextlib.suppress(InterruptedError):
        bench.store.ingest("orders", 0, broken())
    bench.store.flush()
    assert bench.store.ingested("orders").partial
    assert told(bench) == []
    bench.store.ingest("orders", 0, [batch(400), batch(5, first=400)])
    bench.store.flush()
    assert told(bench) == [("orders", 0, 405, NOW)]


def test_transactions_of_snapshot_stay_when_store_goes_on(bench: Bench) -> None:
    bench.store.ingest("orders", 0, [batch(3)])
    bench.store.flush()
    then = take(bench.root)
    bench.store.ingest("orders", 1, [batch(3)])
    bench.store.flush()
    assert [row[1] for row in told(bench, snapshot=then)] == [0]
    assert [row[1] for row in told(bench)] == [0, 1]


def test_transaction_known_from_state_has_nulls(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention removed the headers, and a record of the source's state has their contents."""
    state = SourceState("orders", ((0, 3), (5, 6)), (Done(5, 9, 1),), (Begun(6, 1, 4, 2),))
    bench.store.ingest("orders", 6, [batch(4)])
    bench.store.flush()
    text = ledger_json.write_state(state)
    from timerstore._engine.snapshot.columns import table_scan as room

    found = room.Transaction
    records = [(ledger_json.read(text), NOW)]
    ledger = ledger_of_part()
    original = ledger.value
    with monkeypatch.context() as patched:
        patched.setattr(*ledger, lambda part: iter([*records, *original(part)]))
        rows = read_rows(bench.root, "transactions")
    got = [found(r["source"], r["version"], r["rows"], r["bytes"], r["applied_at"]) for r in rows]
    # Version 6: its first chunk is in the state, and comes again; then it is known already.
    assert [one[:3] for one in got] == [
        ("orders", 5, 9),
        ("orders", 0, None),
        ("orders", 1, None),
        ("orders", 2, None),
    ]
    assert all(one.bytes is None and one.applied_ms is None for one in got)


def test_transactions_are_empty_without_ingest(bench: Bench) -> None:
    bench.store.put("t", b"x")
    bench.store.flush()
    assert told(bench) == []


@pytest.mark.parametrize("what", ["gone", "behind"])
def test_transactions_are_read_from_log_without_queue(
    bench: Bench, tmp_path: Path, what: str
) -> None:
    for version in range(5):
        bench.store.ingest("orders", version, [batch(3)])
    bench.store.flush()
    wanted = told(bench)
    assert len(wanted) == 5
    copy = tmp_path / "copy"
    shutil.copytree(bench.root, copy)
    for path in (copy / "consumequeue").rglob("0*"):
        if path.is_file() and what == "behind":
            raw = path.read_bytes()
            used = len(raw.rstrip(b"\0")) // 20 * 20
            path.write_bytes(raw[: used // 40 * 20].ljust(len(raw), b"\0"))
    if what == "gone":
        shutil.rmtree(copy / "consumequeue" / INGEST_TOPIC)
    assert told(bench, root=copy) == wanted


def test_messages_leave_out_records_of_ledger_unless_asked(bench: Bench) -> None:
    bench.store.ingest("spark", 0, [batch(30)])
    bench.store.flush()

    def topics(**how: Any) -> Counter[str]:
        return Counter(row["topic"] for row in read_rows(bench.root, columns=("topic",), **how))

    plain, whole = topics(), topics(with_ledger=True)
    assert set(whole) - set(plain) == {INGEST_TOPIC}
    assert whole - Counter({INGEST_TOPIC: whole[INGEST_TOPIC]}) == plain
    named = topics(bounds=Bounds(topics=(INGEST_TOPIC,)))
    assert named == Counter({INGEST_TOPIC: whole[INGEST_TOPIC]})
