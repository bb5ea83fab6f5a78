"""Long polls with filters: a message wakes the pulls that it matches."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench, small
from tests.support.inside import inside, property_reader, route_and_filter
from tests.support.waiting_calls import WaitingPullCaller, woken_count
from timerstore._engine.read.long_poll import LongPoll
from timerstore.errors import CorruptError


def add_long_poll(
    bench: Bench, offset: int, tags: str | None, woken: list[str], queue_id: int = 0
) -> LongPoll:
    """Add a long poll with a filter to the table; `woken` gets its tags when it is woken."""
    store = bench.store
    route, message_filter = route_and_filter(store, "t", queue_id, tags)
    poll = inside(store).long_polls.enter(
        route, offset, 2**62, message_filter, lambda: woken.append(tags or "all")
    )
    assert poll is not None
    return poll


def test_message_wakes_only_pulls_with_a_matching_filter(queues: Bench) -> None:
    woken: list[str] = []
    polls = [add_long_poll(queues, 0, tags, woken) for tags in ("a", "b", "a || b", "c", None)]
    queues.store.put("t", b"1", tags="b", queue_id=0)
    queues.turn()
    assert sorted(woken) == ["a || b", "all", "b"]
    assert [poll.no_match_below for poll in polls] == [1, 0, 0, 1, 0]
    queues.store.put("t", b"2", tags="d", queue_id=0)
    queues.store.put("t", b"3", queue_id=0)
    queues.turn()
    assert len(woken) == 3
    queues.store.put("t", b"4", tags="a", queue_id=0)
    queues.turn()
    assert sorted(woken) == ["a", "a || b", "all", "b"]
    assert [poll.no_match_below for poll in polls] == [3, 0, 0, 4, 0]
    assert woken_count(queues) == 4


def test_message_wakes_no_pull_for_another_tag_with_the_same_hash(queues: Bench) -> None:
    woken: list[str] = []
    poll = add_long_poll(queues, 0, "Aa", woken)
    queues.store.put("t", b"1", tags="BB", queue_id=0)  # the same hash
    queues.turn()
    assert (woken, poll.no_match_below) == ([], 1)
    queues.store.put("t", b"2", tags="Aa", queue_id=0)
    queues.turn()
    assert (woken, poll.no_match_below) == (["Aa"], 1)


def test_pull_that_leaves_during_a_scan_does_not_skip_the_message(
    queues: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[str] = []
    table = inside(queues.store).long_polls
    poll = add_long_poll(queues, 0, "a", woken)
    reader = property_reader(table)
    read = reader.value

    def leave_first(*given: Any) -> Any:
        assert not table.leave(poll), "it was woken before"
        return read(*given)

    monkeypatch.setattr(*reader, leave_first)
    queues.store.put("t", b"1", tags="a", queue_id=0)
    queues.turn()
    assert (woken, poll.no_match_below) == ([], 0)


def test_properties_are_read_once_for_all_waiting_pulls(
    queues: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[str] = []
    table = inside(queues.store).long_polls
    reader = property_reader(table)
    read, reads = reader.value, []

    def counted(*given: Any) -> Any:
        reads.append(given)
        return read(*given)

    monkeypatch.setattr(*reader, counted)
    for _ in range(50):
        add_long_poll(queues, 0, "a", woken)
    queues.store.put("t", b"1", tags="a", queue_id=0)
    queues.turn()
    assert (len(woken), len(reads)) == (50, 1)


@pytest.mark.parametrize("count", [1023, 1024, 1025])
def test_pull_is_woken_without_a_match_when_too_many_messages_arrive(
    tmp_path: Path, count: int
) -> None:
    bench = Bench(tmp_path, small(queue_segment_bytes=200_000))
    bench.store.put("t", b"makes the topic", queue_id=1)
    bench.turn()
    woken: list[str] = []
    poll = add_long_poll(bench, 0, "Aa", woken)
    bench.store.put_many("t", [b"x"] * count, tags="BB", queue_id=0)
    bench.turn()
    assert (len(woken), poll.no_match_below) == ((1, 0) if count > 1024 else (0, count))
    bench.close()


def test_pull_is_woken_and_raises_when_its_queue_cannot_be_read(queues: Bench) -> None:
    waiting, other = WaitingPullCaller(queues), WaitingPullCaller(queues, 0, 1)
    assert waiting.enter()
    assert other.enter()
    queue = inside(queues.store).routes.get("t", 0).queue

    def broken(_end: int) -> int:
        raise CorruptError("broken")

    queue.visible = broken  # type: ignore[method-assign]
    queues.store.put("t", b"x", queue_id=0)
    queues.turn()
    assert (waiting.wake_count, other.wake_count) == (1, 0)
    with pytest.raises(CorruptError):
        waiting.resume()
    del queue.visible
    other.pull.leave()
