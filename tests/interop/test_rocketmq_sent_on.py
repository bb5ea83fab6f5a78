"""Let clients of a real broker forward our deliveries, and delay messages in unusual ways.

Each message is delivered once. A client's message keeps all given properties, ours too. A broker
uses one of the properties with a time, and ignores the others.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support import disk_reader as disk
from tests.support.broker import process as rocketmq
from tests.support.broker.our_store import SMALL, number_of
from tests.support.broker.process import BrokerMessage, RocketMQ
from timerstore import StoreConfig
from timerstore.testing import ManualClock, Stepper

pytestmark = [pytest.mark.more, pytest.mark.timeout(120)]

CONFIG = StoreConfig(**{**SMALL, "roll_window_slots": 172_800})
REFUSED = (
    "no topic!",
    "../../T",
    disk.TIMER_TOPIC,
    disk.LEVEL_TOPIC,
)  # a topic to which no message may be sent
REFUSED_FROM = 100  # numbers of their messages
COUNT = 12
SOON_MS = 3000
LATER_MS = 20_000
GIVE_UP_MS = 15_000
WAITS = 98  # for two hours
ODD = (
    {"DELAY": "-1", "TIMER_DELAY_MS": LATER_MS},
    {"DELAY": "0", "TIMER_DELAY_MS": LATER_MS},
    {"TIMER_DELAY_MS": LATER_MS, "TIMER_DELIVER_MS": "-1"},
    {"TIMER_DELAY_SEC": LATER_MS // 1000, "TIMER_DELIVER_MS": "soon"},
    {"TIMER_DELAY_SEC": LATER_MS // 1000, "TIMER_ROLL_TIMES": "none"},
)


def deliver_some(root: Path) -> None:
    now_ms = rocketmq.now_ms()
    clock = ManualClock(now_ms - 10_000)
    with timerstore.open(root, CONFIG, clock=clock, threads=False) as store:
        stepper = Stepper(store)
        for number in range(COUNT):
            store.put("orders", b"%06d." % number, deliver_ms=now_ms - 5000 + number, queue_id=0)
        stepper.settle()
        clock.set(now_ms)
        stepper.settle()
        assert len(store.pull_batch("orders", 0, 0, max_count=100)) == COUNT


def sent_on(one: BrokerMessage, number: int, **more: Any) -> dict[str, Any]:
    """Return the message of a client that omits the broker's properties, but does not know ours."""
    theirs = ("TIMER_", "REAL_", "UNIQ_KEY")
    kept = {name: text for name, text in one.properties.items() if not name.startswith(theirs)}
    assert "TS_ID" in kept
    return message(number, **kept, **more)


def message(number: int, **properties: Any) -> dict[str, Any]:
    properties = {"UNIQ_KEY": f"{number:032X}", **properties}
    return {"topic": "orders", "queue_id": 1, "body": b"%06d." % number, "properties": properties}


def straight_to_timers(number: int, real_topic: str) -> dict[str, Any]:
    """Send directly to the timer topic, which brokers accept."""
    out_ms = (rocketmq.now_ms() + LATER_MS) // 1000 * 1000
    given = message(number, REAL_TOPIC=real_topic, REAL_QID=0, TIMER_OUT_MS=out_ms)
    return {**given, "topic": disk.TIMER_TOPIC, "queue_id": 0}


def fill(process: RocketMQ, root: Path) -> dict[int, int]:
    """Send messages and wait for the early ones. Return the due time of each by its number."""
    process.open("one", root, CONFIG)
    came = process.messages("one", "orders", 0)
    now_ms = rocketmq.now_ms()
    soon_ms, later_ms = now_ms + SOON_MS, now_ms + LATER_MS
    due_ms = {}
    messages = []
    for one in came:
        number = COUNT + number_of(one.body)
        due_ms[number] = soon_ms if number % 2 else later_ms
        messages.append(sent_on(one, number, TIMER_DELIVER_MS=due_ms[number]))
    for number, odd in enumerate(ODD, 2 * COUNT):
        due_ms[number] = later_ms
        messages.append(message(number, **odd))
    process.send("one", messages)
    rest = [sent_on(one, 99) for one in came[:2]]  # to a topic at once, with all its properties
    rest += [{**rest[0], "properties": one.properties} for one in came[2:4]]
    rest.append(sent_on(came[4], WAITS, DELAY=18))
    process.send("one", [{**one, "topic": "reminders"} for one in rest])
    process.send(
        "one", [straight_to_timers(REFUSED_FROM + k, name) for k, name in enumerate(REFUSED)]
    )
    end_ms = now_ms + GIVE_UP_MS
    while len(process.messages("one", "orders", 1)) < COUNT // 2:
        assert rocketmq.now_ms() < end_ms
        process.wait_until(rocketmq.now_ms() + 200)
    return due_ms


@pytest.mark.parametrize("is_built_anew", [False, True])
def test_each_forwarded_message_is_delivered_once(tmp_path: Path, *, is_built_anew: bool) -> None:
    rocketmq.need_rocketmq()
    root = tmp_path / "store"
    deliver_some(root)
    process = RocketMQ(tmp_path / "java")
    try:
        due_ms = fill(process, root)
    finally:
        process.kill()
    if is_built_anew:
        (root / "timerstore" / "watermark").unlink()
    clock = ManualClock(rocketmq.now_ms())
    with timerstore.open(root, CONFIG, clock=clock, threads=False) as store:
        stepper = Stepper(store)
        stepper.settle()
        clock.advance(2 * LATER_MS)
        stepper.settle()
        report = store.verify()
        assert report.clean, report
        assert store.stats()["enqueue_put_unusable_messages"] == 0
        [waits] = store.query("reminders", key=f"{WAITS:032X}")
        assert (number_of(waits.body), waits.handle) == (WAITS, "")
    refused = [one.topic for one in disk.records(root) if number_of(one.body) >= REFUSED_FROM]
    assert refused == [disk.TIMER_TOPIC] * len(REFUSED)
    found = [
        record for record in disk.records(root) if (record.topic, record.queue_id) == ("orders", 1)
    ]
    assert Counter(number_of(record.body) for record in found) == Counter(due_ms.keys())
    for record in found:
        assert record.store_ms >= due_ms[number_of(record.body)]
