"""config/timermetrics: what a broker counted, what we count of the same store, what we write.

Of the real broker, by hand: RocketMQ 5.3.3 opened a store of ours with 340 pending (60 cancelled),
said the same itself (`getAllCongestNum`: 340) and kept our counts. Left to run it delivered 78
and 73 of two topics, and its own file went from 175 and 165 to 97 and 92: exact.
"""

from pathlib import Path

import pytest

import timerstore
from tests.support import broker_fixtures as broker
from tests.support import disk_reader as disk
from tests.support.broker_expected import Expected
from timerstore import StoreConfig
from timerstore.testing import ManualClock

# A broker's own count drifts (store-format.md 8.5, W-S9): up where a delete was carried out, down
# where a delete rolls, either way where it died. What it has too much, by store and topic; what is
# not named here it counted as we do.
DRIFT = {
    "clean-small-segments": {"reminders": 2},
    "doubled-by-broker": {"orders": 39, "reminders": 39},
    "killed-small-segments": {"orders": 29, "reminders": 23},
    "rolled": {"orders": -10, "reminders": -34},
}


@pytest.mark.parametrize("name", broker.names())
def test_we_count_what_the_broker_counted_but_for_its_drift(name: str, tmp_path: Path) -> None:
    root = broker.unpack(name, tmp_path)
    theirs = disk.read_timer_metrics(root)
    config = StoreConfig(**broker.about(name)["store_config"], flush="async")
    clock = ManualClock(Expected.of(name).now_ms)
    with timerstore.open(root, config, clock=clock, threads=False) as store:
        ours = store.stats()["pending_by_topic"]
        waiting = [one.topic for one in store.pending()]
    drift = DRIFT.get(name, {})
    assert {topic: count - drift.get(topic, 0) for topic, count in theirs.items()} == {
        topic: waiting.count(topic) for topic in theirs
    }
    assert ours == {topic: waiting.count(topic) for topic in {*waiting}}
    # Closed, the file says what waits, and keeps topics without any as a broker does.
    assert disk.read_timer_metrics(root) == {topic: waiting.count(topic) for topic in theirs}
    version = disk.read_json(root / "config" / "timermetrics")["dataVersion"]
    assert version["timestamp"] == clock.now_ms
