"""receive when leases cannot be appended: full disk, flow control, no room, timers off."""

from itertools import count as numbers
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench, small
from tests.support.inside import APPEND_OWN
from tests.support.leasing import bodies, put, take
from timerstore import AckResult, MessageError
from timerstore.errors import FlowControlError, FullError


def test_message_stays_when_flow_control_rejects_its_lease(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(slot_messages_max=2))
    put(bench, b"a", b"b", b"c")
    assert bodies(take(bench, 3, lease=10)) == [b"a", b"b"]
    with pytest.raises(FlowControlError):
        take(bench, 1, lease=10)
    (c,) = take(bench, 1, lease=20)
    assert c.body == b"c"
    assert bench.store.ack(c) is AckResult.ACKED
    bench.turn(10_000)
    assert sorted(bodies(take(bench, lease=30))) == [b"a", b"b"]
    bench.close()


def test_full_disk_leases_a_prefix(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bench, *(b"%d" % k for k in range(5)))
    original, count = APPEND_OWN.value, numbers()

    def two_then_full(*given: Any) -> Any:
        if next(count) == 2:
            raise FullError("disk")
        return original(*given)

    monkeypatch.setattr(*APPEND_OWN, two_then_full)
    first = take(bench, lease=9)
    monkeypatch.undo()
    assert bodies(first) == [b"0", b"1"]
    assert bodies(take(bench, lease=9)) == [b"2", b"3", b"4"]
    bench.turn(9000)
    assert sorted(bodies(take(bench))) == [b"%d" % k for k in range(5)]


def test_receive_raises_when_nothing_was_leased(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bench, b"a")

    def full(*_: Any, **__: Any) -> None:
        raise FullError("disk")

    monkeypatch.setattr(*APPEND_OWN, full)
    with pytest.raises(FullError):
        take(bench)
    monkeypatch.undo()
    (a,) = take(bench)
    assert a.attempt == 1


def test_receive_rejects_a_message_without_room_for_its_lease(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(properties_bytes_max=1500))
    room = 0
    for size in range(1400, 100, -10):
        try:
            bench.store.put("t", b"big", properties={"p": "x" * size})
        except MessageError:
            continue
        room = size
        break
    assert room
    bench.store.put("t", b"small")
    bench.turn()
    with pytest.raises(MessageError, match="message 0 of 't', queue 0"):
        take(bench)
    with pytest.raises(MessageError, match="message 0 of 't', queue 0"):
        take(bench)
    assert [m.body for m in bench.out()] == [b"big", b"small"]
    bench.close()


def test_room_for_a_lease_counts_each_byte_of_the_message_id(tmp_path: Path) -> None:
    """Each byte that an id is longer than one of the store's makes the largest message smaller."""
    bench = Bench(tmp_path / "s", small(properties_bytes_max=700))

    def has_room(size: int, message_id: str | None) -> bool:
        topic = f"t{size:03}-{len(message_id or ''):03}"  # its length counts, too
        bench.store.put(topic, b"x", properties={"p": "x" * size}, message_id=message_id)
        bench.turn()
        try:
            (leased,) = bench.store.receive(topic, "g")
        except MessageError:
            return False
        return bench.store.ack(leased) is AckResult.ACKED

    most = next(size for size in range(300, 0, -1) if has_room(size, None))
    for more in (1, 50):
        assert has_room(most - more, "i" * (32 + more))
        assert not has_room(most - more + 1, "i" * (32 + more))
    bench.close()


def test_receive_is_rejected_when_timers_are_off(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(timer_enabled=False))
    put(bench, b"a")
    with pytest.raises(MessageError, match="timers are off"):
        take(bench)
    bench.close()
