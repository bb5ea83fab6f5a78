"""The state table: two bits an id, what a fold changes, what a checkpoint copies."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.record_kind import RecordKind
from timerstore._engine.base.native import ffi, lib
from timerstore._engine.format.state_sector import CHUNK_IDS
from timerstore._engine.log.scanned_records import SCAN_DTYPE
from timerstore._engine.log.timer_states import BLOCK_IDS, TimerStates
from timerstore._engine.storage.disk import Disk
from timerstore._engine.timer.timer_recovery import pending_ids

OURS, STRANGER = 7, 9
ID = st.one_of(
    st.integers(0, 12), st.sampled_from([CHUNK_IDS - 1, CHUNK_IDS, BLOCK_IDS - 1, BLOCK_IDS])
)


@given(st.lists(st.tuples(ID, st.integers(0, 3)), max_size=60))
def test_table_agrees_with_a_dict(changes: list[tuple[int, int]]) -> None:
    states, model = TimerStates(), dict[int, int]()
    states.ensure(BLOCK_IDS)
    for timer_id, state in changes:
        assert lib.ts_state_set(states.native, timer_id, state) == model.get(timer_id, 0)
        model[timer_id] = state
    for timer_id in (*model, 13, BLOCK_IDS + 1):
        assert states.get(timer_id) == model.get(timer_id, 0)
    waiting = sorted(i for i, state in model.items() if state == lib.TS_PENDING)
    assert pending_ids(states).tolist() == waiting
    assert states.native.pending == len(waiting)


def test_ids_without_memory_have_no_state_and_cannot_get_one() -> None:
    states = TimerStates()
    assert states.get(0) == states.get(-1) == lib.TS_NONE
    assert lib.ts_state_set(states.native, 0, lib.TS_PENDING) == lib.TS_NEED_STATES
    states.ensure(0)
    assert states.native.end == BLOCK_IDS
    assert lib.ts_state_set(states.native, BLOCK_IDS, lib.TS_PENDING) == lib.TS_NEED_STATES
    assert states.get(BLOCK_IDS) == lib.TS_NONE


def test_dirty_chunks_are_copied_once() -> None:
    states = TimerStates()
    states.ensure(BLOCK_IDS)
    for timer_id in (0, CHUNK_IDS - 1, CHUNK_IDS, BLOCK_IDS):
        lib.ts_state_set(states.native, timer_id, lib.TS_DELIVERED)
    dirty = states.copy_dirty()
    assert dirty.chunks.tolist() == [0, 1, BLOCK_IDS // CHUNK_IDS]
    assert dirty.payloads[0][0] == lib.TS_DELIVERED
    assert dirty.payloads[0][-1] == lib.TS_DELIVERED << 6
    assert not len(states.copy_dirty().chunks)
    states.mark_dirty(dirty)
    assert states.copy_dirty().chunks.tolist() == dirty.chunks.tolist()


@given(st.lists(st.lists(st.tuples(ID, st.integers(1, 3)), max_size=8), min_size=1, max_size=6))
def test_side_file_gives_the_table_of_its_watermark(
    rounds: list[list[tuple[int, int]]],
) -> None:
    """Each round is a checkpoint. The last one was not completed, so the previous one counts."""
    with tempfile.TemporaryDirectory() as folder:
        path, disk = Path(folder) / "state", Disk()
        states = TimerStates()
        states.ensure(BLOCK_IDS)
        states.open_file(disk, path, is_new=True)
        model: dict[int, int] = {}
        marks = [(0, 0, 0, dict(model))]
        for log_end, changes in enumerate(rounds, 1):
            if log_end > 1:
                states.completed()  # what the round before wrote
            for timer_id, state in changes:
                lib.ts_state_set(states.native, timer_id, state)
                model[timer_id] = state
            count, digest = states.write(states.copy_dirty(), np.empty(0, np.int64), log_end)
            marks.append((count, digest, log_end, dict(model)))
        for count, digest, log_end, wanted in marks[-2:]:
            found = TimerStates()
            found.open_file(disk, path, is_new=False)
            assert found.read(count, digest, log_end)
            assert {i: found.get(i) for i in wanted} == wanted
            assert found.native.pending == sum(s == lib.TS_PENDING for s in wanted.values())
        found = TimerStates()
        found.open_file(disk, path, is_new=False)
        assert not found.read(marks[-1][0], marks[-1][1] + 1, marks[-1][2])


@pytest.fixture
def route() -> object:
    return ffi.new("ts_route *")


def fold(states: TimerStates, route: object, rows: list[dict[str, int]]) -> None:
    scan = np.zeros(len(rows), SCAN_DTYPE)
    for record, row in zip(scan, rows, strict=True):
        for name, value in {"store_id": OURS, **row}.items():
            record[name] = value
    need = ffi.new("int64_t *")
    routes = ffi.new("ts_route *[]", [route])
    done = 0
    while done < len(scan):
        part = np.ascontiguousarray(scan[done:])
        records = ffi.from_buffer("ts_scanned[]", part)
        done += lib.ts_states_fold(states.native, routes, records, len(part), OURS, need)
        if done < len(scan):
            states.ensure(need[0])


def timer(timer_id: int, queue_offset: int) -> dict[str, int]:
    return {"kind": RecordKind.TIMER, "timer_id": timer_id, "queue_offset": queue_offset}


def test_fold_changes_a_waiting_id_to_handed_or_cancelled_only(route: object) -> None:
    states = TimerStates()
    rows = [timer(n, n) for n in range(4)]
    rows.append({"kind": RecordKind.DELIVERED, "timer_id": 1, "queue_offset": 0})
    rows.append({"kind": RecordKind.DELETE, "timer_id": 2, "queue_offset": 4})
    rows.append(timer(3, 5))  # it rolled
    rows.append({"kind": RecordKind.DELETE, "timer_id": 1, "queue_offset": 6})  # too late
    rows.append({"kind": RecordKind.DELIVERED, "timer_id": 2, "queue_offset": 1})  # as a broker may
    fold(states, route, rows)
    assert [states.get(n) for n in range(7)] == [1, 2, 3, 1, 0, 0, 0]
    assert route.pending == 2  # type: ignore[attr-defined]
    assert states.native.pending == 2


def test_fold_ignores_foreign_ids(route: object) -> None:
    states = TimerStates()
    fold(
        states,
        route,
        [
            timer(0, 0),
            {"kind": RecordKind.DELIVERED, "timer_id": 0, "queue_offset": 0, "store_id": STRANGER},
            {"kind": RecordKind.DELETE, "timer_id": 0, "queue_offset": 1, "store_id": STRANGER},
            {"kind": RecordKind.ORDINARY, "timer_id": -1, "queue_offset": 0},
        ],
    )
    assert states.get(0) == lib.TS_PENDING


def test_fold_reports_missing_memory_before_it_changes_a_state(route: object) -> None:
    states = TimerStates()
    fold(states, route, [timer(0, 0), timer(BLOCK_IDS, BLOCK_IDS)])
    assert (states.get(0), states.get(BLOCK_IDS)) == (lib.TS_PENDING, lib.TS_PENDING)
    assert states.native.end == 2 * BLOCK_IDS
