"""Odd arguments: each argument of each public call is given each value of a table.

odd_arguments.json says which values are accepted and which error the others raise. A new call or
argument gets its rows by TIMERSTORE_WRITE_ANSWERS=1 (tests/support/answers.py).
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support.amounts import sample
from tests.support.answers import Answers
from tests.support.bench import NOW, Bench, small
from tests.support.odd_values import ASKED, BESIDE, GOOD, WAITS, Odd, odd_values
from timerstore import MessageError, PutReceipt, TimerStoreError, errors
from timerstore.aio import AsyncConsumer, AsyncTimerStore
from timerstore.shards.receipt import ShardReceipt
from timerstore.testing import ManualClock
from timerstore.types.receipts import ReceiptOrigin

ODD = odd_values()
ANSWERS = Answers(Path(__file__).with_name("odd_arguments.json"))


@dataclass
class Subject:
    """A store, by one of its doors."""

    door: Any
    blocking: Any
    receipt: Any
    folder: Path

    def good(self, name: str) -> Any:
        if name in {"message", "receipt_or_handle"}:
            return self.receipt
        if name in {"receipts", "receipts_or_handles", "batches"}:
            return []
        return self.folder / "copy" if name == "target" else GOOD[name]


def answer(call: Callable[..., Any], *given: Any, **named: Any) -> str:
    """Make a call, and what it answers answer; return "accepted", or the name of its error."""
    try:
        got = call(*given, **named)
        if inspect.iscoroutine(got):
            asyncio.run(got)
        elif inspect.isgenerator(got):
            next(got, None)
        elif type(got).__name__ == "Consumer":
            got.close()
    except TimerStoreError as error:
        return type(error).__name__
    return "accepted"


def by_answer(found: dict[str, str]) -> dict[str, Any]:
    """Turn {kind of value: answer} into the most frequent answer and, of the others, the kinds."""
    often = Counter(found.values()).most_common(1)[0][0]
    others = sorted(set(found.values()) - {often})
    return {"most": often, **{one: sorted(k for k in found if found[k] == one) for one in others}}


@pytest.fixture(params=["store", "shards", "aio"])
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Subject]:
    monkeypatch.chdir(tmp_path)  # an odd text may be the name of a folder
    clock, path = ManualClock(NOW), tmp_path / "store"
    if request.param == "shards":
        with timerstore.open_shards(path, 2, small(), clock=clock, threads=False) as shards:
            for key in "abcd":  # by which both shards know the topic, in every run
                shards.put("t", b"x", keys=key)
            receipt = shards.put("t", b"x", delay=1000.0, keys="a")
            yield Subject(shards, shards, receipt, tmp_path)
        return
    bench = Bench(path)
    receipt = bench.store.put("t", b"x", delay=1000.0)
    bench.store.put("t", b"y")
    bench.turn()
    with ThreadPoolExecutor(1) as pool:
        door = bench.store if request.param == "store" else AsyncTimerStore(bench.store, pool)
        yield Subject(door, bench.store, receipt, tmp_path)
    bench.close()


def cases(subject: Subject, name: str) -> Iterator[tuple[list[Any], dict[str, Any], int | str]]:
    """What a call takes that is good, and which of it is to be odd."""
    given = list(inspect.signature(getattr(subject.door, name)).parameters.values())
    needed = [
        one.name
        for one in given
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    good = [subject.good(one) for one in needed]
    of_shard = name in {"pull", "pull_batch", "begin_pull", "begin_pull_batch", "offset_at"}
    beside = (
        {"shard": 0} if of_shard and isinstance(subject.blocking, timerstore.ShardedStore) else {}
    )
    beside = {**beside, **BESIDE.get(name, {})}
    for at in range(len(needed)):
        yield good, beside, at
    named = [
        one.name for one in given if one.kind is one.KEYWORD_ONLY or one.default is not one.empty
    ]
    if {"topic", "group"} <= set(needed) and any(one.kind is one.VAR_KEYWORD for one in given):
        named += ASKED
    for one in named:
        yield good, BESIDE.get(f"{name}.{one}", beside), one


def calls(door: Any) -> list[str]:
    return [
        name
        for name, _ in inspect.getmembers(type(door), callable)
        if not name.startswith("_") and name not in {"close", "services", "answer", "turn"}
    ]


def test_store_call_has_the_recorded_answer_for_each_odd_argument(subject: Subject) -> None:
    give_all(subject, type(subject.door).__name__)


def test_reader_call_has_the_recorded_answer_for_each_odd_argument(bench: Bench) -> None:
    receipt = bench.store.put("t", b"x", delay=1000.0)
    bench.store.put("t", b"y")
    bench.turn()
    bench.store.flush()
    with timerstore.open(bench.root, bench.config, clock=bench.clock, read_only=True) as one:
        give_all(Subject(one, one, receipt, bench.root), "ReadOnlyStore")


def give_all(subject: Subject, owner: str) -> None:
    """Give each value to each argument of each call."""
    for name in calls(subject.door):
        call = getattr(subject.door, name)
        for good, beside, which in cases(subject, name):
            found = {}
            for kind, value in odd_values().items():
                if which == "wait" and kind in WAITS:
                    continue
                given, named = list(good), dict(beside)
                if isinstance(which, int):
                    given[which] = value
                else:
                    named[which] = value
                try:
                    found[kind] = answer(call, *given, **named)
                except Exception as error:
                    error.add_note(f"{name}: {which} was given {kind}")
                    raise
            ANSWERS.check(f"{owner}.{name} {which}", by_answer(found))


def test_consumer_call_has_the_recorded_answer_for_each_odd_argument(subject: Subject) -> None:
    consumer = subject.blocking.consumer("t", "readers")
    if isinstance(subject.door, AsyncTimerStore):
        consumer = AsyncConsumer(consumer, subject.door)
    for name in ("poll", "seek", "commit"):
        call = getattr(consumer, name)
        for argument in inspect.signature(call).parameters:
            found = {
                kind: answer(call, **{argument: value})
                for kind, value in odd_values().items()
                if argument != "wait" or kind not in WAITS
            }
            owner = f"consumer of {type(subject.door).__name__}"
            ANSWERS.check(f"{owner}.{name} {argument}", by_answer(found))
    for value in ODD.values():
        answer(consumer.commit, {0: value})
        with suppress(TypeError):  # has no hash: it is no key of a mapping
            answer(consumer.commit, {value: 0})


# --- made-up receipts ---------------------------------------------------------------------------


def made_up(receipt: PutReceipt) -> Iterator[PutReceipt]:
    """Receipts in which one field is another."""
    yield tuple.__new__(PutReceipt, ())
    for far in (2**62, 2**63 - 1, 2**63, -(2**63)):
        for field in ("counter", "timer_id", "log_offset", "due_ms"):
            other: dict[str, Any] = {field: far}
            yield receipt._replace(**other)
    for value in ODD.values():
        for field in receipt._fields:
            yield receipt._replace(**{field: value})
        for field in receipt.origin._fields:
            yield receipt._replace(origin=receipt.origin._replace(**{field: value}))


def test_forged_receipt_is_rejected_or_unknown(subject: Subject) -> None:
    is_sharded = isinstance(subject.receipt, ShardReceipt)
    receipt = subject.receipt.receipt if is_sharded else subject.receipt
    given: list[Any] = list(made_up(receipt))
    if is_sharded:
        given = [ShardReceipt(subject.receipt.shard, one) for one in given]
        given += [ShardReceipt(value, receipt) for value in ODD.values()]
        given += [ShardReceipt(0, value) for value in ODD.values()]
    door = subject.door
    for one in given:
        answer(door.explain, one)
        answer(door.reschedule, one)
        for call in (door.ack, door.nack, door.extend):
            answer(call, one)


def test_receipt_with_a_changed_field_cancels_nothing(bench: Bench) -> None:
    receipt = bench.store.put("t", b"x", delay=1000.0)
    bench.turn()
    means_the_same = {
        "queue_id",
        "queue_offset",
        "log_offset",
        "duplicate",
        "cancelled",
        "timer_id",
    }
    for field in set(receipt._fields) - means_the_same:
        for value in ODD.values():
            answer(bench.store.cancel, receipt._replace(**{field: value}))
            answer(bench.store.cancel_many, [receipt._replace(**{field: value})])
    assert [one.message_id for one in bench.store.pending()] == [receipt.message_id]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"origin": {"topic": "t"}},
            "receipt: wanted the origin of a put's receipt, got dict {'top",
        ),
        (
            {"timer_id": "7"},
            "receipt: wanted a whole number of -1 or more as timer_id, got str '7'",
        ),
        ({"due_ms": 1.5}, "as due_ms, got float 1.5"),
        ({"queue_offset": [1]}, "as queue_offset, got list [1]"),
        ({"origin": ReceiptOrigin("t", "A", "b", 0)}, "as its origin's precision_ms, got int 0"),
        ({"origin": ReceiptOrigin(b"t", "A", "b", 1)}, "as its origin's topic, got bytes b't'"),  # type: ignore[arg-type]
    ],
)
def test_error_of_a_forged_receipt_names_the_field(
    bench: Bench, changed: dict[str, Any], told: str
) -> None:
    receipt = bench.store.put("t", b"x", delay=1000.0)._replace(**changed)
    for call in (bench.store.cancel, bench.store.reschedule, bench.store.explain):
        with pytest.raises(MessageError) as caught:
            call(receipt)
        assert any(told in one for one in caught.value.problems), caught.value
    if "queue_offset" not in changed:  # which of a timer says nothing
        with pytest.raises(MessageError, match=r"receipts_or_handles\[0\]: receipt: wanted"):
            bench.store.cancel_many([receipt])


def test_forged_message_is_rejected(bench: Bench) -> None:
    bench.store.put("t", b"x")
    bench.store.put("t", b"y", delay=1000.0)
    bench.turn()
    (message,), (pending,) = bench.out(), bench.store.pending()
    consumer = bench.store.consumer("t", "g")
    for value in ODD.values():
        for field in ("topic", "queue_id", "queue_offset", "properties"):
            other = replace(message, **{field: value})
            answer(bench.store.explain, other)
            answer(consumer.commit, other)
        for field in ("topic", "message_id"):
            answer(bench.store.explain, replace(pending, **{field: value}))


# --- flags and words ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda s, v: s.put("t", b"x", replace=v), "replace: wanted True or False, got "),
        (lambda s, v: s.put_many("t", [b"x"], atomic=v), "atomic: wanted True or False, got "),
        (lambda s, v: s.put("t", b"x", flush=v), "flush: wanted 'sync' or 'async', got "),
        (lambda s, v: s.put_many("t", [b"x"], flush=v), "flush: wanted 'sync' or 'async', got "),
        (lambda s, v: s.put_every("t", b"x", every=60.0, missed=v), "missed: wanted one of "),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "wrong",
    sample(
        [np.array([True, False]), np.array([]), "yes", 1, [], Odd(), 10**5000],
        "odd values of a flag",
    ),
    ids=range(7),
)
def test_flags_reject_other_types(
    subject: Subject, call: Callable[..., Any], told: str, wrong: Any
) -> None:
    with pytest.raises(MessageError) as caught:
        asyncio.run(call(subject.door, wrong))  # refused before that, where it is not awaited
    assert told in str(caught.value)


@pytest.mark.parametrize("flag", [True, False, np.True_, np.False_])
def test_numpy_bools_are_flags(bench: Bench, flag: Any) -> None:
    assert len(bench.store.put_many("t", [b"x"], atomic=flag)) == 1
    bench.store.put("t", b"x", key="k" if flag else None, replace=flag, delay=5.0)


# --- what errors show ---------------------------------------------------------------------------


def test_quoted_value_in_an_error_is_short() -> None:
    for value in ODD.values():
        assert 0 < len(errors.quoted(value)) <= 80
        assert 0 < len(errors.typed(value)) <= 140
    assert errors.typed(None) == "None"
    assert errors.typed(7) == "int 7"
    assert errors.quoted(10**5000) == "a whole number of 16610 bits"
    assert errors.typed(Odd()) == "Odd without a text"
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert errors.quoted(nested) == "list without a text"
    while nested:
        (nested,) = nested
