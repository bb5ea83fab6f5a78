"""Let a real broker open directories that we wrote, continue with them, and return them.

One Java process runs four brokers. One directory was closed cleanly, one was recovered here after
its writer was killed, one has the default geometry, and the broker of the last one is killed while
it delivers. All have timers that rolled, cancels, every level, the offsets of a group and an index.
"""

import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

import timerstore
from tests.support import disk_reader as disk
from tests.support.broker import our_store as shared_store
from tests.support.broker import process as rocketmq
from tests.support.broker.our_store import GROUP, QUEUES, SMALL, Made, number_of
from tests.support.broker.process import BrokerMessage, RocketMQ
from timerstore.testing import ManualClock

pytestmark = [pytest.mark.deep, pytest.mark.timeout(400)]

NAMES = ("closed", "recovered", "default")
KILLED = "killed"
SOON_S = 8
GIVE_UP_MS = 60_000
GONE_ON = 5  # the value that the broker adds to the offset of a group


_TRIES = 30


class Ran(NamedTuple):
    """The effects of a broker on a directory."""

    made: Made
    before: dict[tuple[str, int], list[disk.Record]]  # every queue as we left it
    queues: dict[tuple[str, int], list[BrokerMessage]]  # every queue after the broker
    waiting: list[BrokerMessage]  # the queue of the timer topic
    by_key: dict[str, list[BrokerMessage]]
    waiting_by_key: dict[str, list[BrokerMessage]]
    committed: dict[int, int]
    ended_ms: int


def build(name: str, folder: Path, end_ms: int) -> Made:
    config = {"topic_queue_count": 2} if name == "default" else SMALL
    if name == "recovered":
        config = config | {"delivered_properties": "needed"}
    made = shared_store.make(
        folder / name, config, end_ms,
        soon_s=SOON_S, dies=name == "recovered",
    )  # fmt: skip
    if name == "recovered":
        shared_store.recover(made)
    return made


def all_queues(process: RocketMQ, name: str) -> dict[tuple[str, int], list[BrokerMessage]]:
    return {queue: process.messages(name, *queue) for queue in QUEUES}


def numbers(queues: dict[tuple[str, int], list[BrokerMessage]]) -> Counter[int]:
    return Counter(number_of(one.body) for queue in queues.values() for one in queue)


def ask_all(process: RocketMQ, name: str, made: Made) -> Ran:
    keys = [one.key for one in made.puts if one.key]
    by_key: dict[str, list[BrokerMessage]] = {}
    for _ in range(_TRIES):
        queues = all_queues(process, name)
        for topic in shared_store.TOPICS:
            own = [one.key for one in made.puts if one.key and one.topic == topic]
            by_key.update(zip(own, process.query(name, topic, own), strict=True))
        out = numbers(queues)
        if all(len(by_key[one.key]) == out[one.number] for one in made.puts if one.key):
            break
        time.sleep(0.5)  # the broker writes its index after its queues
    waiting_by_key = dict(zip(keys, process.query(name, disk.TIMER_TOPIC, keys), strict=True))
    committed = {q: process.committed(name, GROUP, "orders", q) for q in (0, 1)}
    for queue_id, offset in committed.items():
        process.ask("commit", name, group=GROUP, topic="orders", queue_id=queue_id,
                    offset=offset + GONE_ON)  # fmt: skip
    return Ran(
        made,
        {},
        queues,
        process.messages(name, disk.TIMER_TOPIC, 0),
        by_key,
        waiting_by_key,
        committed,
        rocketmq.now_ms(),
    )


def recall_some(process: RocketMQ, name: str, made: Made) -> None:
    """Recall by our handles. The messages are due after this test, so that there is no race."""
    late_ms = made.end_ms + 1_000_000
    for one in [one for one in made.puts if one.due_ms > late_ms and not one.is_cancelled][::3]:
        process.recall(name, one.topic, one.handle)
        one.is_cancelled = True


def wait_until_out(process: RocketMQ, name: str, made: Made) -> None:
    """Wait until all due messages were delivered, and then long enough for a second delivery."""
    process.wait_until(made.soon_over_ms)
    due = made.out_by(made.soon_over_ms)
    while due - numbers(all_queues(process, name)).keys():
        assert rocketmq.now_ms() < made.end_ms + GIVE_UP_MS
        process.wait_until(rocketmq.now_ms() + 200)
    process.wait_until(rocketmq.now_ms() + 1200)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    rocketmq.need_rocketmq()
    folder = tmp_path_factory.mktemp("ours")
    process = RocketMQ(folder / "java")
    try:
        made, before = {}, {}
        for name in (*NAMES, KILLED):
            made[name] = build(name, folder, rocketmq.now_ms())
            root = made[name].root
            before[name] = {queue: shared_store.records_of(root, *queue) for queue in QUEUES}
        for name in (*NAMES, KILLED):
            process.open(name, made[name].root, made[name].config)
            recall_some(process, name, made[name])
        for name in NAMES:
            wait_until_out(process, name, made[name])
        found = {name: ask_all(process, name, made[name]) for name in NAMES}
        process.close(*NAMES)
        found[KILLED] = ask_all(process, KILLED, made[KILLED])
    finally:
        process.kill()
    return {name: one._replace(before=before[name]) for name, one in found.items()}


each = pytest.mark.parametrize("name", NAMES)


@each
def test_broker_finds_every_message(ran: dict[str, Ran], name: str) -> None:
    for queue, records in ran[name].before.items():
        theirs = ran[name].queues[queue][: len(records)]
        assert len(records) > 50
        for record, one in zip(records, theirs, strict=True):
            assert one.body == record.body
            assert (one.topic, one.queue_id) == queue
            assert (one.queue_offset, one.store_ms) == (record.queue_offset, record.store_ms)
            assert one.properties == {k: v for k, v in record.properties.items() if v}


@each
def test_broker_delivers_pending_messages_once_and_never_early(
    ran: dict[str, Ran], name: str
) -> None:
    found, made = ran[name], ran[name].made
    counts = numbers(found.queues)
    due = made.out_by(made.soon_over_ms)
    assert due - {number_of(r.body) for queue in found.before.values() for r in queue}
    assert set(counts.values()) == {1}
    assert due <= counts.keys() <= made.out_by(found.ended_ms)
    for queue in found.queues.values():
        for one in queue:
            assert one.store_ms >= made.due_ms[number_of(one.body)]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "default"])
def test_broker_keeps_rolled_messages_and_rolls_them_on(ran: dict[str, Ran], name: str) -> None:
    found, made = ran[name], ran[name].made
    rolled = [one for one in found.waiting if "TIMER_ROLL_TIMES" in one.properties]
    ours = {one.properties["UNIQ_KEY"] for one in rolled if one.store_ms <= made.end_ms}
    theirs = {one.properties["UNIQ_KEY"] for one in rolled if one.store_ms > made.end_ms}
    assert min(len(ours), len(theirs), len(ours & theirs)) > 10


@each
def test_broker_takes_over_each_level(ran: dict[str, Ran], name: str) -> None:
    found, made = ran[name], ran[name].made
    before = {number_of(record.body) for queue in found.before.values() for record in queue}
    left = [one for one in made.puts if one.level and one.number not in before]
    assert {one.level for one in left} == set(range(1, shared_store.LEVEL_COUNT + 1))
    assert {one.number for one in left} <= numbers(found.queues).keys()


@each
def test_broker_applies_cancels(ran: dict[str, Ran], name: str) -> None:
    found, made = ran[name], ran[name].made
    cancelled = {one.number for one in made.puts if one.is_cancelled}
    assert len(cancelled) > 30
    soon = {one.number for one in made.puts if made.end_ms < one.due_ms < made.soon_over_ms}
    assert cancelled & soon
    recalled = {m.properties["UNIQ_KEY"] for m in found.waiting if m.body == b"0"}  # by our handles
    assert len(recalled) > 5
    assert recalled <= {one.message_id for one in made.puts if one.number in cancelled}
    assert not cancelled & numbers(found.queues).keys()


@each
def test_broker_finds_messages_by_key(ran: dict[str, Ran], name: str) -> None:
    found, made = ran[name], ran[name].made
    out = numbers(found.queues)
    for one in made.puts:
        if one.key:
            bodies = [number_of(message.body) for message in found.by_key[one.key]]
            assert bodies == [one.number] * out[one.number]
    timers = {number_of(message.body) for message in found.waiting if len(message.body) > 6}
    assert len(timers) > 100
    for one in made.puts:
        if one.key and one.number in timers:  # one copy for each roll
            assert {number_of(m.body) for m in found.waiting_by_key[one.key]} == {one.number}


@each
def test_group_offsets_are_shared_with_the_broker(ran: dict[str, Ran], name: str) -> None:
    found, made = ran[name], ran[name].made
    wanted = {queue_id: offset for (_, queue_id), offset in made.committed.items()}
    assert found.committed == wanted
    assert min(wanted.values()) > 0
    clock = ManualClock(rocketmq.now_ms())
    with timerstore.open(made.root, made.config, clock=clock, threads=False) as store:
        ours = store.committed("orders", GROUP)
    assert ours == {queue_id: offset + GONE_ON for queue_id, offset in wanted.items()}


@each
def test_store_continues_after_the_broker_closed(ran: dict[str, Ran], name: str) -> None:
    made = ran[name].made
    shared_store.check_all_out_once(made, shared_store.finish(made, rocketmq.now_ms()))


def test_store_continues_after_the_broker_was_killed(ran: dict[str, Ran]) -> None:
    made = ran[KILLED].made
    assert disk.is_unclean(made.root)
    out = numbers(ran[KILLED].queues)
    before = {number_of(r.body) for queue in ran[KILLED].before.values() for r in queue}
    assert out.keys() - before
    assert made.out_by(ran[KILLED].ended_ms + 3_600_000) - out.keys()
    shared_store.check_all_out_once(made, shared_store.finish(made, rocketmq.now_ms()))
