"""The peer timerstore, with its services in threads as in production, or stepped by the caller.

The threads sync every half second, and before a consumer sees a message.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import timerstore
from benchmarks import harness
from benchmarks.harness import START_MS, Work, need
from benchmarks.peers import contract
from benchmarks.peers.contract import HORIZON_MS, Every, Lateness, Pace, Peer, Settings, Times
from benchmarks.turned import TurnedClock
from timerstore import StoreConfig, TimerStore
from timerstore.testing import Stepper

TOPIC = "bench"
WAIT_S = 10.0  # for messages in delivery; far more than needed
SYNC_S = 0.5


def work_it(work: Work, root: Path, settings: Settings, *, form: str, threads: bool) -> Times:
    """Schedule all, wait until the wheel has it, turn the clock, consume all."""
    small = harness.small_config(flush="async")
    config = small if settings.smoke else StoreConfig(flush="async")
    batch = settings.batch
    cuts = [(at, min(at + batch, work.n)) for at in range(0, work.n, batch)]
    parts: list[Any] = [(work.part if form == "buffer" else work.bodies)(*cut) for cut in cuts]
    clock = TurnedClock(START_MS)
    empty = harness.memory(root)
    with timerstore.open(root, config, clock=clock, threads=threads) as store:
        settle = partial(wait_enqueued, store) if threads else Stepper(store).settle
        sync = Every(SYNC_S, _leave_it if threads else store.flush)
        laps = harness.Stopwatch()
        began = time.perf_counter()
        for (begin, end), part in zip(cuts, parts, strict=True):
            with laps:
                store.put_many(TOPIC, part, deliver_ms=work.due_ms[begin:end])
                sync.tick()
        settle()
        scheduled = time.perf_counter()
        disk = harness.disk(root).allocated_bytes
        ram = harness.memory(root).beyond_bytes - empty.beyond_bytes
        resumed = time.perf_counter()
        clock.set(START_MS + HORIZON_MS)
        if not threads:
            settle()
        found = _consume(store, work.n, batch, sync)
        ended = time.perf_counter()
    return Times(
        scheduled - began, ended - resumed, laps.laps_ns, b"".join(found), disk, max(0, ram)
    )


def _leave_it() -> None:
    """Its own thread syncs as often; `flush` completes a checkpoint, too, which no peer does."""


def _consume(store: TimerStore, count: int, batch: int, sync: Every) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while len(found) < count:
        pulled = store.pull_batch(TOPIC, 0, offset, max_count=batch, wait=WAIT_S)
        need(len(pulled) > 0, f"{count - len(found)} of {count} did not come out")
        found += pulled.body_list()
        offset = int(pulled.next_offset)
        sync.tick()
    return found


def wait_enqueued(store: TimerStore) -> None:
    """Until the wheel has all that was put."""
    while store.stats()["enqueue_lag_messages"]:
        time.sleep(0.001)


def paced(pace: Pace, root: Path, *, visibility: Any = "durable") -> Lateness:
    """A thread puts, five milliseconds' worth at a time; this one pulls; ms late."""
    total = int(pace.rate * pace.seconds)
    first, last = pace.ahead_ms
    work = harness.make_work(total, pace.body, last - first + 1, start_ms=first - 1)
    due_ms = np.zeros(total, dtype=np.int64)
    rows, seen = [due_ms[:0]], [np.zeros(0)]
    config = StoreConfig(flush="async", visibility=visibility)
    with timerstore.open(root, config) as store:
        store.put(TOPIC, b"makes the topic")
        offset = _next(store)
        producer = threading.Thread(target=_produce, args=(store, pace, work, due_ms))
        producer.start()
        count = 0
        while count < total:
            pulled = store.pull_batch(TOPIC, 0, offset, wait=WAIT_S + pace.ahead_ms[1] / 1000)
            now_ms = time.time() * 1000
            need(len(pulled) > 0, f"{total - count} of {total} did not come out in time")
            seen.append(np.full(len(pulled), now_ms))
            rows.append(harness.rows_of(pulled.bodies, pace.body))
            offset = int(pulled.next_offset)
            count += len(pulled)
        producer.join()
    came = np.concatenate(rows)
    contract.each_once(came, total)
    return np.concatenate(seen) - due_ms[came]


def _next(store: TimerStore) -> int:
    pulled = store.pull_batch(TOPIC, 0, 0, wait=WAIT_S)
    return int(pulled.next_offset)


def _produce(store: TimerStore, pace: Pace, work: Work, due_ms: harness.Int64) -> None:
    """The work's due times say how many ms after its put each is due."""
    began, put = time.time(), 0
    while put < work.n:
        now = time.time()
        end = min(work.n, int((now - began) * pace.rate))
        if end > put:
            due_ms[put:end] = work.due_ms[put:end] + int(now * 1000)
            store.put_many(TOPIC, work.part(put, end), deliver_ms=due_ms[put:end])
            put = end
        time.sleep(0.005)


SYNCED = "up to 0.5 s of puts is lost in a power cut; nothing that a consumer saw"
PEERS = (
    Peer(
        key="timerstore",
        name="timerstore",
        variant="lists of bodies",
        durability=SYNCED,
        tuned="flush=async; all else by default: CRCs, key index, visibility durable",
        work=partial(work_it, form="list", threads=True),
        missing=contract.nothing_missing,
        paced=paced,
    ),
    Peer(
        key="timerstore-buffer",
        name="timerstore",
        variant="one buffer a batch",
        durability=SYNCED,
        tuned="flush=async; all else by default: CRCs, key index, visibility durable",
        work=partial(work_it, form="buffer", threads=True),
        missing=contract.nothing_missing,
    ),
    Peer(
        key="timerstore-stepped",
        name="timerstore",
        variant="stepped in one thread",
        durability=SYNCED,
        tuned="flush=async; services stepped by the caller",
        work=partial(work_it, form="list", threads=False),
        missing=contract.nothing_missing,
    ),
)
