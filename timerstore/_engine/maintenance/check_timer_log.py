"""Check the timer log: every unit below its end, the blank after each segment's last unit, and in
an open store the zeros past the end.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.sorted_values import are_in
from timerstore._engine.format import timer_unit
from timerstore._engine.maintenance.check_log import LogResult
from timerstore._engine.maintenance.check_queues import add_not_zero
from timerstore._engine.maintenance.findings import first_byte, place
from timerstore._engine.maintenance.store_view import LiveStore, StoreView
from timerstore._engine.storage.segments import Segments
from timerstore.errors import TimerStoreError

_PIECE_UNITS = 16_384
_PIECE_BYTES = 1 << 20


def check_timer_log(view: StoreView, log: LogResult) -> None:
    """Check all files of the timer log."""
    segments, engine = view.timer_log, view.engine
    if segments is None:
        return
    end = _end_of(view)
    per_segment = timer_unit.units_per_segment(segments.segment_bytes)
    for number in segments.numbers:
        begin = number * segments.segment_bytes
        count = min(per_segment, max(0, end - begin) // timer_unit.UNIT_BYTES)
        try:
            for at in range(0, count, _PIECE_UNITS):
                first = begin + at * timer_unit.UNIT_BYTES
                _check_units(view, segments, first, min(_PIECE_UNITS, count - at), log)
            if begin + segments.segment_bytes <= end:
                _check_blank(view, segments, begin + per_segment * timer_unit.UNIT_BYTES)
        except TimerStoreError as error:
            where = place(segments, begin)
            view.findings.raised(f"timer log{view.derived()}", where, error)
    if engine is not None:
        _check_tail(view, engine, segments)


def _end_of(view: StoreView) -> int:
    if view.engine is None:
        return 0 if view.mark is None else view.mark.timer_log_end
    return 0 if view.wheel is None else view.wheel.timer_end.end


def _check_units(
    view: StoreView, segments: Segments, begin: int, count: int, log: LogResult
) -> None:
    data = segments.read(begin, count * timer_unit.UNIT_BYTES)
    units = timer_unit.read(data)
    view.findings.count("timer units", count)
    positions = begin + np.arange(count) * timer_unit.UNIT_BYTES
    precision_ms = view.config.precision_ms
    magic = units["magic"]
    checks = [
        ("size", "unit_size", units["unit_size"] != timer_unit.UNIT_BYTES, "52"),
        ("magic", "magic", (magic < 0) | (magic > timer_unit.MAGIC_MAX), "0 to 15"),
        (
            "previous position",
            "prev_pos",
            ~_is_before(units["prev_pos"], positions, segments),
            "-1, or a unit",
        ),
        (
            "write time",
            "write_ms",
            units["write_ms"] % precision_ms != 0,
            f"whole slots of {precision_ms} ms",
        ),
        (
            "delay",
            "delay_ms",
            units["delay_ms"] % precision_ms != 0,
            f"whole slots of {precision_ms} ms",
        ),
        ("checksum", "seal", ~timer_unit.are_valid(data, begin), "one that fits, or 0"),
    ]
    if view.record_offsets is not None and not log.is_damaged:
        offsets = units["log_offset"].astype(np.int64)
        is_lost = ~are_in(offsets, view.record_offsets) & (offsets >= view.log_begin)
        checks.append(("log offset", "log_offset", is_lost, "one of a record"))
    for what, name, wrong, wanted in checks:
        for at in np.flatnonzero(wrong).tolist():
            where = place(segments, int(positions[at]))
            view.findings.add(f"timer unit: {what}{view.derived()}", where, wanted, units[name][at])


def _is_before(prev: Any, positions: Any, segments: Segments) -> npt.NDArray[np.bool_]:
    size = segments.segment_bytes
    is_unit = (prev % size % timer_unit.UNIT_BYTES == 0) & (prev >= 0)  # it may be gone
    before: npt.NDArray[np.bool_] = (prev == -1) | (is_unit & (prev < positions))
    return before


def _check_blank(view: StoreView, segments: Segments, pos: int) -> None:
    left = segments.segment_bytes - pos % segments.segment_bytes
    data = segments.read(pos, timer_unit.BLANK_BYTES)
    if not timer_unit.is_blank(data, left):
        view.findings.add(
            f"timer log: no blank at the segment's end{view.derived()}",
            place(segments, pos),
            f"a blank over {left} bytes",
            data.hex(),
        )


def _check_tail(view: StoreView, engine: LiveStore, segments: Segments) -> None:
    offset = 0
    while True:
        with engine.wheel.lock:  # nothing is appended while it is held
            try:
                offset, data = segments.read_data(max(offset, engine.timer_log.end), _PIECE_BYTES)
            except TimerStoreError as error:
                view.findings.raised("timer log", place(segments, offset), error)
                return
        if not data:
            return
        if (at := first_byte(data)) is not None:
            add_not_zero(view.findings, "timer log", place(segments, offset + at), data[at:])
            return
        offset += len(data)
