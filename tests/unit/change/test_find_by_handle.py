"""Handles without a timer id are found by slot, by the key index, or in the log."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import DAY, NOW, Bench, small
from tests.support.inside import inside
from timerstore import CancelResult, PutReceipt
from timerstore._engine.format.handle import decode, encode
from timerstore._engine.queues.key_index import Index
from timerstore._engine.timer import handle_lookup
from timerstore.errors import CorruptError


def broker_handle(receipt: PutReceipt) -> str:
    """As a broker would have made it."""
    return encode(decode(receipt.handle)._replace(timer_id=None))


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that the whole log was read."""
    found: list[int] = []
    real = handle_lookup.scan_batches

    def noted(*arguments: Any, **given: Any) -> Any:
        found.append(1)
        return real(*arguments, **given)

    monkeypatch.setattr(handle_lookup, "scan_batches", noted)
    return found


@pytest.fixture(params=[True, False])
def rolled(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Four messages that have rolled some times, with an index and without."""
    bench = Bench(tmp_path, small(index_enabled=request.param))
    receipts = [bench.store.put("t", b"%d" % k, delay=500 + k, keys=["k"]) for k in range(4)]
    for _ in range(6):
        bench.turn(40_000)
    yield bench, receipts
    bench.close()


def test_rolled_message_is_found_by_the_index(
    rolled: tuple[Bench, list[PutReceipt]], scans: list[int]
) -> None:
    bench, receipts = rolled
    assert bench.store.cancel(broker_handle(receipts[1])) is CancelResult.CANCELLED
    assert bench.store.cancel(broker_handle(receipts[1])) is CancelResult.ALREADY_CANCELLED
    moved = bench.store.reschedule(broker_handle(receipts[2]), deliver_ms=NOW + 600_000)
    assert bench.store.cancel(broker_handle(receipts[2])) is CancelResult.ALREADY_CANCELLED
    bench.reopen()
    assert bench.store.cancel(broker_handle(moved)) is CancelResult.CANCELLED
    bench.turn(600_000)
    assert bench.bodies() == [b"0", b"3"]
    assert bench.store.cancel(broker_handle(receipts[0])) is CancelResult.ALREADY_DELIVERED
    assert bool(scans) == (not bench.config.index_enabled)


@pytest.mark.parametrize("index", [True, False])
def test_rolling_message_is_found_when_its_earlier_copy_is_in_the_slot(
    tmp_path: Path, index: bool
) -> None:
    """Moved within its slot it keeps its handle but for the timer id; then the clock is set back,
    and it waits elsewhere.
    """
    bench = Bench(tmp_path, small(index_enabled=index))
    first = bench.store.put("t", b"a", deliver_ms=NOW + 2)
    bench.reopen()
    moved = bench.store.reschedule(first, deliver_ms=NOW + bench.config.precision_ms)
    assert broker_handle(moved) == broker_handle(first)
    bench.turn(-10 * DAY)
    assert bench.store.cancel(broker_handle(first)) is CancelResult.CANCELLED
    assert bench.store.cancel(broker_handle(first)) is CancelResult.ALREADY_CANCELLED
    bench.turn(20 * DAY)
    assert bench.bodies() == []
    bench.close()


def test_handles_of_other_messages_are_unknown_to_the_index(
    rolled: tuple[Bench, list[PutReceipt]], scans: list[int]
) -> None:
    bench, receipts = rolled
    handle = decode(broker_handle(receipts[0]))
    for wrong in (
        handle._replace(message_id="0" * 32),
        handle._replace(message_id="k"),  # a key, but not the id
        handle._replace(topic="u"),
        handle._replace(timestamp_ms=handle.timestamp_ms + 1000),
    ):
        assert bench.store.cancel(encode(wrong)) is CancelResult.UNKNOWN
    assert bool(scans) == (not bench.config.index_enabled)
    assert bench.store.stats()["pending_messages"] == 4


def test_keys_with_equal_hashes_are_distinguished(
    rolled: tuple[Bench, list[PutReceipt]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As though all records had it: a delivery has the same id, and waits for nothing."""
    bench, receipts = rolled
    if not bench.config.index_enabled:
        pytest.skip("it has no hashes")
    find: Callable[..., Any] = Index.find
    with monkeypatch.context() as patched:
        patched.setattr(Index, "find", lambda self, topic, key: _all(bench, find))
        assert bench.store.cancel(broker_handle(receipts[3])) is CancelResult.CANCELLED
        bench.turn(600_000)
        assert bench.store.cancel(broker_handle(receipts[0])) is CancelResult.ALREADY_DELIVERED
        assert bench.store.cancel(broker_handle(receipts[3])) is CancelResult.ALREADY_CANCELLED
    assert bench.bodies() == [b"0", b"1", b"2"]


def _all(bench: Bench, find: Callable[..., Any]) -> Any:
    index = inside(bench.store).dispatch.index
    for topic in (b"t", b"rmq_sys_wheel_timer"):
        yield from find(index, topic, b"k")
        for one in bench.store.pending():
            yield from find(index, topic, one.message_id.encode())
        for message in bench.out():
            yield from find(index, topic, message.message_id.encode())


def test_damaged_index_is_ignored(
    rolled: tuple[Bench, list[PutReceipt]], scans: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, receipts = rolled

    def damaged(*_arguments: Any) -> Any:
        raise CorruptError("by a test")

    monkeypatch.setattr(Index, "find", damaged)
    assert bench.store.cancel(broker_handle(receipts[0])) is CancelResult.CANCELLED
    assert scans


def test_undispatched_message_is_found_with_an_index(bench: Bench, scans: list[int]) -> None:
    receipt = bench.store.put("t", b"x", delay=500)
    assert bench.store.cancel(broker_handle(receipt)) is CancelResult.CANCELLED
    assert not scans
