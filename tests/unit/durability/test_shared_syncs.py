"""Callers that share a sync are answered when it covers their own record, not only the first one.

Each test makes more calls while a sync runs: after the recorder has noted the bytes that the sync
makes durable, and before the sync returns.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

import timerstore
from tests.support.bench import NOW, small
from tests.support.durable.answering import Answering, durable_log_end
from tests.support.durable.recorder import Recorder
from tests.support.inside import inside
from tests.support.served_bench import RawClient
from tests.support.until import until
from timerstore import AckResult, TimerStore
from timerstore.aio import AsyncTimerStore
from timerstore.net.frames import FrameSplitter
from timerstore.testing import ManualClock
from timerstore.types.clock import SystemClock

PATIENCE_S = 30.0
RIDERS = 5
HELD_SYNCS = 3


def _is_log(path: str) -> bool:
    return "/commitlog/" in path


# --- coroutines ---

_AWAITED: dict[str, Callable[[AsyncTimerStore, str], Any]] = {
    "put": lambda store, _: store.put("t", b"x", delay=60, flush="sync"),
    "put with an id": lambda store, new: store.put(
        "t", b"x", delay=60, message_id=new, flush="sync"
    ),
    "put with tags": lambda store, _: store.put("t", b"x", delay=60, tags="a", flush="sync"),
    "put in a thread": lambda store, _: store.put("t", b"x", level=2, flush="sync"),
    "put_many": lambda store, _: store.put_many("t", [b"x"] * 3, delay=60),
}  # fmt: skip


def _last_offset(found: Any) -> int:
    offsets = getattr(found, "log_offsets", None)
    return found.log_offset if offsets is None else int(offsets[-1])


class Awaiting:
    """Tasks of one loop, each of which notes whether its put was durable when it was answered."""

    def __init__(self, store: AsyncTimerStore, is_durable: Callable[[int], bool]) -> None:
        self._store = store
        self._is_durable = is_durable
        self._loop = asyncio.get_running_loop()
        self._thread = threading.current_thread()
        self.tasks: list[asyncio.Task[bool]] = []
        self._held = 0

    def begin(self, call: Callable[[AsyncTimerStore, str], Any], count: int = RIDERS) -> None:
        for _ in range(count):
            new = f"m{len(self.tasks)}"
            self.tasks.append(self._loop.create_task(self._one(call, new)))

    async def _one(self, call: Callable[[AsyncTimerStore, str], Any], new: str) -> bool:
        return self._is_durable(_last_offset(await call(self._store, new)))

    def ride_with_syncs(
        self, recorder: Recorder, call: Callable[[AsyncTimerStore, str], Any], *, may_block: bool
    ) -> None:
        """Begin more puts while the first syncs run, and let the loop append them."""

        async def more() -> None:
            self.begin(call)
            for _ in range(10):
                await asyncio.sleep(0)

        def riding(path: str) -> None:
            if self._held == HELD_SYNCS or not _is_log(path):
                return
            self._held += 1
            if threading.current_thread() is self._thread:
                self.begin(call)
                return
            begun = asyncio.run_coroutine_threadsafe(more(), self._loop)
            if not may_block:  # else the loop may wait for this sync
                begun.result(PATIENCE_S)

        recorder.after_sync = riding

    async def all_durable(self) -> None:
        found = []
        while len(found) < len(self.tasks):
            found = await asyncio.gather(*self.tasks)
        assert all(found), (
            f"answered before they were durable: {found.count(False)} of {len(found)}"
        )


@pytest.fixture(params=["hand", "system"])
def store(request: pytest.FixtureRequest, disk: Path, recorder: Recorder) -> Iterator[TimerStore]:
    """A store on the recorded disk whose topics exist; with the system's clock C makes the puts."""
    clock = ManualClock(NOW) if request.param == "hand" else SystemClock()
    with timerstore.open(disk / "store", small(flush="sync"), clock=clock, threads=False) as one:
        one.put_many("t", [b"x"] * 60, delay=3600)
        one.put("t", b"x", level=2)
        yield one


@pytest.fixture
def is_durable(disk: Path, recorder: Recorder) -> Callable[[int], bool]:
    return lambda log_offset: log_offset < durable_log_end(recorder, disk / "store")


@pytest.mark.parametrize("name", _AWAITED)
@pytest.mark.parametrize("may_block", [False, True], ids=["program", "server"])
def test_each_awaited_put_is_durable_that_rides_with_a_sync(
    store: TimerStore,
    recorder: Recorder,
    is_durable: Callable[[int], bool],
    name: str,
    may_block: bool,
) -> None:
    async def run() -> None:
        pool = ThreadPoolExecutor(2)
        awaited = AsyncTimerStore(store, pool, may_block=may_block)
        awaiting = Awaiting(awaited, is_durable)
        awaiting.ride_with_syncs(recorder, _AWAITED[name], may_block=may_block)
        awaiting.begin(_AWAITED[name], 20)
        await awaiting.all_durable()
        awaited.detach()

    asyncio.run(run())


@pytest.mark.parametrize("may_block", [False, True], ids=["program", "server"])
def test_awaited_puts_of_a_turn_are_durable_when_the_first_was_synced_before(
    store: TimerStore, is_durable: Callable[[int], bool], may_block: bool
) -> None:
    """Another caller syncs between two puts of one turn of the loop."""

    async def run() -> None:
        awaited = AsyncTimerStore(store, ThreadPoolExecutor(2), may_block=may_block)
        awaiting = Awaiting(awaited, is_durable)

        async def synced() -> bool:
            store.put("t", b"another caller", delay=60, flush="sync")
            return True

        awaiting.begin(_AWAITED["put"], 1)
        awaiting.tasks.append(asyncio.create_task(synced()))
        awaiting.begin(_AWAITED["put"], 3)
        await awaiting.all_durable()
        awaited.detach()

    asyncio.run(run())


@pytest.mark.parametrize("may_block", [False, True], ids=["program", "server"])
def test_each_settled_lease_of_a_turn_is_durable(
    store: TimerStore, recorder: Recorder, is_durable: Callable[[int], bool], may_block: bool
) -> None:
    """The leases of a turn share a sync; those of the next turn begin while that sync runs."""
    log = inside(store).log
    store.put_many("leased", [b"x"] * 20)
    leased = store.receive("leased", "g", lease=600, max_count=20)

    async def run() -> None:
        awaited = AsyncTimerStore(store, ThreadPoolExecutor(2), may_block=may_block)

        async def settle(number: int) -> bool:
            one = leased[number]
            if number % 3 == 0:
                assert await awaited.ack(one) is AckResult.ACKED
            elif number % 3 == 1:
                assert await awaited.nack(one, delay=60) is AckResult.NACKED
            else:
                await awaited.extend(one, lease=900)
            return is_durable(log.end - 1)  # the calls of this turn were the last to append

        first = [asyncio.create_task(settle(k)) for k in range(10)]
        assert all(await asyncio.gather(*first))
        first = [asyncio.create_task(settle(k)) for k in range(10, 20)]
        assert all(await asyncio.gather(*first))
        awaited.detach()

    asyncio.run(run())


_CHANGES: dict[str, Callable[[AsyncTimerStore, Any], Any]] = {
    "cancel": lambda store, one: store.cancel(one),
    "reschedule": lambda store, one: store.reschedule(one, delay=90),
    "reschedule to now": lambda store, one: store.reschedule(one, delay=0),
    "bury": lambda store, one: store.bury(one),
}


@pytest.mark.parametrize("name", _CHANGES)
@pytest.mark.parametrize("may_block", [False, True], ids=["program", "server"])
def test_hundred_awaited_changes_share_one_sync_and_are_durable_when_answered(
    store: TimerStore,
    recorder: Recorder,
    is_durable: Callable[[int], bool],
    name: str,
    may_block: bool,
) -> None:
    log, change = inside(store).log, _CHANGES[name]
    if name == "bury":
        store.put_many("leased", [b"x"] * 100)
        targets: list[Any] = list(store.receive("leased", "g", lease=600, max_count=100))
    else:
        targets = list(store.put_many("t", [b"x"] * 100, delay=60))
    syncs: list[str] = []
    recorder.after_sync = lambda path: syncs.append(path) if _is_log(path) else None

    async def changed(store: AsyncTimerStore, target: Any) -> bool:
        await change(store, target)
        return is_durable(log.end - 1)

    async def run() -> None:
        awaited = AsyncTimerStore(store, ThreadPoolExecutor(8), may_block=may_block)
        assert all(await asyncio.gather(*(changed(awaited, one) for one in targets)))
        awaited.detach()

    asyncio.run(run())
    assert len(syncs) == 1, f"{len(syncs)} syncs for 100 calls"


# --- threads ---

_BLOCKING: dict[str, Callable[[TimerStore, Any], int]] = {
    "put": lambda store, _: store.put("t", b"x", delay=60).log_offset,
    "put with an id": lambda store, new: store.put(
        "t", b"x", delay=60, message_id=new
    ).log_offset,
    "put_many": lambda store, _: int(store.put_many("t", [b"x"] * 3, delay=60).log_offsets[-1]),
    "atomic": lambda store, _: int(
        store.put_many("t", [b"x"] * 3, delay=60, atomic=True).log_offsets[-1]
    ),
    "put in place of another": lambda store, _: store.put(
        "t", b"x", delay=60, key="k", replace=True
    ).log_offset,
    "put on a level": lambda store, _: store.put("t", b"x", level=2).log_offset,
    "reschedule": lambda store, new: store.reschedule(
        store.put("t", b"x", delay=60, flush="async"), delay=90
    ).log_offset,
}  # fmt: skip


@pytest.mark.parametrize("name", _BLOCKING)
def test_put_of_a_thread_is_durable_that_comes_during_the_sync_of_another(
    store: TimerStore, recorder: Recorder, is_durable: Callable[[int], bool], name: str
) -> None:
    log, call = inside(store).log, _BLOCKING[name]
    threads: list[Any] = []
    held, numbers = 0, count()

    def begin(pool: ThreadPoolExecutor) -> None:
        new = f"m{next(numbers)}"
        threads.append(pool.submit(lambda: is_durable(call(store, new))))

    with ThreadPoolExecutor(2 + HELD_SYNCS) as pool:

        def riding(path: str) -> None:
            nonlocal held
            if held == HELD_SYNCS or not _is_log(path):
                return
            held += 1
            before = log.end
            begin(pool)
            until(lambda: log.end > before)
            log.write_out()  # as dispatch does: the bytes of the rider are in the file

        recorder.after_sync = riding
        begin(pool)
        until(lambda: held == HELD_SYNCS)
        assert all(one.result(PATIENCE_S) for one in list(threads))
    assert len(threads) == 1 + HELD_SYNCS


# --- a server ---


@pytest.mark.parametrize("way", ["client quick", "client slow by hand"])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_each_put_in_a_packet_is_durable_when_its_answer_leaves_the_server(
    disk: Path, recorder: Recorder, way: str, flush: str
) -> None:
    with Answering(disk, recorder, way, flush).opened() as answering:
        answering.store.put("t", b"first", delay=60)
        raw = RawClient(answering.root.with_suffix(".sock"))
        raw.hello()
        log = inside(answering.store).log
        sent, held, early, answers = 0, 0, [], 0
        splitter = FrameSplitter(1 << 20)

        def send(count: int) -> None:
            nonlocal sent
            numbers = range(sent + 1, sent + count + 1)
            sent += count
            options = [{"message_id": f"m{k}"} if k % 2 else {} for k in numbers]
            raw.send_all(
                [2, k, "put", ["t", b"x"], {"delay": 60, "flush": "sync"} | more]
                for k, more in zip(numbers, options, strict=True)
            )

        def riding(path: str) -> None:
            nonlocal held
            if held == HELD_SYNCS or not _is_log(path):
                return
            held += 1
            before = log.end
            send(RIDERS)
            if not answering.is_on_loop:
                until(lambda: log.end > before)

        def sending(data: bytes) -> None:
            nonlocal answers
            for payload in splitter.feed(data):
                kind, number, record = msgspec.msgpack.decode(payload)
                assert kind == 5, record
                answers += 1
                if not answering.is_durable(record[7]):
                    early.append(number)

        answering.on_send = sending
        recorder.after_sync = riding
        send(20)
        for _ in range(20 + HELD_SYNCS * RIDERS):
            raw.reply()
        assert not early, f"answered before they were durable: calls {early}"
        assert answers == sent == 20 + HELD_SYNCS * RIDERS
        raw.close()
