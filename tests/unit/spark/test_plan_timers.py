"""Planning a read of the table `timers`: the tasks have each pending message once."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.arrow_rows import rows_of
from tests.support.bench import Bench, small
from tests.support.pending_table import timers_of
from timerstore._engine.snapshot.columns import pending_set
from timerstore._engine.snapshot.columns.arrow_batches import read_part
from timerstore._engine.snapshot.columns.schemas import TABLES
from timerstore.spark import latest_offsets, plan
from timerstore.spark.read_options import parse

COLUMNS = tuple(column.name for column in TABLES["timers"])
Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A store with delivered and pending messages in several segments, some on levels."""
    root = tmp_path_factory.mktemp("timers") / "s"
    bench = Bench(root, small(commit_log_segment_bytes=256 * 1024))
    for n in range(1500):
        bench.store.put(f"t{n % 2}", bytes(200), delay=2 + n * 2)
        if n % 100 == 0:
            bench.store.put("t0", b"level", level=9 + n // 150)
            bench.turn(10)
    bench.turn(600_000)
    bench.store.flush()
    yield bench
    bench.close()


def tasks(root: Path, **given: Any) -> list[plan.Task]:
    options = parse(
        {"path": str(root), "table": "timers"} | {key: str(value) for key, value in given.items()}
    )
    return plan.plan(options, options.wanted(COLUMNS, times_as_long=True)).tasks


def read(found: list[plan.Task]) -> list[Row]:
    return sorted(
        (row["deliver_at"], row["topic"], row["msg_id"].decode(), row["level"] is None)
        for task in found
        for row in rows_of(read_part(task.part, task.wanted, task.facts))
    )


def test_tasks_have_each_pending_message_once(bench: Bench) -> None:
    wanted = timers_of(bench.store)
    assert {is_timer for *_, is_timer in wanted} == {True, False}
    for size in ("64k", "100k", "1g"):
        assert read(tasks(bench.root, max_partition_bytes=size)) == wanted
    found = tasks(bench.root, max_partition_bytes="64k")
    assert len(found) > 3
    assert found[0].part.begin > 0, "the delivered messages at the begin of the log are not read"


@pytest.mark.parametrize("lost", ["consumequeue", "timerstore/state", "timerstore/counts"])
def test_tasks_do_not_depend_on_derived_files(bench: Bench, tmp_path: Path, lost: str) -> None:
    wanted = timers_of(bench.store)
    copy = tmp_path / "copy"
    shutil.copytree(bench.root, copy)
    if (copy / lost).is_dir():
        shutil.rmtree(copy / lost)
    else:
        (copy / lost).unlink()
    assert read(tasks(copy, max_partition_bytes="64k")) == wanted


def test_plan_at_a_watermark_does_not_fold_the_log(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = timers_of(bench.store)
    monkeypatch.delattr(pending_set, "scan_all")
    assert read(tasks(bench.root)) == wanted
    assert read(tasks(bench.root, as_of=latest_offsets(bench.root))) == wanted


def test_bounds_apply_to_own_due_times_and_topics(bench: Bench) -> None:
    wanted = timers_of(bench.store)
    begin, end = wanted[len(wanted) // 3][0], wanted[len(wanted) // 2][0]
    assert read(tasks(bench.root, deliver_from_ms=begin, deliver_to_ms=end)) == [
        row for row in wanted if begin <= row[0] < end
    ]
    assert read(tasks(bench.root, topics="t1,none")) == [row for row in wanted if row[1] == "t1"]
    assert read(tasks(bench.root, topics="rmq_sys_wheel_timer")) == []
