"""Calls that come amid a step of a store in their own thread, as of finalizers and signal handlers:
served, or refused by LockedError; never a hang, and nothing is lost or doubled by it.
"""

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import timerstore
from tests.support.amounts import sample
from tests.support.bench import small
from tests.support.collecting import at_collections
from tests.support.elsewhere import elsewhere
from tests.support.inside import (
    as_thread_of_pool,
    checkpoint_lock,
    in_all_shards,
    inside,
    lock_of_key,
    log_write_lock,
    offsets_write_lock,
)
from timerstore import FailedError, LockedError, PutReceipt, TimerStore
from timerstore._engine.base.native import count_syncs
from timerstore.errors import NotWaitingError
from timerstore.testing import Stepper

PATIENCE_S = 120.0
ROUNDS = 120
IN_THE_LOG = "what it put, cancelled or moved is in the log"


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
        elsewhere(outer, PATIENCE_S)
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
@pytest.mark.parametrize("seed", sample(range(2), "ends"))
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
            elsewhere(outer, PATIENCE_S)
        assert refused, "no collection came under a lock: the test shows nothing"
        assert one.verify().clean
    with timerstore.open(tmp_path / "s", small(flush=flush), threads=False) as one:
        Stepper(one).settle()
        came = Counter(m.body for m in one.pull("t", 0, 0, max_count=9_999).messages)
    doubtful = sum(IN_THE_LOG in str(error) for error in refused)
    assert not Counter(put) - came, "what was acknowledged is lost"
    assert max(came.values()) == 1
    assert (came - Counter(put)).total() <= doubtful


def test_what_waits_for_a_sync_under_a_lock_is_refused_before_it_harms(store: TimerStore) -> None:
    log = inside(store).log
    for lock in (log_write_lock(log), log.lock):
        with lock, pytest.raises(LockedError):
            store.put("t", b"x", flush="sync")
        with (
            lock,
            pytest.raises(LockedError, match=IN_THE_LOG),
        ):
            log.sync_through(log.end)
    assert store.put("t", b"after", flush="sync")


def test_a_quick_put_under_a_lock_is_served_where_it_needs_nothing(store: TimerStore) -> None:
    with log_write_lock(inside(store).log):
        store.put("t", b"amid")
    Stepper(store).settle()
    assert [m.body for m in store.pull("t", 0, 0).messages] == [b"first", b"amid"]


def test_under_a_wide_lock_calls_are_served(store: TimerStore) -> None:
    with inside(store).close_lock, inside(store).retention.still():
        store.put("t", b"amid", tags="slow")
        with pytest.raises(LockedError):
            store.close()
    store.flush()


def test_under_a_long_lock_calls_are_refused_and_syncs_are_not(store: TimerStore) -> None:
    log = inside(store).log
    with checkpoint_lock(inside(store).checkpoint):
        with pytest.raises(LockedError):
            store.put("t", b"amid", tags="slow")
        store.put("t", b"quick")
        log.sync_through(log.end)
    store.flush()


def test_two_who_replace_amid_each_others_replacing(store: TimerStore) -> None:
    """Each would wait for the other's key for ever."""
    meet = threading.Barrier(2)
    refused = []

    def replacing(mine: str, other: str) -> None:
        with lock_of_key(inside(store).replacing, "t", mine):
            meet.wait(PATIENCE_S)
            with pytest.raises(LockedError):
                store.put("t", b"x", delay=9, key=other, replace=True)
            refused.append(mine)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(replacing, ("a", "b"), ("b", "a")))
    assert sorted(refused) == ["a", "b"]


def test_a_store_is_not_closed_by_its_own_thread(tmp_path: Path) -> None:
    """As by a finalizer of what holds it, where the collector runs in one of its threads."""
    told: list[object] = []
    asked = threading.Event()
    with timerstore.open(tmp_path / "s", small()) as store:
        flush = inside(store).pipeline.flush
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


def test_shards_amid_their_own_pool(tmp_path: Path) -> None:
    """A thread of the pool, and who hands it something, would wait for the pool."""
    with timerstore.open_shards(tmp_path / "shards", 2, config=small()) as shards:
        with pytest.raises(LockedError):
            in_all_shards(shards, lambda _: shards.stats())
        with pytest.raises(LockedError):
            in_all_shards(shards, lambda _: shards.close())
        with as_thread_of_pool(shards), pytest.raises(LockedError):
            shards.flush()
        assert in_all_shards(shards, lambda one: one.stats()["log_end_bytes"]) == [0, 0]
        shards.put_many("t", [b"x"] * 9)


def test_none_is_opened_under_a_lock(store: TimerStore, tmp_path: Path) -> None:
    with inside(store).log.lock, pytest.raises(LockedError):
        timerstore.open(tmp_path / "other", small(), threads=False)
    assert not (tmp_path / "other").exists()


@contextmanager
def amid_a_sync_of_its_own(store: TimerStore) -> Iterator[None]:
    """As a signal handler that comes amid it."""
    rounds = inside(store).sync_rounds
    count_syncs(1)
    assert rounds.lead(1)
    try:
        yield
    finally:
        rounds.leave()
        count_syncs(-1)


def test_who_sleeps_through_a_sync_waits_for_nobody_who_may_wait_for_it(store: TimerStore) -> None:
    """He may be the one to lead the next."""
    log, planner = inside(store).log, inside(store).recurring.planner
    rounds = inside(store).sync_rounds
    told: list[object] = []

    def handle(*_: object) -> None:
        try:
            store.put_every("t", b"x", every=60, name="beat")
        except LockedError as error:
            told.append(error)

    def lead_and_wake() -> None:
        with planner.lock:
            assert rounds.lead(log.end)
            leading.set()
            assert asleep.wait(PATIENCE_S)
            while not told:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                asleep.wait(0)
            log.durable = log.end
            rounds.end(log.end)

    leading, asleep = threading.Event(), threading.Event()
    before = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=lead_and_wake, daemon=True)
    try:
        thread.start()
        assert leading.wait(PATIENCE_S)
        asleep.set()
        log.sync_through(log.end)
        thread.join(PATIENCE_S)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not thread.is_alive()
    assert told


def test_a_sync_of_another_store_does_not_end_that(store: TimerStore, tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "other", small(flush="sync"), threads=False) as other:

        def recur() -> None:
            with amid_a_sync_of_its_own(store):
                other.put("t", b"x")
                with pytest.raises(LockedError):
                    store.put_every("t", b"x", every=60, name="beat")

        with inside(store).recurring.planner.lock:
            elsewhere(recur)


def test_who_leads_a_sync_waits_for_nobody_who_may_wait_for_it(store: TimerStore) -> None:
    planner = inside(store).recurring.planner

    def recur() -> None:
        with amid_a_sync_of_its_own(store), pytest.raises(LockedError):
            store.put_every("t", b"x", every=60, name="beat")

    with planner.lock:
        elsewhere(recur)
    store.put_every("t", b"x", every=60, name="beat")
    with amid_a_sync_of_its_own(store), pytest.raises(LockedError):
        store.flush()  # its sync
    store.flush()


def test_a_list_amid_a_sync_is_stored_whole_or_not_at_all(store: TimerStore) -> None:
    end = inside(store).log.end
    for given in ({"keys": [["k"]] * 600}, {"message_ids": [f"m{n}" for n in range(600)]}):
        with amid_a_sync_of_its_own(store), pytest.raises(LockedError):
            store.put_many("t", [bytes(500)] * 600, flush="async", **given)  # type: ignore[arg-type]
        assert inside(store).log.end == end


def test_a_put_that_needs_a_checkpoint_amid_a_sync_stores_nothing(tmp_path: Path) -> None:
    config = small(checkpoint_log_bytes=1 << 16, checkpoint_log_bytes_max=1 << 17)
    with timerstore.open(tmp_path / "s", config, threads=False) as store:
        store.put("t", b"first")
        log = inside(store).log
        refused = None
        with amid_a_sync_of_its_own(store):
            for _ in range(400):
                end = log.end
                try:
                    store.put("t", bytes(2000))
                except LockedError as error:
                    refused = error
                    break
        assert IN_THE_LOG not in str(refused)
        assert log.end == end
        store.put("t", b"after")


def test_a_commit_that_is_refused_is_none(store: TimerStore) -> None:
    offsets = inside(store).group_offsets
    with offsets_write_lock(offsets), pytest.raises(LockedError):
        offsets.settle(offsets.ask("t", "refused", {0: 1}))
    offsets.settle(offsets.ask("t", "other", {0: 1}))
    assert not offsets.committed("t", "refused")
    assert offsets.committed("t", "other") == {0: 1}


def test_who_is_rung_may_call_the_store(store: TimerStore) -> None:
    """Also where dispatch rings: it is amid its step then."""
    told: list[object] = []

    def ring() -> None:
        told.append(store.stats()["log_end_bytes"])

    stepper = Stepper(store)
    stepper.settle()
    waiting = store.begin_pull("t", 0, 1, wait=60)
    assert waiting.enter(ring)
    store.put("t", b"second")
    stepper.settle()
    waiting.leave()
    assert told


def test_a_handler_that_ends_the_taking_of_a_checkpoint_ends_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was copied by then counts as clean: another checkpoint would leave it out."""
    with timerstore.open(tmp_path / "s", small(), threads=False) as store:
        store.put("t", b"x", delay=5)
        parts = inside(store)

        def copy_dirty() -> None:
            store.stats()  # a handler's: refused, and it does not keep that to itself

        with monkeypatch.context() as patched:
            patched.setattr(parts.states, "copy_dirty", copy_dirty)
            with pytest.raises(LockedError):
                store.flush()
        with pytest.raises(FailedError):
            store.flush()
    with timerstore.open(tmp_path / "s", small(), threads=False) as store:
        assert store.verify().clean
        assert len(list(store.pending())) == 1
