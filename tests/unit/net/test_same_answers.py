"""Every kind of store answers each odd argument as the embedded store does, with the same text."""

import asyncio
import inspect
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support.bench import NOW, Bench, small
from tests.support.odd_values import ASKED, BESIDE, GOOD, WAITS, Name, Word, odd_values
from tests.support.served_bench import ServedBench
from timerstore.aio import AsyncTimerStore
from timerstore.api import StoreApi
from timerstore.errors import TimerStoreError
from timerstore.net.call_table import GIVE_BACK, STORE_CALLS
from timerstore.testing import ManualClock

Outcomes = dict[str, str]

_NOT_OF_SHARDS = {"backup", "verify", GIVE_BACK.name}
_OF_A_SHARD = (
    "cancel ", "cancel_many ", "reschedule ", "ack ", "ack_many ", "nack ", "extend ", "bury ",
    "renew ", "receive ack ", "requeue letters", "explain message", "commit ", "rollback ",
)  # fmt: skip
"""Handles and receipts of shards name their shard, and so do the errors."""
_CRASH = "no error of timerstore:"

WRAPPED: dict[str, dict[str, Callable[[Any], Any]]] = {
    "in a list": {
        "bodies": lambda v: [b"x", v],
        "keys": lambda v: ["k", v],
        "message_ids": lambda v: [None, v],
        "delay": lambda v: [1, v],
        "deliver_ms": lambda v: [NOW, v],
        "priority": lambda v: [1, v],
        "backoff": lambda v: [1, v],
        "queues": lambda v: [0, v],
        "topic": lambda v: ["t", v],
        "receipts": lambda v: ["x", v],
        "ack": lambda v: ["x", v],
        "receipts_or_handles": lambda v: [v],
        "letters": lambda v: [v],
    },
    "as a value": {"properties": lambda v: {"a": v}},
    "as a name": {"properties": lambda v: {v: "a"}},
    "in a tuple": {
        "keys": lambda v: ("k", v),
        "bodies": lambda v: (b"x", v),
        "message_ids": lambda v: (b"x", v),
    },
}
"""Sequences and mappings with an odd part, by argument."""


class Door:
    """A store, by one of its doors, and the receipt of one of its messages."""

    def __init__(self, store: Any, receipt: Any, run: Callable[[Any], Any]) -> None:
        self.store = store
        self.receipt = receipt
        self._run = run

    def outcome(self, name: str, given: list[Any], named: dict[str, Any]) -> str:
        """Make a call; return its error with its text, or "accepted"."""
        return self.outcome_of(lambda: getattr(self.store, name)(*given, **named))

    def outcome_of(self, call: Callable[[], Any]) -> str:
        try:
            got = call()
            if hasattr(got, "__await__"):
                got = self._run(got)
            if inspect.isgenerator(got):
                next(got, None)
            if hasattr(got, "__anext__"):
                self._run(_first_of(got))
            if hasattr(got, "poll") and inspect.iscoroutine(closed := got.close()):
                self._run(closed)
        except TimerStoreError as error:
            return f"{type(error).__name__}: {plain_text(error)}"
        except Exception as error:  # noqa: BLE001 - reported with all others
            return f"{_CRASH} {error!r}"
        return "accepted"


def plain_text(error: TimerStoreError) -> str:
    """Return the text of an error without addresses in memory and the numbers of shards."""
    text = re.sub(r"0x[0-9a-f]+", "0x", str(error))
    return re.sub(r"shard \d+: |; at shard \d+", "", text)


def arguments(door: Door, name: str) -> Iterator[tuple[str, list[Any], dict[str, Any], int | str]]:
    """Yield what a call takes, and which of it is to be odd."""
    given = list(inspect.signature(getattr(StoreApi, name)).parameters.values())[1:]
    needed = [
        one.name for one in given if one.default is one.empty and one.kind is not one.VAR_KEYWORD
    ]
    is_receipt = {"message", "receipt_or_handle"}
    good = [
        door.receipt if one in is_receipt else [] if one.startswith("receipts") else GOOD[one]
        for one in needed
    ]
    for at, one in enumerate(needed):
        yield one, good, BESIDE.get(name, {}), at
    more = [one.name for one in given if one.name not in needed and one.kind is not one.VAR_KEYWORD]
    if any(one.kind is one.VAR_KEYWORD for one in given):
        more += ASKED
    for one in more:
        if one != "shard":
            yield one, good, BESIDE.get(f"{name}.{one}", BESIDE.get(name, {})), one


def outcomes(door: Door, more: dict[str, Any]) -> Outcomes:
    """Return the outcome of each call with each odd argument. `more`: for calls of one queue."""
    found: Outcomes = {}
    # What delete_topic removes, and whether it may, depends on the other calls.
    left_out = {*_NOT_OF_SHARDS, "delete_topic"}
    for name in [one for one in STORE_CALLS if one not in left_out]:
        of_queue = name in {"pull", "pull_batch", "offset_at"}
        for argument, good, beside, which in arguments(door, name):
            for form in ("", *WRAPPED):
                wrap = WRAPPED[form].get(argument) if form else lambda value: value
                if wrap is None:
                    continue
                for kind, value in odd_values().items():
                    if argument == "wait" and kind in WAITS:
                        continue
                    if (argument, form, kind) == ("queues", "in a list", "odd"):
                        continue  # the text of a list of it differs
                    try:
                        odd = wrap(value)
                    except TypeError:  # it has no hash
                        continue
                    given, named = list(good), {**beside, **(more if of_queue else {})}
                    if isinstance(which, int):
                        given[which] = odd
                    else:
                        named[which] = odd
                    row = f"{name} {argument} {form} {kind}"
                    found[row] = door.outcome(name, given, named)
    return found


def stored(store: Any) -> list[tuple[Any, ...]]:
    """Return the messages of all topics, as far as the caller of a put determines them."""
    found = []
    for topic, count in store.topics().items():
        if topic.startswith("rmq_"):
            continue
        for queue_id in range(min(count, 20)):
            for one in store.pull(topic, queue_id, 0, max_count=100_000).messages:
                own = {k: v for k, v in one.properties.items() if k.startswith("a")}
                found.append((topic, one.body, one.tags, tuple(one.keys), own))
    return sorted(found, key=repr)  # rejected puts also advance the turns of the queues


def filled(bench: Bench) -> Any:
    bench.store.put("t", b"y")
    receipt = bench.store.put("t", b"x", delay=1000.0)
    bench.turn()
    return receipt


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Outcomes, Bench]]:
    bench = Bench(tmp_path_factory.mktemp("embedded") / "store")
    receipt = filled(bench)
    yield outcomes(Door(bench.store, receipt, _no_coroutine), {}), bench
    bench.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Bench]:
    """A store of its own next to the served one."""
    one = Bench(tmp_path / "own")
    yield one
    one.close()


def _no_coroutine(_got: Any) -> Any:
    raise AssertionError("a coroutine of a blocking call")


def compare(found: Outcomes, wanted: Outcomes) -> None:
    other = [
        f"{row}\n    embedded: {wanted[row]}\n    here:     {found[row]}"
        for row in wanted
        if found[row] != wanted[row] or found[row].startswith(_CRASH)
    ]
    if other:
        pytest.fail(f"{len(other)} of {len(wanted)}:\n" + "\n".join(other[:4000]), pytrace=False)


def compare_stored(ours: Any, theirs: Any) -> None:
    found, wanted = stored(ours), stored(theirs)
    other = [f"{b}\n    here: {a}" for a, b in zip(found, wanted, strict=False) if a != b]
    if other or len(found) != len(wanted):
        count = f"{len(found)} messages, wanted {len(wanted)}"
        pytest.fail(f"{count}:\n" + "\n".join(other[:20]), pytrace=False)


def test_client_answers_as_the_embedded_store(
    served: ServedBench, embedded: tuple[Outcomes, Bench]
) -> None:
    wanted, bench = embedded
    door = Door(served.connect(retry_for=0), filled(served.bench), _no_coroutine)
    compare(outcomes(door, {}), wanted)
    compare_stored(served.bench.store, bench.store)


def test_asyncio_client_answers_as_the_embedded_store(
    served: ServedBench, embedded: tuple[Outcomes, Bench]
) -> None:
    with asyncio.Runner() as runner:
        client = runner.run(_connected(served.url))
        found = outcomes(Door(client, filled(served.bench), lambda got: runner.run(_it(got))), {})
        runner.run(client.close())
    compare(found, embedded[0])


async def _connected(url: str) -> Any:
    return await timerstore.aio.connect(url, retry_for=0)


async def _first_of(found: Any) -> None:
    await anext(found, None)
    await found.aclose()


async def _it(got: Any) -> Any:
    return await got


def test_asyncio_store_answers_as_the_embedded_store(
    bench: Bench, embedded: tuple[Outcomes, Bench]
) -> None:
    receipt = filled(bench)
    with asyncio.Runner() as runner, ThreadPoolExecutor(1) as pool:
        store = AsyncTimerStore(bench.store, pool)
        compare(outcomes(Door(store, receipt, lambda got: runner.run(_it(got))), {}), embedded[0])
    compare_stored(bench.store, embedded[1].store)


def test_shards_answer_as_the_embedded_store(
    tmp_path: Path, embedded: tuple[Outcomes, Bench]
) -> None:
    clock = ManualClock(NOW)
    with timerstore.open_shards(
        tmp_path / "shards", 1, small(), clock=clock, threads=False
    ) as shards:
        shards.put("t", b"y")
        receipt = shards.put("t", b"x", delay=1000.0)
        found = outcomes(Door(shards, receipt, _no_coroutine), {"shard": 0})
    wanted = dict(embedded[0])
    for rows in (found, wanted):
        for row, text in rows.items():
            if row.startswith(_OF_A_SHARD):
                rows[row] = text.partition(":")[0]
            if row.startswith("consumer queues"):  # shards reject it
                rows[row] = ""
    compare(found, wanted)


def consumer_outcomes(door: Door, kinds: dict[str, Any]) -> Outcomes:
    consumer = door.store
    found = {}
    for name, argument in (
        ("poll", "max_count"), ("poll", "wait"), ("seek", "offset"), ("seek", "time"),
        ("seek", "time_ms"), ("seek", "queue_id"), ("commit", "through"),
    ):  # fmt: skip
        for kind, value in kinds.items():
            for form, odd in (("", value), ("by queue", {0: value})):
                if (argument != "wait" or kind not in WAITS) and (not form or name == "commit"):
                    call = getattr(consumer, name)
                    beside = {"offset": 0} if argument == "queue_id" else {}
                    found[f"{name} {argument} {form} {kind}"] = door.outcome_of(
                        lambda call=call, more={**beside, argument: odd}: call(**more)
                    )
    return found


def test_consumer_of_a_client_answers_as_the_embedded_one(served: ServedBench, own: Bench) -> None:
    filled(own)
    filled(served.bench)
    theirs, ours = own.store, served.connect(retry_for=0)
    with theirs.consumer("t", "g") as embedded, ours.consumer("t", "g") as remote:
        wanted = consumer_outcomes(Door(embedded, None, _no_coroutine), odd_values())
        found = consumer_outcomes(Door(remote, None, _no_coroutine), odd_values())
    compare(found, wanted)


@pytest.mark.parametrize("name", [Name("t"), Word.T, np.str_("t")], ids=["name", "word", "str64"])
def test_names_of_a_subclass_of_str_do_not_stay_in_the_store(
    served: ServedBench, name: Any
) -> None:
    store = served.bench.store
    receipts = [
        store.put(name, b"x"),
        store.put(name, b"x", delay=5, message_id=name),
        store.put(name, b"x", delay=5, key=name, replace=True),
        *store.put_many("u", [b"x"], tags=name, keys=[name], message_ids=[name]),
    ]
    every = store.put_every(name, b"x", every=60, name=name)
    served.bench.turn()
    (leased,) = store.receive(name, name, tags=None)
    store.nack(leased)
    store.pace(name, 1000)
    store.consumer(name, "readers", tags=name).close()
    for one in receipts:
        assert type(one.topic) is str
        assert type(one.message_id) is str
    assert type(every.name) is type(every.topic) is str
    assert all(type(one) is str for one in store.topics())
    client = served.connect(retry_for=0)
    assert client.topics() == store.topics()
    assert client.put("t", b"now").topic == "t"
    assert client.put("t", b"later", delay=60).message_id
    assert client.put("t", b"x", delay=5, message_id="t").duplicate
    assert [one.name for one in client.recurring()] == ["t"]
    assert {one.topic for one in client.pending()} == {"t", "%RETRY%t|t"}
    (batch,) = client.pull("u", 0, 0, tags="t").messages
    assert (batch.tags, batch.keys) == ("t", ("t",))


def test_keys_that_can_be_read_once_are_stored(
    tmp_path: Path, served: ServedBench, own: Bench
) -> None:
    """An iterator of keys is read once, however often the call checks it."""
    client = served.connect(retry_for=0)
    with timerstore.open_shards(tmp_path / "shards", 2, small(), threads=False) as shards:
        for store in (own.store, client, shards):
            store.put("t", b"x", keys=iter(("k", "l")))
            store.put("t", b"x", keys=iter(("k", "l")), message_id="m")
            assert store.put("t", b"x", keys=iter(("k", "l")), message_id="m").duplicate
            store.put_many("t", [b"x"], keys=[iter(("k", "l"))])
            store.put_many("t", [b"x"], keys=[iter(("k", "l"))], priority=[0])
            store.flush()
            assert [one.keys for one in store.query("t", "l")] == [("k", "l")] * 4
    asyncio.run(_put_once(AsyncTimerStore(own.store, ThreadPoolExecutor(1))))
    own.store.flush()
    assert [one.keys for one in own.store.query("a", "l")] == [("k", "l")] * 2


async def _put_once(store: AsyncTimerStore) -> None:
    await store.put("a", b"x", keys=iter(("k", "l")))
    await store.put("a", b"x", keys=iter(("k", "l")))
    store.detach()
