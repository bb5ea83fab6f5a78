"""Open and continue stores that a real broker wrote, and closed or left when it was killed.

One Java process runs two brokers on new directories. The messages come over the network.
"""

from pathlib import Path
from random import Random
from typing import Any

import pytest

import timerstore
from tests.support import disk_reader as disk
from tests.support.broker import our_store as shared_store
from tests.support.broker import process as rocketmq
from tests.support.broker.our_store import QUEUES, SMALL, Made, Put, number_of
from tests.support.broker.process import RocketMQ
from timerstore import CancelResult, LockedError, StoreConfig
from timerstore.testing import ManualClock

pytestmark = [pytest.mark.deep, pytest.mark.timeout(400)]

NAMES = ("closed", "killed")
CONFIG = StoreConfig(**SMALL, level_delays="2s 4s 30s 1m 1h", flush="async")
COUNT = 500
SPREAD_MS = 60_000  # longer than it takes to close one broker and kill the other
NEAR_MS = 4000  # messages due earlier are not recalled, which would be a race
HOUR_MS = 3_600_000


def some_messages(now_ms: int) -> list[dict[str, Any]]:
    """Return messages due now, levels, timers over the next minute and far ones.

    `due_ms` is for us.
    """
    random, found = Random(11), []
    for number in range(COUNT):
        topic, queue_id = QUEUES[number % len(QUEUES)]
        kind = random.randrange(10)
        properties: dict[str, Any] = {"UNIQ_KEY": f"{number:032X}", "KEYS": f"key-{number}"}
        due_ms, level = now_ms, 0
        if kind == 1:
            level = random.randint(1, 5)
            properties["DELAY"] = level
            due_ms = now_ms + [2000, 4000, 30_000, 60_000, HOUR_MS][level - 1]
        elif kind > 1:
            delay_ms = random.randrange(1000, SPREAD_MS) if kind < 8 else random.randrange(HOUR_MS)
            due_ms = now_ms + delay_ms
            by = random.choice(("TIMER_DELIVER_MS", "TIMER_DELAY_MS"))
            properties[by] = due_ms if by == "TIMER_DELIVER_MS" else delay_ms
        body = shared_store.body_of(number, random.randrange(7, 600))
        found.append(
            {"topic": topic, "queue_id": queue_id, "body": body, "properties": properties,
             "due_ms": due_ms, "level": level}
        )  # fmt: skip
    return found


def fill(process: RocketMQ, name: str, root: Path) -> Made:
    process.open(name, root, CONFIG)
    for topic in shared_store.TOPICS:
        process.ask("topic", name, topic=topic, queues=2)
    messages = some_messages(rocketmq.now_ms())
    puts = []
    for number, (one, answer) in enumerate(
        zip(messages, process.send(name, messages), strict=True)
    ):
        key = one["properties"]["UNIQ_KEY"]
        put = Put(number, one["topic"], one["queue_id"], one["due_ms"], "", key, "", one["level"])
        put.handle = answer.get("recallHandle", "")
        puts.append(put)
    near_ms = rocketmq.now_ms() + NEAR_MS
    for put in puts[::5]:
        if put.handle and put.due_ms > near_ms:
            process.recall(name, put.topic, put.handle)
            put.is_cancelled = True
    return Made(root, CONFIG, rocketmq.now_ms(), puts, {})


@pytest.fixture(scope="module")
def wrote(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    rocketmq.need_rocketmq()
    folder = tmp_path_factory.mktemp("theirs")
    process = RocketMQ(folder / "java")
    try:
        made = {name: fill(process, name, folder / name) for name in NAMES}
        with pytest.raises(LockedError):
            timerstore.open(made["killed"].root, CONFIG)
        process.wait_until(made["closed"].end_ms + 3000)
        process.close("closed")
    finally:
        process.kill()
    return made


def numbers_out(root: Path) -> list[int]:
    """Return the numbers in the topics of a broker, by the second reader."""
    return [
        number_of(record.body)
        for record in disk.records(root)
        if record.topic in shared_store.TOPICS
    ]


@pytest.mark.parametrize("name", NAMES)
def test_broker_left_timers_pending(wrote: dict[str, Made], name: str) -> None:
    made = wrote[name]
    assert disk.is_unclean(made.root) == (name == "killed")
    timers = {one.number for one in made.puts if one.handle and not one.is_cancelled}
    out = timers & set(numbers_out(made.root))
    assert len(out) > 20
    assert len(timers - out) > 20


@pytest.mark.parametrize("name", NAMES)
def test_each_message_is_delivered_once(wrote: dict[str, Made], name: str) -> None:
    made = wrote[name]
    clock = ManualClock(rocketmq.now_ms())
    with timerstore.open(made.root, CONFIG, clock=clock, threads=False) as store:
        waiting = {pending.message_id for pending in store.pending()}
        left = [one for one in made.puts if one.handle and not one.is_cancelled]
        left = [one for one in left if one.message_id in waiting]
        for one in left[::4]:  # by the handles of the broker
            assert store.cancel(one.handle) is CancelResult.CANCELLED
            one.is_cancelled = True
        for one in [one for one in made.puts if one.is_cancelled]:
            assert store.cancel(one.handle) is CancelResult.ALREADY_CANCELLED
    shared_store.check_all_out_once(made, shared_store.finish(made, rocketmq.now_ms()))
