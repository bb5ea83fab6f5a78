"""Check that a broker's queue units name tags and levels as its messages do.

See also: docs/decisions/0006-index-and-queries.md
"""

from pathlib import Path

import pytest

import timerstore
from tests.support.amounts import sample
from tests.support.broker import fixtures as broker
from timerstore import Message, StoreConfig, TimerStore
from timerstore.testing import ManualClock

NOW_MS = 1_500_000_000_000  # before any message in them is due


def all_of(store: TimerStore, topic: str, queue_id: int, tags: str | None) -> list[Message]:
    found: list[Message] = []
    offset = store.pull(topic, queue_id, 2**62).min_offset
    while True:
        got = store.pull(topic, queue_id, offset, max_count=1000, tags=tags)
        found += got.messages
        if got.next_offset == offset:
            return found
        offset = got.next_offset


@pytest.mark.parametrize("name", sample(broker.names(), "broker stores"))
def test_pull_by_tag_equals_filtered_pull(name: str, tmp_path: Path) -> None:
    root = broker.unpack(name, tmp_path)
    config = StoreConfig(**broker.about(name)["store_config"], flush="async")
    clock = ManualClock(NOW_MS)
    tagged = 0
    with timerstore.open(root, config, clock=clock, threads=False) as store:
        for topic, queue_count in store.topics().items():
            for queue_id in range(queue_count):
                messages = all_of(store, topic, queue_id, None)
                for tags in {message.tags for message in messages if message.tags} | {"none"}:
                    got = all_of(store, topic, queue_id, tags)
                    assert got == [one for one in messages if one.tags == tags]
                    tagged += len(got)
        for one in store.pending():
            assert one.due_ms > NOW_MS
    assert tagged > 200
