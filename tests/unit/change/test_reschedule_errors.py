"""reschedule: invalid arguments, messages that are not pending, and a full disk."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support import disk_reader as disk
from tests.support.bench import NOW, YEAR, Bench, small
from tests.support.inside import inside
from tests.unit.change.test_reschedule import brokers_form
from timerstore import CancelResult, MessageError, NotPendingError
from timerstore._engine.format.handle import Handle, encode
from timerstore.errors import FullError


@pytest.mark.parametrize(
    ("given", "what"),
    [({}, "got none"), ({"delay": 1, "deliver_ms": NOW + 5}, "got delay, deliver_ms"),
     ({"delay": 0, "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, "got delay, deliver_at"),
     ({"delay": -1}, "delay"), ({"delay": float("nan")}, "delay"), ({"delay": "soon"}, "delay"),
     ({"deliver_at": datetime(2030, 1, 1)}, "deliver_at"),  # noqa: DTZ001 - naive is the point
     ({"deliver_at": 5}, "deliver_at"), ({"deliver_ms": 1.5}, "deliver_ms"),
     ({"deliver_ms": NOW + 41 * YEAR}, "deliver_ms"), ({"delay": timedelta(days=16_000)}, "delay")],
)  # fmt: skip
def test_reschedule_rejects_invalid_times(bench: Bench, given: dict[str, Any], what: str) -> None:
    receipt = bench.store.put("t", b"x", delay=10)
    with bench.refused(MessageError, what):
        bench.store.reschedule(receipt, **given)
    assert [one.handle for one in bench.store.pending()] == [receipt.handle]


@pytest.mark.parametrize("handle", [None, 5, b"x", "", "not base64!", "AAAA"])
def test_reschedule_rejects_malformed_handles(bench: Bench, handle: Any) -> None:
    with bench.refused(MessageError, "handle"):
        bench.store.reschedule(handle, delay=5)


def test_reschedule_raises_not_pending_with_the_state(bench: Bench, tmp_path: Path) -> None:
    delivered = bench.store.put("t", b"x", delay=1)
    cancelled = bench.store.put("t", b"y", delay=10)
    at_once = bench.store.put("t", b"z")
    bench.store.cancel(cancelled)
    bench.turn(1000)
    other = Bench(tmp_path / "other")
    foreign = other.store.put("t", b"x", delay=20)
    other.close()
    cases = [
        (delivered, "ALREADY_DELIVERED"),
        (brokers_form(delivered), "ALREADY_DELIVERED"),
        (cancelled, "ALREADY_CANCELLED"),
        (brokers_form(cancelled), "ALREADY_CANCELLED"),
        (at_once, "ALREADY_DELIVERED"),
        (foreign, "UNKNOWN"),
        (brokers_form(foreign), "UNKNOWN"),
        (encode(Handle("t", "b", 0, "A" * 32, None)), "UNKNOWN"),
        (encode(Handle("t", "b", 2**63 - 1, "A" * 32, 2**63 - 1)), "UNKNOWN"),
        (encode(Handle("größe", "b", 5, "ü" * 32, None)), "UNKNOWN"),
    ]
    for given, result in cases:
        with bench.refused(NotPendingError, result):
            bench.store.reschedule(given, delay=5)
        try:
            bench.store.reschedule(given, delay=5)
        except NotPendingError as error:
            assert error.result is CancelResult[result]  # noqa: PT017 - its field is the point


def test_reschedule_is_rejected_when_timers_are_off(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s")
    receipt = bench.store.put("t", b"x", delay=10)
    bench.close()
    bench.config = small(timer_enabled=False)
    bench.open()
    with bench.refused(MessageError, "timer_enabled"):
        bench.store.reschedule(receipt, delay=5)
    assert bench.store.reschedule(receipt, delay=0).queue_offset == 0
    bench.close()


def test_message_too_large_for_a_group_is_not_rescheduled(tmp_path: Path) -> None:
    """A segment holds the delete record, the message, 16 bytes of blank: then none more."""
    bench = Bench(tmp_path / "s", small(commit_log_segment_bytes=8192))
    fits, too_large = 8192 - 1500, 8192 - 680
    while too_large - fits > 1:
        size = (fits + too_large) // 2
        receipt = bench.store.put("t", bytes(size), delay=10)
        try:
            bench.store.cancel(bench.store.reschedule(receipt, delay=20))
            fits = size
        except MessageError as error:
            assert "group" in str(error)  # noqa: PT017 - where it begins is to be found out
            assert bench.store.cancel(receipt) is CancelResult.CANCELLED  # it waits as it did
            too_large = size
    bench.turn()
    bench.close()
    delete, new = [r for r in disk.records(bench.root) if "TS_GROUP" in r.properties][-2:]
    assert delete.size + new.size == 8192 - 16
    assert len(new.body) == fits


def test_full_disk_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    receipt = bench.store.put("t", b"x" * 3000, delay=10)
    log = inside(bench.store).log
    log.native.append_limit = log.end  # nothing more is reserved

    def full(_size: int) -> None:
        raise FullError("no space")

    monkeypatch.setattr(log, "make_room", full)
    before = bench.shown()
    with pytest.raises(FullError):
        bench.store.reschedule(receipt, delay=20)
    assert bench.shown() == before
    monkeypatch.undo()
    assert bench.store.reschedule(receipt, delay=20).due_ms == NOW + 20_000


def test_forged_group_property_is_removed(bench: Bench) -> None:
    forged = {"TS_GROUP": disk.encode_ts_id(500, 0), "mine": "1"}
    bench.store.put("t", b"x", delay=1, properties=forged)
    bench.turn(1000)
    (message,) = bench.out()
    assert "TS_GROUP" not in message.properties
    assert message.properties["mine"] == "1"
