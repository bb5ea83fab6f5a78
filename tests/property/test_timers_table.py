"""Each pending message is one row of the table `timers`, with its own due time.

The store rolls, has a far wheel or not, delay levels, leases, cancels, retention and restarts. The
rows and any grouping of their due times equal `pending` and `histogram` of its owner.
"""

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.arrow_rows import read_rows
from tests.support.bench import Bench, small
from tests.support.pending_table import check_timers
from timerstore import NotPendingError, tables

pytest.importorskip("pyarrow")

WINDOW = 48  # slots of a second, after which a message rolls or goes to the far wheel
STEP = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 400_000)),
    st.tuples(st.just("put"), st.sampled_from([500, 1000, 1001, 47_000, 49_500, 90_000, 10**9])),
    st.tuples(st.just("level"), st.integers(1, 4)),
    st.tuples(st.just("lease"), st.integers(1, 100)),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("reschedule"), st.integers(0, 200_000)),
    st.tuples(st.just("turn"), st.sampled_from([0, 400, 1000, 20_000, 60_000])),
    st.tuples(st.just("body"), st.just(0)),
    st.tuples(st.just("reopen"), st.just(0)),
    st.tuples(st.just("check"), st.just(0)),
)


def apply(bench: Bench, step: tuple[str, int], receipts: list[Any]) -> None:
    what, value = step
    if what == "put":
        due_ms = bench.clock.now_ms + value
        receipts.append(bench.store.put(f"t{value % 2}", b"x", deliver_ms=due_ms))
    elif what == "level":
        bench.store.put("t0", b"level", level=value)
    elif what == "lease":
        bench.store.put("t0", b"now")
        bench.turn()
        bench.store.receive("t0", "g", lease=value)
    elif what == "cancel" and receipts:
        bench.store.cancel(receipts.pop(value % len(receipts)))
    elif what == "reschedule" and receipts:
        with suppress(NotPendingError):
            receipt = receipts.pop(value % len(receipts))
            due_ms = bench.clock.now_ms + value
            receipts.append(bench.store.reschedule(receipt, deliver_ms=due_ms))
    elif what == "turn":
        bench.turn(value)
    elif what == "body":
        for _ in range(8):
            bench.store.put("other", bytes(3000))
        bench.turn()
    elif what == "reopen":
        bench.reopen()
    elif what == "check":
        bench.store.flush()
        check_timers(bench.store, bench.root)


@given(
    far_wheel=st.sampled_from(["off", "shared", "own"]),
    retains=st.booleans(),
    steps=st.lists(STEP, max_size=25),
)
def test_timers_table_equals_pending_and_histogram(
    far_wheel: Any, retains: bool, steps: list[tuple[str, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = small(far_wheel=far_wheel, roll_window_slots=WINDOW)
        if retains:
            config = small(
                far_wheel=far_wheel,
                roll_window_slots=WINDOW,
                commit_log_segment_bytes=16 * 1024,
                retention_log_bytes=20 * 1024,
                queue_segment_bytes=200,
                staging_bytes=4096,
            )
        bench = Bench(Path(folder) / "s", config)
        receipts: list[Any] = []
        for step in steps:
            apply(bench, step, receipts)
        bench.store.flush()
        rows = check_timers(bench.store, bench.root)
        pinned = tables.take(bench.root)
        bench.store.put("t1", b"later", delay=5)
        bench.turn()
        bench.store.flush()
        if not retains:  # else the files of the pinned log may be gone
            # The state file belongs to a newer position now, so the log is folded.
            assert read_rows(bench.root, "timers", snapshot=pinned) == rows
        check_timers(bench.store, bench.root)
        bench.close()
