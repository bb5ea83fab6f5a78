"""Lease messages in a child that is killed.

Its threads put, receive, ack, nack, bury, requeue and extend. One thread puts with a key, one puts
unique messages and one puts into message groups, which two others each receive, and a recurring
message runs. The child appends a row to a file for each answer.
"""

import os
import threading
import time
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import timerstore
from tests.support.bench import small
from tests.support.points import die_at
from timerstore import AckResult, FullError, LeasedMessage, LeaseLostError, TimerStore

CONFIG = small(commit_log_segment_bytes=1 << 18, checkpoint_interval_ms=20, flush="sync")
GROUP = "workers"
TOPIC = "jobs"
KEYED = "latest"
SINGLE = "single"
TICKS = "ticks"
GROUPED = "grouped"
MESSAGE_GROUPS = ("n0", "n1", "n2")
LEASE_S = 0.05
QUIET_S = 0.6
PUTS = 30
_IS_PUT = threading.Event()
"""Set when all messages of this process have been put."""


def run(root: str, first: int, seed: int, point: str | None, nth: int) -> None:
    """Put the messages of a round and lease them. Die at a fail point, or finish."""
    with timerstore.open(root, CONFIG) as store:
        if point is not None:
            die_at(point, nth)
        notes = os.open(Path(root).parent / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        workers = [
            threading.Thread(target=_work, args=(store, notes, Random(seed + k)), daemon=True)
            for k in range(3)
        ]
        workers += [
            threading.Thread(target=one, args=(store, notes), daemon=True)
            for one in (_do_unique, _do_unique, _do_grouped, _do_grouped)
        ]
        putting = [
            threading.Thread(target=one, args=(store, notes, first), daemon=True)
            for one in (_put_keyed, _put_unique, _put_grouped)
        ]
        for one in (*workers, *putting):
            one.start()
        for name in (f"tick-{seed}", f"brief-{seed}"):
            store.put_every(TICKS, b"tick", every=1, missed="all", name=name)
        store.cancel_every(name)
        for k in range(first, first + PUTS):
            store.put(TOPIC, b"%06d" % k, queue_id=k % 2, delay=0.01 * (k % 3))
            _note(notes, f"put {k}")
        for one in putting:
            one.join()
        _IS_PUT.set()
        for one in workers:
            one.join()


def run_opening(root: str, point: str, nth: int) -> None:
    """Open the store, and die at a fail point of the opening."""
    die_at(point, nth)
    timerstore.open(root, CONFIG).close()


def _note(notes: int, line: str) -> None:
    os.write(notes, line.encode() + b"\n")


def _received(store: TimerStore, topic: str, **options: Any) -> list[LeasedMessage]:
    """Return leased messages; none when all were put before, and no more came for a while."""
    while True:
        is_put = _IS_PUT.is_set()
        got = store.receive(topic, GROUP, lease=LEASE_S, wait=QUIET_S, max_attempts=None, **options)
        if got or is_put:
            return got


def _put_keyed(store: TimerStore, notes: int, first: int) -> None:
    """Put messages with a key. Each takes the place of the previous one until that is delivered."""
    for k in range(first, first + PUTS):
        _note(notes, f"keying {k}")
        store.put(KEYED, b"%06d" % k, key="k", replace=True, delay=0.02, wait_at_most=0.05)
        _note(notes, f"keyed {k}")


def _put_unique(store: TimerStore, notes: int, first: int) -> None:
    """Put unique messages with one key; most find an earlier one that is not done.

    At least three are stored, however busy the machine is.
    """
    stored = 0
    for k in count(1000 * first):
        if stored >= 3 and k >= 1000 * first + PUTS:
            return
        _note(notes, f"singling {k}")
        receipt = store.put(SINGLE, b"%09d" % k, key="k", unique=True, delay=0.01 * (k % 2))
        _note(notes, f"singled {k} {int(receipt.duplicate)}")
        stored += not receipt.duplicate
        time.sleep(0.02)  # in which a consumer ends some of them


def _do_unique(store: TimerStore, notes: int) -> None:
    """Acknowledge them, some at the second attempt."""
    while got := _received(store, SINGLE, backoff=0):
        (one,) = got
        _note(notes, f"doing {int(one.body)}")
        if one.attempt == 1 and int(one.body) % 3 == 0:
            store.nack(one)
        else:
            _note(notes, f"finishing {int(one.body)}")
            store.ack(one)


def _put_grouped(store: TimerStore, notes: int, first: int) -> None:
    """Put messages into each message group in turn."""
    for k in range(first, first + PUTS):
        name = MESSAGE_GROUPS[k % len(MESSAGE_GROUPS)]
        store.put(GROUPED, b"%06d" % k, message_group=name)
        _note(notes, f"grouped {k}")


def _do_grouped(store: TimerStore, notes: int) -> None:
    """Acknowledge them in order: some at the second attempt, some after the end of their lease."""
    while got := _received(store, GROUPED, max_count=2, backoff=0.01, ordered=True):
        for one in got:
            number = int(one.body)
            _note(notes, f"ordering {number}")
            if one.attempt == 1 and number % 5 == 0:
                store.nack(one)
            elif one.attempt > 1 or number % 7:
                _note(notes, f"ordered {number}")
                store.ack(one)


def _work(store: TimerStore, notes: int, draw: Random) -> None:
    """Lease and settle until no message was delivered for a while."""
    while True:
        try:
            got = _received(store, TOPIC, max_count=draw.randint(1, 9), backoff=[0, 0.02])
        except FullError:
            continue
        if not got:
            if _requeue(store, notes):
                continue
            return
        for one in got:
            _note(notes, f"got {int(one.body)} {one.attempt}")
        for one in got:
            kind = draw.random()
            if kind < 0.15:
                store.nack(one)
            elif kind < 0.25:
                continue  # not settled, so that it is delivered again
            elif kind < 0.3:
                _bury(store, notes, one)
            elif kind < 0.4:
                try:
                    receipt = store.extend(one, lease=LEASE_S)
                except LeaseLostError:
                    continue
                _ack(store, notes, receipt, int(one.body))
            else:
                _ack(store, notes, one.receipt, int(one.body))


def _bury(store: TimerStore, notes: int, message: LeasedMessage) -> None:
    _note(notes, f"burying {int(message.body)}")
    if store.bury(message) is AckResult.BURIED:
        _note(notes, f"buried {int(message.body)}")


def _requeue(store: TimerStore, notes: int) -> int:
    """Requeue some dead letters, or all; return how many there were."""
    letters = list(store.dead_letters(GROUP))
    for one in letters:
        _note(notes, f"requeueing {int(one.body)}")
    return store.requeue(GROUP, letters)


def _ack(store: TimerStore, notes: int, receipt: str, body: int) -> None:
    _note(notes, f"acking {body}")
    if store.ack(receipt) is AckResult.ACKED:
        _note(notes, f"acked {body}")
