"""Consumer: seeks, also while commits are pending."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from tests.support.bench import NOW, Bench
from tests.support.consuming import read
from tests.support.inside import inside
from timerstore import (
    MessageError,
)
from timerstore._engine.read.groups import Groups


def test_seek_to_offsets(six: Bench) -> None:
    consumer = six.store.consumer("t", "g", wait=0)
    read(consumer)
    assert consumer.seek(1) == {0: 1, 1: 1, 2: 1}
    assert sorted(read(consumer)) == [b"3", b"4", b"5"]
    assert consumer.seek(0, queue_id=1) == {1: 0}
    assert read(consumer) == [b"1", b"4"]
    assert consumer.seek(2) == {0: 2, 1: 2, 2: 2}  # the end
    assert read(consumer) == []
    assert consumer.seek(np.int64(1), queue_id=np.int64(2)) == {2: 1}
    assert read(consumer) == [b"5"]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"offset": 3}, "queue 0 has 0 to 2, got 3; offset: queue 1 has 0 to 2, got 3"),
        ({"offset": -1}, "queue 0 has 0 to 2, got -1"),
        ({"offset": -1, "queue_id": 2}, "queue 2 has 0 to 2, got -1"),
        ({"offset": 2**63}, "got 9223372036854775808"),
        ({"offset": 0.0}, "got 0.0"),
        ({"offset": False}, "got False"),
        ({"offset": 0, "queue_id": 3}, r"queue_id: it has the queues \[0, 1, 2\], got 3"),
        ({"offset": 0, "queue_id": "0"}, "got '0'"),
        ({"offset": 0, "queue_id": -1}, "got -1"),
        ({}, "one of offset, time and time_ms"),
        ({"offset": 0, "time_ms": 0}, "one of offset, time and time_ms"),
        ({"time_ms": 1.5}, "time_ms: wanted a whole number"),
        ({"time": datetime(2026, 1, 1)}, "with its time zone"),  # noqa: DTZ001 - the naive time under test
        ({"time": 5}, "time: wanted a datetime, got 5"),
    ],
)
def test_seek_rejects_offsets_outside_the_queue(
    six: Bench, given: dict[str, Any], match: str
) -> None:
    consumer = six.store.consumer("t", "g", wait=0)
    read(consumer)
    with six.refused(MessageError, match):
        consumer.seek(**given)
    assert read(consumer) == []  # it is where it was


def test_seek_to_times(bench: Bench) -> None:
    for k in range(4):
        bench.store.put("t", b"%d" % k, queue_id=0)
        bench.store.put("t", b"%d" % (k + 10), queue_id=1)
        bench.turn(10)
    consumer = bench.store.consumer("t", "g", wait=0)
    assert consumer.seek(time_ms=NOW + 11) == {0: 2, 1: 2}
    assert sorted(read(consumer)) == [b"12", b"13", b"2", b"3"]
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=NOW + 10)
    assert consumer.seek(time=moment) == {0: 1, 1: 1}
    assert consumer.seek(time=moment + timedelta(microseconds=1)) == {0: 2, 1: 2}
    assert consumer.seek(time=moment - timedelta(microseconds=1), queue_id=0) == {0: 1}
    assert consumer.seek(time_ms=NOW - 1) == {0: 0, 1: 0}
    assert consumer.seek(time_ms=2**60) == {0: 4, 1: 4}
    assert read(consumer) == []
    assert bench.store.consumer("empty", "g").seek(time_ms=5) == {}


def test_seek_is_durable_after_a_commit(six: Bench) -> None:
    consumer = six.store.consumer("t", "g", wait=0)
    messages = list(consumer)
    consumer.commit()
    consumer.seek(0)
    six.reopen()
    assert six.store.committed("t", "g") == {0: 2, 1: 2, 2: 2}
    consumer = six.store.consumer("t", "g", wait=0)
    consumer.seek(0)
    late = next(m for m in messages if m.queue_offset == 1)
    with six.refused(MessageError, "was read to 0, got 2"):
        consumer.commit(late)  # handed out before, but not since the seek
    assert consumer.commit() == {0: 0, 1: 0, 2: 0}
    six.reopen()
    consumer = six.store.consumer("t", "g", wait=0)
    assert len(read(consumer)) == 6
    consumer.seek(1)
    first = next(consumer)
    assert consumer.commit(first) == {first.queue_id: 2}
    six.reopen()
    assert six.store.committed("t", "g") == {0: 0, 1: 0, 2: 0, first.queue_id: 2}


@contextmanager
def during_a_commit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]
) -> Iterator[list[object]]:
    """Run `act` while a commit is requested and not yet written; yield its results."""
    offsets = inside(bench.store).group_offsets
    wait_for_commit, answers = offsets.wait_for_commit, []

    def act_first(asked: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(offsets, "wait_for_commit", wait_for_commit)
            answers.append(act())
        wait_for_commit(asked)

    with monkeypatch.context() as patched:
        patched.setattr(offsets, "wait_for_commit", act_first)
        yield answers


def test_seek_is_committed_while_another_commit_is_pending(
    six: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offset on disk is replaced when the other commit is written."""
    consumer = six.store.consumer("t", "g", wait=0)
    read(consumer)

    def seek_and_commit() -> object:
        consumer.seek(0)
        return consumer.commit()

    with during_a_commit(six, monkeypatch, seek_and_commit) as answers:
        assert consumer.commit() == {0: 2, 1: 2, 2: 2}
    assert answers == [{0: 0, 1: 0, 2: 0}]
    assert six.store.committed("t", "g") == {0: 0, 1: 0, 2: 0}
    assert consumer.commit() == {}  # nothing is on its way any more
    six.reopen()
    assert len(read(six.store.consumer("t", "g", wait=0))) == 6


def test_seek_is_committed_when_another_commit_was_just_settled(
    six: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other commit is settled, and its call has not returned yet."""
    consumer = six.store.consumer("t", "g", queues=[0], wait=0)
    first, last = consumer.poll(2)
    settled = Groups.commit_settled
    answers = []

    def commit_right_behind(groups: Groups, group: Any) -> None:
        settled(groups, group)
        monkeypatch.setattr(Groups, "commit_settled", settled)
        answers.append(consumer.commit(first))

    monkeypatch.setattr(Groups, "commit_settled", commit_right_behind)
    assert consumer.commit(last) == {0: 2}
    assert answers == [{}]
    assert six.store.committed("t", "g") == {0: 2}


@pytest.mark.parametrize("is_sought", [False, True])
def test_commit_does_not_reduce_a_pending_commit(
    six: Bench, monkeypatch: pytest.MonkeyPatch, is_sought: bool
) -> None:
    """The higher offset counts, unless the consumer sought an earlier one during the commit."""
    consumer = six.store.consumer("t", "g", queues=[0], wait=0)
    first, last = consumer.poll(2)

    def commit_first() -> object:
        if is_sought:
            consumer.seek(0, queue_id=0)
            consumer.poll(1)
        return consumer.commit(first)

    with during_a_commit(six, monkeypatch, commit_first) as answers:
        assert consumer.commit(last) == {0: 2}
    assert answers == [{0: 1 if is_sought else 2}]
    assert six.store.committed("t", "g") == {0: 1 if is_sought else 2}
    assert consumer.commit(first) == {}


def test_commit_below_one_that_a_seek_overtook_is_made(
    six: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = six.store.consumer("t", "g", queues=[0], wait=0)
    consumer.poll(2)
    with during_a_commit(six, monkeypatch, lambda: consumer.seek(0, queue_id=0)):
        assert consumer.commit() == {0: 2}
    (first,) = consumer.poll(1)
    assert consumer.commit(first) == {0: 1}
    assert six.store.committed("t", "g") == {0: 1}
