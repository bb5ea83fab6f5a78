"""Simulate the year of demo_flights: put, cancel and deliver reminders with a manual clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import audit, flights
from timerstore import CancelResult, TimerStore
from timerstore.testing import ManualClock, Stepper

TOPIC = "flight-reminder"
PULL_COUNT_MAX = 10_000
AFTERWARDS_MS = 10 * 24 * flights.HOUR_MS

SERVICES = (
    "dispatch",
    "enqueue_get",
    "enqueue_put",
    "dequeue_get",
    "dequeue_get_message",
    "dequeue_put",
    "dispatch",
)
"""All services but flush, in the order in which a message passes them; dispatch twice."""

PULL_MINUTES = 1440

Int64 = NDArray[np.int64]


class Plan(NamedTuple):
    """The clock stops of the year, with the rows in the order of puts and of cancels."""

    stops_ms: list[int]
    put_rows: Int64
    put_ends: list[int]
    """The number of entries of put_rows put after each stop."""
    cancel_rows: Int64
    cancel_ends: list[int]
    due_counts: Int64
    """Reminders due by each stop, without cancelled flights, for the progress bar."""


def make_plan(data: flights.Flights, stop_minutes: int) -> Plan:
    """Assign every event to a stop: its time, rounded up to a multiple of stop_minutes."""
    width = stop_minutes * flights.MINUTE_MS

    def stop_of(times: Int64) -> Int64:
        return -(-times // width) * width

    off = np.flatnonzero(data.called_off)
    puts = stop_of(data.put_ms)
    cancels = stop_of(data.due_ms[off] - flights.CANCEL_MS)
    dues = stop_of(data.due_ms)
    stops = np.unique(np.concatenate([puts, cancels, dues]))
    put_order = np.argsort(puts, kind="stable")
    cancel_order = np.argsort(cancels, kind="stable")
    kept_dues = np.sort(dues[~data.called_off])
    return Plan(
        stops_ms=stops.tolist(),
        put_rows=put_order.astype(np.int64),
        put_ends=np.searchsorted(puts[put_order], stops, side="right").tolist(),
        cancel_rows=off[cancel_order].astype(np.int64),
        cancel_ends=np.searchsorted(cancels[cancel_order], stops, side="right").tolist(),
        due_counts=np.searchsorted(kept_dues, stops, side="right").astype(np.int64),
    )


class Reader:
    """Pull messages in order, and keep the data for an audit."""

    def __init__(self, expected: audit.Expected) -> None:
        self.pulled = audit.Pulled()
        self.next_offset = 0
        self._expected = expected

    def drain(self, store: TimerStore, now_ms: int) -> int:
        """Pull all available messages. Return their number."""
        before = self.pulled.count
        while TOPIC in store.topics():
            batch = store.pull_batch(TOPIC, 0, self.next_offset, max_count=PULL_COUNT_MAX)
            if not len(batch):
                break
            bodies = np.frombuffer(batch.bodies, dtype=np.uint8)
            offsets = np.asarray(batch.body_offsets, dtype=np.int64)
            columns = (flights.ROW_BEGIN, flights.ROW_END)
            rows = audit.digits(bodies, offsets[:-1], columns)
            altered = self._expected.altered(rows, bodies, offsets)
            self.pulled.add(rows, batch.delivered_ms, now_ms, altered)
            self.next_offset = int(batch.next_offset)
        return self.pulled.count - before


class Played(NamedTuple):
    """The result of a simulated year."""

    scheduled: audit.Bools
    cancelled: audit.Bools
    refused: dict[str, int]
    """The number of cancels with another answer than CANCELLED, by answer."""
    stops: int
    seconds: float
    end_ms: int


def play(
    store: TimerStore,
    clock: ManualClock,
    data: flights.Flights,
    plan: Plan,
    reader: Reader,
    *,
    pull_minutes: int,
    progress: Callable[[int], None],
) -> Played:
    """Simulate the year: set the clock to each stop, cancel, put, and run the services."""
    stepper = Stepper(store)
    pull_ms = pull_minutes * flights.MINUTE_MS
    bodies = [data.bodies[row] for row in plan.put_rows]
    due_ms = data.due_ms[plan.put_rows]
    off = data.called_off[plan.put_rows]
    off_places = [*np.flatnonzero(off).tolist(), len(off)]
    scheduled = np.zeros(len(bodies), dtype=np.bool_)
    cancelled = np.zeros(len(bodies), dtype=np.bool_)
    refused: dict[str, int] = {}
    handles: dict[int, str] = {}
    put_rows, cancel_rows = plan.put_rows.tolist(), plan.cancel_rows.tolist()
    put_done = cancel_done = next_off = 0
    next_pull_ms = plan.stops_ms[0] + pull_ms
    began = time.perf_counter()
    for stop, now_ms in enumerate(plan.stops_ms):
        clock.set(now_ms)
        end = plan.cancel_ends[stop]
        while cancel_done < end:
            row = cancel_rows[cancel_done]
            answer = store.cancel(handles.pop(row))
            if answer == CancelResult.CANCELLED:
                cancelled[row] = True
            else:
                refused[str(answer)] = refused.get(str(answer), 0) + 1
            cancel_done += 1
        end = plan.put_ends[stop]
        if put_done < end:
            batch = store.put_many(TOPIC, bodies[put_done:end], deliver_ms=due_ms[put_done:end])
            while off_places[next_off] < end:
                place = off_places[next_off]
                handles[put_rows[place]] = batch[place - put_done].handle
                next_off += 1
            scheduled[plan.put_rows[put_done : put_done + len(batch)]] = True
            put_done = end
        work(stepper)
        if now_ms >= next_pull_ms:
            stepper.settle()
            reader.drain(store, now_ms)
            next_pull_ms = now_ms + pull_ms
            progress(now_ms)
    end_ms = plan.stops_ms[-1]
    for now_ms in (end_ms, end_ms + AFTERWARDS_MS):
        clock.set(now_ms)
        stepper.settle()
        reader.drain(store, now_ms)
    progress(end_ms)
    seconds = time.perf_counter() - began
    stops = len(plan.stops_ms)
    return Played(scheduled, cancelled, refused, stops, seconds, end_ms + AFTERWARDS_MS)


def work(stepper: Stepper) -> None:
    """Step all services but flush until a whole round moves no message.

    Dispatch is first, so the other services of a round see its results.
    """
    busy = True
    while busy:
        busy = False
        for name in SERVICES:
            if stepper.step(name) and name != "dispatch":
                busy = True
