"""The array that a scan returns, and how the fold checks it."""

import numpy as np
import pytest

from tests.support.record_kind import RecordKind
from tests.support.synthetic_log import SyntheticLog, timer_states
from timerstore._engine.log.fold import fold
from timerstore._engine.log.scanned_records import SCAN_DTYPE


def test_scan_dtype_has_the_layout_of_the_c_struct() -> None:
    assert SCAN_DTYPE.itemsize == 104
    assert SCAN_DTYPE.fields is not None
    offsets = {name: int(field[1]) for name, field in SCAN_DTYPE.fields.items()}
    assert offsets["identity"] == 48
    assert offsets["size"] == 64
    assert offsets["store_id"] == 72
    assert offsets["route"] == 92
    assert offsets["vouches"] == 96


def test_fold_of_an_empty_log_is_empty(log: SyntheticLog) -> None:
    found = fold(log.scan)
    assert timer_states(log) == ([], [], [])
    assert (found.store_id, found.store_ids, found.next_id) == (None, (), 0)
    assert (
        len(found.duplicate_rows) == len(found.ids_cancelled) == len(found.level_places_done) == 0
    )


def test_fold_rejects_another_dtype_and_another_order(log: SyntheticLog) -> None:
    with pytest.raises(ValueError, match="SCAN_DTYPE"):
        fold(np.zeros(2, [("log_offset", np.int64)]))
    log.timer("a")
    log.timer("b")
    with pytest.raises(ValueError, match="log order"):
        fold(log.scan[::-1])


def test_fold_ignores_ordinary_records(log: SyntheticLog) -> None:
    log.ordinary()
    log.timer("a")
    log.ordinary()
    assert timer_states(log) == ([0], [], [])


def test_kinds_equal_the_c_enum() -> None:
    native = pytest.importorskip("timerstore._engine.base.native")
    for kind in RecordKind:
        assert getattr(native.lib, f"TS_KIND_{kind.name}") == kind
