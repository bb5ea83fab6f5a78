"""A requested sync is made during a checkpoint, between its files."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bench import Bench, small
from tests.support.elsewhere import elsewhere
from tests.support.inside import flush_at_once, inside
from timerstore._engine.base import failpoints
from timerstore._engine.queues.consume_queue import ConsumeQueue

FILES = (
    "checkpoint_log_synced",
    "checkpoint_queues_synced",
    "checkpoint_states_written",
    "checkpoint_wheel_written",
    "checkpoint_far_written",
    "checkpoint_counts_written",
)
"""The fail points of a checkpoint in order; after each one, it may sync."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "store", small(flush="async"))
    yield made
    made.close()


@pytest.mark.parametrize("at", FILES)
def test_requested_sync_is_made_between_files_of_a_checkpoint(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    log, flush = inside(bench.store).log, bench.store.services()["flush"]
    behind: dict[str, int] = {}

    def hook(name: str) -> None:
        if name == at:
            elsewhere(lambda: bench.store.put("t", b"amid", delay=60))
            flush.request()  # type: ignore[attr-defined]
        if name.startswith("checkpoint_"):
            behind[name] = log.end - log.durable

    bench.store.put("t", b"before", delay=60)
    bench.turn()
    bench.store.put("t", b"more", delay=60)
    flush.step()
    monkeypatch.setattr(failpoints, "hook", hook)
    bench.turn(bench.config.checkpoint_interval_ms)
    monkeypatch.undo()
    assert behind[at] > 0  # it was put there
    following = (*FILES, "checkpoint_watermark_written")[FILES.index(at) + 1]
    assert behind[following] == 0
    assert len(list(bench.store.pending())) == 3


def test_unrequested_sync_is_made_during_a_checkpoint_when_its_interval_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(
        tmp_path / "store",
        small(flush="async", flush_interval_ms=5000, checkpoint_interval_ms=1000),
    )
    log, flush = inside(bench.store).log, bench.store.services()["flush"]
    behind: dict[str, int] = {}

    def hook(name: str) -> None:
        if name == "checkpoint_queues_synced":
            elsewhere(lambda: bench.store.put("t", b"amid", delay=60))
        if name == "checkpoint_wheel_written":
            bench.clock.advance(5000)
        if name.startswith("checkpoint_"):
            behind[name] = log.end - log.durable

    bench.turn()
    monkeypatch.setattr(*flush_at_once(flush), False)  # as with threads
    bench.store.put("t", b"before", delay=60)
    bench.clock.advance(1000)
    monkeypatch.setattr(failpoints, "hook", hook)
    assert flush.step()
    monkeypatch.undo()
    assert behind["checkpoint_states_written"] > 0
    assert behind["checkpoint_wheel_written"] > 0
    assert behind["checkpoint_far_written"] == 0
    bench.close()


def test_requested_sync_is_made_between_two_queues(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be ten thousand queues."""
    log, flush = inside(bench.store).log, bench.store.services()["flush"]
    behind: list[int] = []
    original = ConsumeQueue.sync

    def sync(queue: ConsumeQueue) -> None:
        behind.append(log.end - log.durable)
        original(queue)
        elsewhere(lambda: bench.store.put("t", b"amid", delay=60))
        flush.request()  # type: ignore[attr-defined]

    for topic in "abc":
        bench.store.put(topic, b"x")
    bench.turn()
    bench.store.put("a", b"more", delay=60)
    flush.step()
    monkeypatch.setattr(ConsumeQueue, "sync", sync)
    bench.turn(bench.config.checkpoint_interval_ms)
    assert len(behind) > 3
    assert not any(behind)


def test_requested_sync_is_made_while_another_thread_completes_a_checkpoint(bench: Bench) -> None:
    log, flush = inside(bench.store).log, bench.store.services()["flush"]
    checkpoint = inside(bench.store).checkpoint
    bench.turn()
    bench.store.put("t", b"before", delay=60)
    flush.step()
    begun = checkpoint.begun
    bench.clock.advance(bench.config.checkpoint_interval_ms)
    thread = threading.Thread(target=flush.step, daemon=True)
    with checkpoint.still():
        thread.start()
        elsewhere(lambda: bench.store.put("t", b"amid", delay=60))
        end = log.end
        flush.request()  # type: ignore[attr-defined]
        while log.durable < end:
            assert thread.is_alive(), "it did not wait for the other checkpoint"
        assert checkpoint.begun == begun
    thread.join(30.0)
    assert checkpoint.begun == begun + 1
