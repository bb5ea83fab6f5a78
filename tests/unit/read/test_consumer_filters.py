"""Consumer: messages that do not match the filter count as read."""

from typing import Any

import pytest

from tests.support.bench import Bench
from tests.support.consuming import read
from timerstore import (
    MessageError,
)


@pytest.fixture
def tagged(bench: Bench) -> Bench:
    """Aa and BB share a hash; 100 of each, then some with another tag."""
    for k in range(300):
        bench.store.put("t", b"%d" % k, tags=("Aa", "BB", None)[k % 3], queue_id=k % 2)
    for _ in range(100):
        bench.store.put("t", b"no", tags="none", queue_id=0)
    bench.turn()
    return bench


@pytest.mark.parametrize("given", [{"tags": "Aa || x"}, {"sql": "TAGS = 'Aa'"}])
def test_messages_that_do_not_match_count_as_read(tagged: Bench, given: dict[str, Any]) -> None:
    consumer = tagged.store.consumer("t", "g", wait=0, **given)
    assert sorted(int(body) for body in read(consumer)) == list(range(0, 300, 3))
    assert consumer.commit() == {0: 250, 1: 150}
    tagged.reopen()
    assert read(tagged.store.consumer("t", "g", wait=0, **given)) == []
    none = tagged.store.consumer("t", "none", wait=0, tags="no such")
    assert read(none) == []
    assert none.commit() == {0: 250, 1: 150}


def test_commit_between_matching_messages(tagged: Bench) -> None:
    consumer = tagged.store.consumer("t", "g", queues=[0], tags="BB")
    messages = consumer.poll(4)  # 4, 10, 16, 22 are in queue 0
    assert [m.body for m in messages] == [b"4", b"10", b"16", b"22"]
    assert consumer.commit(messages[1]) == {0: 6}
    consumer.close()
    again = tagged.store.consumer("t", "g", queues=[0], tags="BB")
    assert [m.body for m in again.poll(2)] == [b"16", b"22"]


def test_consumers_of_a_group_must_use_one_filter(tagged: Bench) -> None:
    one = tagged.store.consumer("t", "g", tags="Aa")
    for given in ({}, {"tags": "BB"}, {"sql": "TAGS = 'Aa'"}):
        with tagged.refused(MessageError, "group 'g' reads 't' with tags 'Aa', sql None"):
            tagged.store.consumer("t", "g", **given)
    other = tagged.store.consumer("t", "g", tags="Aa")
    one.close()
    other.close()
    tagged.store.consumer("t", "g", tags="BB")  # a group without consumers may change its filter


@pytest.mark.parametrize(
    ("given", "match"),
    [({"tags": 5}, "tags"), ({"sql": "a >"}, "sql"), ({"tags": "a", "sql": "a > 5"}, "one of")],
)
def test_consumer_rejects_invalid_filters(tagged: Bench, given: dict[str, Any], match: str) -> None:
    for topic in ("t", "not-there-yet"):
        with tagged.refused(MessageError, match):
            tagged.store.consumer(topic, "g", **given)
