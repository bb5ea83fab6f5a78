"""Test config/timermetrics: the rule by which a broker counts, its errors, and our counts.

The rule is in tests/support/broker/counts.py. A live broker is tested in test_rocketmq_counts.py.
"""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

import timerstore
from tests.support import disk_reader as disk
from tests.support.amounts import sample
from tests.support.broker import counts
from tests.support.broker import fixtures as broker
from tests.support.broker.expected import Expected
from timerstore import StoreConfig
from timerstore._engine.format import timer_metrics_json
from timerstore._engine.format.json_text import DataVersion
from timerstore._engine.format.timer_metrics_json import TimerMetrics, TopicCount
from timerstore.testing import ManualClock

# Stores that a broker opened after a kill: of earlier events, it knew only its old file.
WENT_ON = {"doubled-by-broker": "killed-small-segments"}


class Replayed(NamedTuple):
    """The rule, applied to the files of one store."""

    theirs: counts.TimerMetrics
    counter: int
    by_rule: Counter[str]  # without reverted deletes
    unwritten: Counter[str]  # events after the file was written
    deletes: list[Counter[str]]  # applied deletes by slot

    @property
    def given_back(self) -> Counter[str]:
        """Return the deletes that were applied and still reverted, as far as they can be
        determined.
        """
        return Counter(
            {topic: count - self.by_rule[topic] for topic, count in self.theirs.counts.items()}
        )


def replay(name: str, root: Path, folder: Path) -> Replayed:
    theirs = counts.read_metrics(root)
    counter, by_rule, after = 0, Counter[str](), counts.Ends()
    if name in WENT_ON:
        before = broker.unpack(WENT_ON[name], folder / "before")
        found = counts.read_metrics(before)
        counter, by_rule, after = found.counter, Counter(found.counts), counts.Ends.of(before)
    within, unwritten = counts.split(counts.events(root, after), theirs.at_ms)
    by_rule.update(counts.total(within))
    return Replayed(
        theirs,
        counter + len(within),
        by_rule,
        counts.total(unwritten),
        counts.carried_out(root),
    )


@pytest.mark.parametrize("name", sample(broker.names(), "broker stores"))
def test_rule_gives_the_brokers_file_in_every_byte(name: str, tmp_path: Path) -> None:
    root = broker.unpack(name, tmp_path)
    found = replay(name, root, tmp_path)
    given_back = found.given_back
    # The counts show how many deletes of each topic were reverted, and the counter shows the total.
    # Each of them was applied, and none is of the last slot with deletes, after which no delete was
    # read.
    last = found.deletes[-1] if found.deletes else Counter[str]()
    for topic, count in given_back.items():
        done = sum(slot[topic] for slot in found.deletes)
        assert 0 <= count <= done - last[topic]
    metrics = TimerMetrics(
        DataVersion(0, found.counter + given_back.total(), found.theirs.at_ms),
        {
            topic: TopicCount(found.by_rule[topic] + given_back[topic], time_ms)
            for topic, time_ms in found.theirs.times_ms.items()
        },
    )
    assert timer_metrics_json.write(metrics) == found.theirs.raw
    assert max(found.theirs.times_ms.values()) == found.theirs.at_ms


@pytest.mark.parametrize("name", sample(broker.names(), "broker stores"))
def test_broker_counts_differ_from_pending_messages_by_the_rule(name: str, tmp_path: Path) -> None:
    root = broker.unpack(name, tmp_path)
    found = replay(name, root, tmp_path)
    theirs = found.theirs.counts
    config = StoreConfig(**broker.about(name)["store_config"], flush="async")
    clock = ManualClock(Expected.of(name).now_ms)
    seen: set[tuple[str, str]] = set()
    rolled: Counter[str] = Counter()  # effect of deletes of messages that were counted before
    for one in counts.events(root):
        if one.is_delete:
            rolled[one.topic] += one.change if (one.topic, one.key) in seen else 0
            seen.add((one.topic, one.key))
    with timerstore.open(root, config, clock=clock, threads=False) as store:
        ours = store.stats()["pending_by_topic"]
        everything = list(store.pending())
    waiting = Counter(one.topic for one in everything if one.handle)  # brokers count timers
    wrong = {
        topic: found.given_back[topic] + rolled[topic] - found.unwritten[topic] for topic in theirs
    }
    assert {topic: theirs[topic] - wrong[topic] for topic in theirs} == {
        topic: waiting[topic] for topic in theirs
    }
    assert ours == Counter(one.topic for one in everything)
    # After a close the file has the pending messages, and keeps topics without any, as a broker
    # does.
    assert disk.read_timer_metrics(root) == {topic: waiting[topic] for topic in theirs}
    version = disk.read_json(root / "config" / "timermetrics")["dataVersion"]
    assert version["timestamp"] == clock.now_ms
    assert version["counter"] == found.theirs.counter + 1
