"""A signal handler that raises at any place of a call leaves a store that goes on."""

import errno
import itertools
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import Bench, small
from tests.support.interrupts import Interrupt, InterruptError
from timerstore import FailedError, TimerStore, errors
from timerstore._engine.storage.disk import File

# A finalizer ignores the error.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

STRIDE = 3
"""Of the places of a call, one of so many: all of them take a minute and a half."""
PLACES_MAX = 600
"""A `receive` that is interrupted leaves a consumer, so the next one has more places."""
BODY = bytes(6000)  # two of them fill a half of the staging file

Prepare = Callable[[TimerStore], Any]
Call = Callable[[TimerStore, Any, bytes], Any]
CallWithTopic = Callable[[TimerStore, str], Any]


def _leased(store: TimerStore) -> Any:
    store.put("leases", BODY)
    found = store.receive("leases", "g", max_count=10)
    while not found:
        found = store.receive("leases", "g", max_count=10)
    store.ack_many(found[:-1])
    return found[-1]


CALLS: dict[str, tuple[Prepare, Call]] = {
    "put": (lambda s: None, lambda s, _, body: s.put("t", body)),
    "put with tags": (lambda s: None, lambda s, _, body: s.put("t", body, tags="a")),
    "put later": (lambda s: None, lambda s, _, body: s.put("t", body, delay=0.001)),
    "put with an id": (lambda s: None, lambda s, _, b: s.put("t", b, message_id=f"i{hash(b)}")),
    "put_many": (lambda s: None, lambda s, _, body: s.put_many("t", [body])),
    "put_many atomic": (lambda s: None, lambda s, _, body: s.put_many("t", [body], atomic=True)),
    "receive": (lambda s: s.put("leases", BODY), lambda s, _, body: s.receive("leases", "g")),
    "ack": (_leased, lambda s, one, _: s.ack(one)),
    "nack": (_leased, lambda s, one, _: s.nack(one)),
    "extend": (_leased, lambda s, one, _: s.extend(one, lease=60)),
    "cancel": (lambda s: s.put("c", BODY, delay=99), lambda s, one, _: s.cancel(one)),
    "reschedule": (
        lambda s: s.put("c", BODY, delay=99),
        lambda s, one, _: s.reschedule(one, delay=50),
    ),
    "pull": (lambda s: s.put("t2", BODY), lambda s, one, _: s.pull("t2", 0, 0)),
}


@pytest.mark.parametrize("name", CALLS)
def test_store_goes_on_after_an_interrupt_at_any_place(tmp_path: Path, name: str) -> None:
    prepare, call = CALLS[name]
    bench = Bench(tmp_path / "store", small(flush="sync"))
    store = bench.store
    answered: list[bytes] = []
    after: list[bytes] = []
    for nth in range(1, PLACES_MAX, STRIDE):
        if nth % 20 == 1:
            store.flush()  # else a call has to complete a checkpoint itself
        target = prepare(store)
        body = b"%d " % nth + BODY
        interrupt = Interrupt(nth)
        try:
            interrupt.during(lambda body=body, target=target: call(store, target, body))
        except InterruptError:
            try:
                store.put("after", b"%d" % nth)
                after.append(b"%d" % nth)
            except Exception as error:
                error.add_note(f"{name}, place {nth}: {interrupt.where}")
                raise
            continue
        answered.append(body)
        if not interrupt.where:
            break
    assert nth > 5, "the call has places"
    bench.turn(10)
    found = Counter(_bodies(store, "t"))
    assert all(count == 1 for count in found.values()), "a message is stored twice"
    if name.startswith("put"):
        assert all(found[one] == 1 for one in answered), "a message that was answered is missing"
    assert sorted(_bodies(store, "after")) == sorted(after)
    bench.close()  # which verifies the store


def _letter(store: TimerStore, topic: str) -> None:
    store.put(topic, b"x")
    store.bury(store.receive(topic, topic)[0])


def _every(store: TimerStore, topic: str) -> Any:
    return store.put_every(topic, b"x", every=60, name=topic)


OWN: dict[str, tuple[CallWithTopic, CallWithTopic]] = {
    "receive": (lambda s, topic: s.put(topic, b"x"), lambda s, topic: s.receive(topic, topic)),
    "requeue": (_letter, lambda s, topic: s.requeue(topic)),
    "put_every": (lambda s, topic: None, _every),
}
"""Calls after which the store itself has put a message: what to do before, and the call."""


@pytest.mark.parametrize("name", OWN)
def test_message_of_the_store_is_there_once_after_an_interrupt_at_any_place(
    tmp_path: Path, name: str
) -> None:
    """What the store notes of its own message is noted, wherever a call is interrupted."""
    prepare, call = OWN[name]
    bench = Bench(tmp_path / "store", small(flush="sync"))
    store = bench.store
    places: dict[str, str] = {}
    for nth in itertools.count(1):
        topic = f"t{nth}"
        prepare(store, topic)
        bench.turn()
        interrupt = Interrupt(nth, within="append_own")
        with suppress(InterruptError):
            interrupt.during(lambda topic=topic: call(store, topic))
        if not interrupt.where:
            break
        places[topic] = interrupt.where
        if name == "receive":
            store.ack_many(call(store, topic))
        else:
            call(store, topic)
    # CPython 3.13 shows a tracer few of them.
    assert len(places) > 5 or sys.version_info >= (3, 13), "the call has places"
    bench.turn(61_000)
    for topic, where in places.items():
        found = store.receive(topic, topic, max_count=10)
        assert len(found) == (name != "receive"), f"{name} {where}"
    bench.close()


def test_queues_of_a_consumer_that_was_interrupted_while_it_joined_go_to_the_next(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path / "store", small())
    for nth in itertools.count(1):
        topic = f"t{nth}"
        bench.store.put(topic, b"x")
        bench.turn()
        interrupt = Interrupt(nth, within="join")
        with suppress(InterruptError):
            interrupt.during(lambda topic=topic: bench.store.consumer(topic, "g").poll())
        with bench.store.consumer(topic, "g") as consumer:
            assert len(consumer.poll()) == 1, interrupt.where
        if not interrupt.where:
            break
    assert nth > 5, "joining has places"
    bench.close()


def _bodies(store: TimerStore, topic: str) -> list[bytes]:
    count = store.topics().get(topic, 0)
    return [
        one.body
        for queue_id in range(count)
        for one in store.pull(topic, queue_id, 0, max_count=100_000).messages
    ]


def raised(*errors: BaseException) -> BaseException:
    """Return the last of some errors, each of which was raised while the one before was handled."""
    for before, error in itertools.pairwise(errors):
        error.__context__ = before
    return errors[-1]


@pytest.mark.parametrize(
    ("error", "is_interrupt"),
    [
        (InterruptError(), True),
        (KeyboardInterrupt(), True),
        (TimeoutError(), True),
        (raised(ValueError(), InterruptError()), True),
        (OSError(errno.EIO, "of the disk"), False),
        (FailedError("sync"), False),
        (MemoryError(), False),
        (raised(OSError(errno.EIO, "of the disk"), FailedError("sync"), InterruptError()), False),
        (raised(FailedError("sync"), ValueError(), InterruptError()), False),
    ],
)
def test_failed_sync_counts_although_a_handler_raised(
    error: BaseException, is_interrupt: bool
) -> None:
    assert errors.is_interrupt(error) is is_interrupt


def test_store_fails_if_a_handler_raises_after_a_failed_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(file: File) -> None:
        try:
            raise FailedError("sync: of the disk", where=file.path)
        except FailedError:
            raise InterruptError  # noqa: B904 - as a handler raises it

    store = timerstore.open(tmp_path / "store", small(flush="sync"), threads=False)
    store.put("t", b"before")
    with monkeypatch.context() as patched:
        patched.setattr(File, "sync", sync)
        with pytest.raises(InterruptError):
            store.put("t", b"x")
    with pytest.raises(FailedError):
        store.put("t", b"after")
    store.close()
