"""Calls that come amid a step of a store in their own thread, as of finalizers and signal handlers:
served, or refused by LockedError; never a hang, and nothing is lost or doubled by it.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import small
from tests.support.collecting import at_collections
from timerstore import LockedError, PutReceipt, TimerStore
from timerstore.errors import NotWaitingError
from timerstore.testing import Stepper

PATIENCE_S = 120.0
ROUNDS = 120


def in_time(act: Callable[[], object]) -> None:
    """Do something that might hang, in a thread that nobody has to wait for."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - handed on
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it waits for itself"
    for error in errors:
        raise error


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "s", small(), threads=False) as one:
        one.put("t", b"first")
        yield one


def test_a_put_amid_making_room_for_another(store: TimerStore) -> None:
    put, refused = [b"first"], []

    def inner() -> None:
        body = b"inner %d" % len(put)
        try:
            store.put("t", body + bytes(500))
        except LockedError as error:
            refused.append(error)
        else:
            put.append(body)

    def outer() -> None:
        kept = []  # objects that stay, for the collector to come at all
        for n in range(300):
            body = b"outer %d" % n
            kept.append(store.put("t", body + bytes(500)))
            put.append(body)

    with at_collections(inner, each=5):
        in_time(outer)
    assert any(one.startswith(b"inner") for one in put)
    assert refused, "no collection came under a lock: the test shows nothing"
    Stepper(store).settle()
    came = Counter(m.body.rstrip(b"\0") for m in store.pull("t", 0, 0, max_count=9_999).messages)
    assert came == Counter(put)
    assert store.verify().clean


def _calls(store: TimerStore, chance: random.Random, put: list[bytes]) -> None:
    """One call of a store, of any kind. `put`: what is due now and acknowledged."""
    receipts: list[PutReceipt] = []

    def put_now() -> None:
        body = b"%d" % chance.getrandbits(60)
        store.put("t", body, tags=chance.choice([None, "a"]), flush=chance.choice([None, "async"]))
        put.append(body)

    def put_large() -> None:
        receipts.append(store.put("later", bytes(3000), delay=3600))
        with suppress(NotWaitingError):
            store.reschedule(receipts[-1], delay=7200)

    def consume() -> None:
        with store.consumer("c", "g") as consumer:
            consumer.poll(3)
            consumer.commit()

    def recur() -> None:
        name = f"every-{chance.randrange(3)}"
        store.put_every("recurring", b"e", every=60, name=name)
        store.cancel_every(name)

    calls: list[Callable[[], object]] = [
        put_now,
        put_now,
        put_large,
        put_large,
        consume,
        recur,
        lambda: store.put_many("later", [b"x" * 50] * chance.randrange(1, 40), delay=5),
        lambda: store.put_many(f"new-{chance.randrange(99)}", [b"x"], keys=["k"]),
        lambda: store.cancel(store.put("later", b"not", delay=9)),
        lambda: store.cancel_many(store.put_many("later", [b"a", b"b"], delay=9)),
        lambda: store.put("v", b"z", delay=9, key="a", replace=True),
        lambda: store.put("v", b"z", delay=9, message_id=f"m{chance.randrange(30)}"),
        lambda: store.put("v", b"z", level=1),
        lambda: store.pull("t", 0, 0),
        lambda: store.pull_batch("t", 0, 0),
        lambda: store.query("t", "k"),
        lambda: (store.stats(), store.topics(), store.timing_distribution()),
        lambda: list(store.pending()),
        lambda: store.histogram(),
        lambda: store.flush(),
        lambda: [store.ack(one) for one in store.receive("t", "leases", max_count=2)],
    ]
    chance.choice(calls)()


@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_any_call_amid_any_other(tmp_path: Path, flush: str, threads: bool, seed: int) -> None:
    put = [b"first"]
    refused: list[LockedError] = []
    inner_chance, outer_chance = random.Random(seed), random.Random(~seed)
    with timerstore.open(tmp_path / "s", small(flush=flush), threads=threads) as one:
        one.put("t", put[0])

        def inner() -> None:
            try:
                _calls(one, inner_chance, put)
            except LockedError as error:
                refused.append(error)

        def outer() -> None:
            for _ in range(ROUNDS):
                _calls(one, outer_chance, put)
            one.flush()

        with at_collections(inner, each=20):
            in_time(outer)
        assert refused, "no collection came under a lock: the test shows nothing"
        assert one.verify().clean
    with timerstore.open(tmp_path / "s", small(flush=flush), threads=False) as one:
        Stepper(one).settle()
        came = Counter(m.body for m in one.pull("t", 0, 0, max_count=9_999).messages)
    doubtful = sum("what it put is in the log" in str(error) for error in refused)
    assert not Counter(put) - came, "what was acknowledged is lost"
    assert max(came.values()) == 1
    assert (came - Counter(put)).total() <= doubtful


def test_what_waits_for_a_sync_under_a_lock_is_refused_before_it_harms(store: TimerStore) -> None:
    log = store._opened.rooms.log
    for lock in (log._write_lock, log.lock):
        with lock, pytest.raises(LockedError):
            store.put("t", b"x", flush="sync")
        with lock, pytest.raises(LockedError, match="what it put is in the log"):
            log.sync_through(log.end)
    assert store.put("t", b"after", flush="sync")


def test_a_quick_put_under_a_lock_is_served_where_it_needs_nothing(store: TimerStore) -> None:
    with store._opened.rooms.log._write_lock:
        store.put("t", b"amid")
    Stepper(store).settle()
    assert [m.body for m in store.pull("t", 0, 0).messages] == [b"first", b"amid"]


def test_under_a_wide_lock_calls_are_served(store: TimerStore) -> None:
    with store._opened.checkpoint._lock:
        store.put("t", b"amid", tags="slow")
        with pytest.raises(LockedError):
            store.flush()
    store.flush()


def test_a_store_is_not_closed_by_its_own_thread(tmp_path: Path) -> None:
    """As by a finalizer of what holds it, where the collector runs in one of its threads."""
    told: list[object] = []
    asked = threading.Event()
    with timerstore.open(tmp_path / "s", small()) as store:
        flush = store._opened.pipeline.flush
        step = flush.step

        def closing() -> bool:
            if not asked.is_set():
                try:
                    store.close()
                except LockedError as error:
                    told.append(error)
                asked.set()
            return step()

        flush.step = closing  # type: ignore[method-assign]
        store.put("t", b"x")
        assert asked.wait(PATIENCE_S)
        assert "nor by a thread of its own" in str(told[0])
        assert store.pull("t", 0, 0, wait=PATIENCE_S).messages
