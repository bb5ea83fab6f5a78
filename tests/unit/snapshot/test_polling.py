"""Waiting calls of a read-only store, until the owner makes messages visible."""

from typing import Any

import pytest

from tests.support.bench import Bench
from tests.support.inside import polling_of
from timerstore import (
    ClosedError,
    PullStatus,
    ReadOnlyStore,
)


def test_wait_ends_by_clock_and_by_close(
    bench: Bench, read: ReadOnlyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read.pull("t", 0, 4, wait=0).status is PullStatus.OFFSET_OVERFLOW_ONE
    bench.clock.subscribe(lambda: None)
    looks = []
    polling = polling_of(read)
    pause = polling.pause

    def turning(end_ns: int | None) -> bool:
        looks.append(end_ns)
        bench.clock.advance(400)
        return pause(end_ns)

    monkeypatch.setattr(polling, "pause", turning)
    assert read.pull("t", 0, 4, wait=1.0).status is PullStatus.OFFSET_OVERFLOW_ONE
    assert len(looks) == 3

    def closing(end_ns: int | None) -> bool:
        read.close()
        return pause(end_ns)

    monkeypatch.setattr(polling, "pause", closing)
    assert read.pull("t", 0, 4, wait=1.0).status is PullStatus.OFFSET_OVERFLOW_ONE
    with pytest.raises(ClosedError):
        read.topics()


def test_wait_returns_last_result_when_closed_before_a_look(
    read: ReadOnlyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, asked = read.answer, []

    def closing(ask: Any) -> Any:
        asked.append(ask)
        if len(asked) == 2:
            read.close()
        return answer(ask)

    monkeypatch.setattr(read, "answer", closing)
    assert read.pull("t", 0, 4, wait=1.0).status is PullStatus.OFFSET_OVERFLOW_ONE
    assert len(asked) == 2


def test_wait_returns_messages_of_next_checkpoint(
    bench: Bench, read: ReadOnlyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checkpointing(_end_ns: int | None) -> bool:
        bench.store.put("t", b"came", tags="g9")
        bench.stepper.settle()
        bench.store.flush()
        return True

    monkeypatch.setattr(polling_of(read), "pause", checkpointing)
    assert read.pull("t", 0, 4, wait=1.0).messages[0].body == b"came"
    offset = read.pull("t", 0, 100).next_offset
    assert read.pull_batch("t", 0, offset, wait=1.0, tags="g9").next_offset == offset + 1
    follower = read.follow("t", {0: offset + 1}, wait=None)
    assert [next(follower).queue_offset for _ in range(2)] == [offset + 1, offset + 2]


def test_follow_returns_nothing_below_an_offset_past_the_end(
    bench: Bench, read: ReadOnlyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that was opened while its owner recovers may see less for a moment."""
    follower = read.follow("t", {0: 6}, wait=None)

    def checkpointing(_end_ns: int | None) -> bool:
        for _ in range(2):
            bench.store.put("t", b"came")
        bench.stepper.settle()
        bench.store.flush()
        return True

    monkeypatch.setattr(polling_of(read), "pause", checkpointing)
    assert read.pull("t", 0, 6).status is PullStatus.OFFSET_OVERFLOW_BADLY
    assert next(follower).queue_offset == 6
