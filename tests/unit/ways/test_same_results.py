"""The result of each reading call is the same in each way as that of the store itself."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from tests.support.bench import NOW, Bench
from tests.support.consuming import Running
from timerstore import MessageError, NotPendingError, PutReceipt
from timerstore.types.reports import Histogram

_AT = datetime.fromtimestamp(NOW / 1000, UTC)


@pytest.fixture
def filled(bench: Bench) -> Bench:
    store = bench.local
    for k in range(5):
        store.put("t", b"%d" % k, tags="ab"[k % 2], keys=["k", f"k{k}"], properties={"p": "v"})
    store.put_many("t", [b"1", b"", b"333"], keys=["a", "b", "c"])
    store.put("later", b"later", delay=5, message_id="id")
    store.put("later", b"level", level=1)
    store.put_many("later", [b"1", b"22"], delay=timedelta(seconds=7))
    store.put_every("t", b"tick", every=60, name="tick")
    bench.turn()
    for one in store.receive("t", "g", max_count=3, lease=9):
        store.nack(one, delay=one.body[0], error="why")
    store.receive("t", "g", max_count=2)
    (buried,) = store.receive("t", "h")
    store.bury(buried, error="gone")
    with store.consumer("t", "reader") as consumer:
        consumer.poll(2)
        consumer.commit()
    bench.turn()
    return bench


READS: dict[str, Any] = {
    "topics": lambda store: store.topics(),
    "pending": lambda store: list(store.pending()),
    "pending of a topic": lambda store: list(store.pending(topic="later")),
    "pending between": lambda store: list(store.pending(begin_ms=NOW + 1, end_ms=NOW + 6000)),
    "pull": lambda store: store.pull("t", 0, 0),
    "pull some": lambda store: store.pull("t", 0, 1, max_count=2),
    "pull by tags": lambda store: store.pull("t", 0, 0, tags="b"),
    "pull by sql": lambda store: store.pull("t", 0, 0, sql="TAGS = 'a'"),
    "pull past the end": lambda store: store.pull("t", 0, 1000),
    "query": lambda store: store.query("t", "k"),
    "query some": lambda store: store.query("t", "k", max_count=2),
    "query by id": lambda store: store.query("later", "id"),
    "explain": lambda store: store.explain(next(iter(store.pending(topic="later")))),
    "explain an id": lambda store: store.explain("id", topic="later"),
    "backlog": lambda store: store.backlog("t", "g"),
    "backlog of one that buried": lambda store: store.backlog("t", "h"),
    "dead_letters": lambda store: list(store.dead_letters("h")),
    "dead_letters of a topic": lambda store: list(store.dead_letters("h", topic="u")),
    "recurring": lambda store: store.recurring(),
    "committed": lambda store: store.committed("t", "reader"),
    "offset_at": lambda store: store.offset_at("t", 0, NOW + 1),
    "timing_distribution": lambda store: store.timing_distribution(),
    "congestion": lambda store: store.congestion(),
    "histogram by second": lambda store: _columns(store.histogram(by="second")),
    "histogram of a minute": lambda store: _columns(
        store.histogram(_AT, _AT + timedelta(minutes=1), "minute")
    ),
    "pull_batch": lambda store: _batch(store.pull_batch("t", 0, 0)),
}


def _columns(found: Histogram) -> list[Any]:
    return [(one.dtype, one.tolist()) for one in found]


def _batch(found: Any) -> Any:
    columns = (found.flag, found.log_offset, found.body_offsets)
    arrays = [(one.dtype, one.tolist()) for one in columns]
    return list(found), found.body_list(), found.next_offset, arrays, found.to_arrow().to_pylist()


def test_each_reading_call_has_the_result_of_the_store(filled: Bench) -> None:
    found = {name: read(filled.store) for name, read in READS.items()}
    wanted = {name: read(filled.local) for name, read in READS.items()}
    for name, one in found.items():
        assert one == wanted[name], name
        assert type(one) is type(wanted[name]), name
    assert [name for name, one in wanted.items() if not one and "of a topic" not in name] == []


def test_numbers_of_the_store_are_shown_in_each_way(filled: Bench) -> None:
    ours, theirs = filled.store.stats(), filled.local.stats()
    assert ours.keys() == theirs.keys()
    for name in ("pending_messages", "group_ready_messages", "group_dead_letters"):
        assert ours[name] == theirs[name]


ERRORS: list[Any] = [
    lambda s: s.put("t", b"x", delay=-1),
    lambda s: s.put("bad topic", b"x"),
    lambda s: s.put("t", b"x", delay=1, deliver_ms=5),
    lambda s: s.put("t", "text"),
    lambda s: s.put("t", b"x", tags="a||b", keys=["\x01"]),
    lambda s: s.put("t", b"x", flush="maybe"),
    lambda s: s.put("t", b"x", deliver_ms=1_700_000_000),
    lambda s: s.put("t", b"x", key="k", replace=True, unique=True),
    lambda s: s.put("t", b"x", priority=10),
    lambda s: s.put("t", b"x", wait_at_most=-1),
    lambda s: s.put_many("t", [b"x"], delay=[1, 2]),
    lambda s: s.put_many("t", [b"x"], message_ids=["a", "b"]),
    lambda s: s.put_every("t", b"x"),
    lambda s: s.pull("t", 5, 0),
    lambda s: s.pull("t", 0, -1),
    lambda s: s.pull("t", 0, 0, sql="a >"),
    lambda s: s.pull("t", 0, 0, max_count=0),
    lambda s: s.pull("t", 0, 0, shard=1),
    lambda s: s.query("t", ""),
    lambda s: s.query("t", "k", max_count=0),
    lambda s: s.receive("t", "g", lease=0),
    lambda s: s.receive("t", "g", max_count=0),
    lambda s: s.receive("t", "g", wait=-1),
    lambda s: s.receive(["t", "t"], "g"),
    lambda s: s.receive("t", "g", backoff=[-1]),
    lambda s: s.lease_consumer("t", "g", max_count=3),
    lambda s: s.ack("nonsense"),
    lambda s: s.ack_many(["nonsense"]),
    lambda s: s.nack("nonsense", delay=1),
    lambda s: s.extend("nonsense"),
    lambda s: s.renew("nonsense"),
    lambda s: s.bury("nonsense"),
    lambda s: s.requeue("a b"),
    lambda s: s.dead_letters("a b"),
    lambda s: s.backlog("t", "a b"),
    lambda s: s.cancel("nonsense"),
    lambda s: s.cancel_many(["nonsense"]),
    lambda s: s.reschedule("nonsense", delay=1),
    lambda s: s.explain("nonsense"),
    lambda s: s.consumer("t", ""),
    lambda s: s.pending(begin_ms="x"),
    lambda s: s.histogram(by="year"),
    lambda s: s.pace("t", -1),
]


def test_each_error_is_that_of_the_store(filled: Bench) -> None:
    for number, call in enumerate(ERRORS):
        with pytest.raises(MessageError) as theirs:
            call(filled.local)
        with pytest.raises(MessageError) as ours:
            call(filled.store)
        assert type(ours.value) is type(theirs.value), number
        assert str(ours.value) == str(theirs.value), number
        assert ours.value.problems == theirs.value.problems, number


def test_errors_carry_their_result(bench: Bench) -> None:
    moved = bench.store.put("t", b"x", delay=5)
    bench.store.cancel(moved)
    with pytest.raises(NotPendingError) as caught:
        bench.store.reschedule(moved, delay=7)
    with pytest.raises(NotPendingError) as wanted:
        bench.local.reschedule(moved, delay=7)
    assert (str(caught.value), caught.value.result) == (str(wanted.value), wanted.value.result)


def test_unique_puts_made_at_once_store_one(bench: Bench) -> None:
    def put() -> PutReceipt:
        return bench.store.put("t", b"x", key="k", unique=True, delay=9)

    receipts = [one.answer() for one in [Running(put) for _ in range(20)]]
    assert sum(not one.duplicate for one in receipts) == 1
    assert len({one.handle for one in receipts}) == 1


@pytest.mark.parametrize(
    ("bodies", "more"),
    [
        ([b"ab", bytearray(b"c"), memoryview(b"de")], {}),
        ((b"abcde", np.array([0, 2, 3, 5])), {}),
        ((bytearray(b"abcde"), [0, 2, 3, 5]), {"delay": [1, 2, 3]}),
        ((b"abcde", np.array([0, 2, 3, 5], np.int32)), {"delay": np.array([1.5, 2, 3])}),
        ([b"ab", b"c", b"de"], {"deliver_ms": np.array([1, 2, 3]) * 1000 + NOW}),
        ([b"ab", b"c", b"de"], {"message_ids": ["x", None, "z"], "keys": ["k", ["l", "m"], ()]}),
        ((b"abcde", np.array([0, 2, 3, 5])), {"message_ids": (b"xyz", np.array([0, 1, 2, 3]))}),
        ([b"ab", b"c", b"de"], {"atomic": True, "queue_id": np.int64(1)}),
    ],
)
def test_put_many_takes_columns(bench: Bench, bodies: Any, more: dict[str, Any]) -> None:
    batch = bench.store.put_many("t", bodies, **more)
    assert len(batch) == 3
    bench.turn(10_000)
    assert sorted(bench.bodies("t", batch.queue_id)) == [b"ab", b"c", b"de"]
