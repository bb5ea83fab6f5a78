"""The child process of demo_live: run a store, a producer and a consumer until it is killed."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np

import timerstore
from benchmarks.live_ledger import (
    ACKED,
    CANCEL_EVERY,
    CANCEL_INTENT,
    CANCELLED,
    GRACE_S,
    INTENT,
    LEDGER,
    OPENED,
    POLL_S,
    PULL_COUNT_MAX,
    PUT_EVERY_S,
    RECORD,
    REFUSED,
    SEEN,
    SEEN_TYPE,
    STORE,
    TOO_LATE,
    TOPIC,
    Schedule,
    body_of,
    ids_of,
    ledger_of,
    wall_ms,
)
from timerstore import CancelResult, StoreConfig, TimerStore


class Child:
    """One life: open the store, and continue with the rows not acknowledged in the ledger."""

    def __init__(self, root: Path, life: int, schedule: Schedule) -> None:
        self._root = root
        self._life = life
        self._schedule = schedule
        self._due_last_ms = int(schedule.due_ms.max())
        self._produced = threading.Event()
        self._ledger = os.open(root / LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def live(self, config: StoreConfig) -> None:
        """Run until every row is put and delivered."""
        acked = ledger_of(self._root)
        acked = acked[acked["kind"] == ACKED]
        first = int((acked["row"].astype(np.int64) + acked["value"]).max(initial=0))
        with timerstore.open(self._root / STORE, config) as store:
            self._note(OPENED, 0, wall_ms())
            consumer = threading.Thread(target=self._consume, args=(store,), name="consumer")
            consumer.start()
            self._produce(store, first)
            self._produced.set()
            consumer.join()

    def _note(self, kind: int, row: int, value: int) -> None:
        os.write(self._ledger, RECORD.pack(kind, self._life, row, value))

    def _produce(self, store: TimerStore, first: int) -> None:
        put_ms, due_ms = self._schedule
        n = len(put_ms)
        while first < n:
            end = min(int(np.searchsorted(put_ms, wall_ms(), side="right")), first + 1000)
            if end > first:
                bodies = [body_of(row, self._life) for row in range(first, end)]
                self._note(INTENT, first, end - first)
                batch = store.put_many(TOPIC, bodies, deliver_ms=due_ms[first:end])
                self._note(ACKED, first, len(batch))
                for row in range(-(-first // CANCEL_EVERY) * CANCEL_EVERY, end, CANCEL_EVERY):
                    self._cancel(store, row, batch[row - first].handle)
                first = end
            if first < n:
                time.sleep(max(0.0, min(PUT_EVERY_S, (put_ms[first] - wall_ms()) / 1e3)))

    def _cancel(self, store: TimerStore, row: int, handle: str) -> None:
        self._note(CANCEL_INTENT, row, 1)
        answer = store.cancel(handle)
        kinds = {CancelResult.CANCELLED: CANCELLED, CancelResult.ALREADY_DELIVERED: TOO_LATE}
        self._note(kinds.get(answer, REFUSED), row, 1)

    def _consume(self, store: TimerStore) -> None:
        """Record each pulled message until all are delivered. Each life starts at offset 0."""
        offset = 0
        n = len(self._schedule.put_ms)
        with (self._root / f"{SEEN}{self._life}").open("ab", buffering=0) as out:
            while True:
                final = self._produced.is_set() and wall_ms() > self._due_last_ms
                final = final and next(iter(store.pending()), None) is None
                got = 0
                while TOPIC in store.topics():
                    batch = store.pull_batch(TOPIC, 0, offset, max_count=PULL_COUNT_MAX)
                    if not len(batch):
                        break
                    got += len(batch)
                    seen = np.zeros(len(batch), dtype=SEEN_TYPE)
                    bodies = np.frombuffer(batch.bodies, dtype=np.uint8)
                    seen["id"] = ids_of(bodies, np.asarray(batch.body_offsets), n)
                    seen["offset"] = batch.queue_offset
                    seen["seen_ms"] = wall_ms()
                    out.write(seen.tobytes())
                    offset = int(batch.next_offset)
                if final and not got:
                    return
                if wall_ms() > self._due_last_ms + GRACE_S * 1e3:
                    return
                time.sleep(POLL_S)
