"""What just fits a file of the commit log is delivered, and can be given another time, replaced and
leased: `put` refuses what could not.
"""

from pathlib import Path

import pytest

from tests.support.bench import Bench, small
from timerstore import AckResult, MessageError, PutReceipt, arguments

TOPICS = ("t", "t" * 19, "t" * 20, "t" * 127)
ID = "i" * 128
ROLLS_S = 100  # the wheel of 128 slots rolls what is due later than its half


def bench_of(path: Path, *, property_crc: bool) -> Bench:
    return Bench(
        path,
        small(commit_log_segment_bytes=4096, property_crc=property_crc),
    )


def room_of(bench: Bench, topic: str) -> int:
    return arguments.room_bytes(bench.config.record_bytes_max, topic.encode())


def fill(bench: Bench, left: int) -> None:
    """So that the next record, or group, finds a file's end somewhere else each time."""
    bench.store.put("fill", bytes(left))


@pytest.mark.parametrize("property_crc", [False, True])
@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("delay", [0, 2.5, ROLLS_S])
def test_it_is_delivered(tmp_path: Path, topic: str, delay: float, *, property_crc: bool) -> None:
    """With sizes around the limit; nothing is there of one that was refused."""
    bench = bench_of(tmp_path, property_crc=property_crc)
    room, wanted = room_of(bench, topic), []
    for more in (-26, -1, 0, 1, 2, 26, 500, 2000):
        for key in ("", "k" * 300):
            body = bytes([65 + len(wanted)]) * (room + more - (len(key) + 6 if key else 0))
            if more > 0:
                with bench.refused(MessageError, "message: wanted at most"):
                    bench.store.put(topic, body, delay=delay, keys=key, queue_id=0)
            else:
                bench.store.put(topic, body, delay=delay, keys=key, queue_id=0)
                wanted.append(body)
    for _ in range(ROLLS_S + 5):
        bench.turn(1000)
    assert bench.bodies(topic) == wanted
    assert bench.store.stats()["pending_messages"] == 0
    bench.close()


@pytest.mark.parametrize("property_crc", [False, True])
@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("message_id", [None, ID])
def test_it_is_given_another_time(
    tmp_path: Path, topic: str, message_id: str | None, *, property_crc: bool
) -> None:
    """Its delete record lies in the same file: it was put, and could not be rescheduled."""
    bench = bench_of(tmp_path, property_crc=property_crc)
    body = bytes(room_of(bench, topic) - (len(ID) - 32 if message_id else 0))
    if message_id:  # what is remembered of it counts, too
        while True:
            try:
                put = bench.store.put(topic, body, delay=50, queue_id=0, message_id=message_id)
                break
            except MessageError:
                body = body[:-1]
    else:
        put = bench.store.put(topic, body, delay=50, queue_id=0)
    for left in (0, 100, 1000, 2000, 2900):
        fill(bench, left)
        put = bench.store.reschedule(put, delay=60 + left / 100)
        bench.turn()
    bench.turn(ROLLS_S * 1000)
    assert bench.bodies(topic) == [body]
    bench.close()


@pytest.mark.parametrize("property_crc", [False, True])
@pytest.mark.parametrize("topic", TOPICS)
def test_it_is_replaced(tmp_path: Path, topic: str, *, property_crc: bool) -> None:
    bench = bench_of(tmp_path, property_crc=property_crc)

    def put(body: bytes) -> PutReceipt:
        return bench.store.put(topic, body, key="k", replace=True, delay=50, queue_id=0)

    size = room_of(bench, topic)
    while True:
        try:
            put(bytes(size))
            break
        except MessageError:
            size -= 1
    for left in (0, 100, 1000, 2000, 2900):
        fill(bench, left)
        put(b"%04d" % left + bytes(size - 4))
        bench.turn()
    bench.turn(60_000)
    assert bench.bodies(topic) == [b"2900" + bytes(size - 4)]
    bench.close()


@pytest.mark.parametrize("property_crc", [False, True])
@pytest.mark.parametrize(("topic", "group"), [("t", "g"), ("t", "g" * 118), ("t" * 60, "g" * 59)])
@pytest.mark.parametrize("has_key", [False, True])
def test_it_is_leased(
    tmp_path: Path, topic: str, group: str, *, has_key: bool, property_crc: bool
) -> None:
    """And again, after its lease, and after a `nack`, which may find no room for another time."""
    bench = bench_of(tmp_path, property_crc=property_crc)
    key = "k" * 300 if has_key else ""
    body = bytes(room_of(bench, topic) - (306 if has_key else 0))
    bench.store.put(topic, body, keys=key, queue_id=0)
    bench.turn()
    [first] = bench.store.receive(topic, group, lease=20)
    assert (first.body, first.attempt) == (body, 1)
    bench.turn(20_001)
    [again] = bench.store.receive(topic, group, lease=20)
    assert (again.body, again.attempt) == (body, 2)
    try:  # its topic's name and what a lease adds take more than its message had to spare
        bench.store.nack(again)
    except MessageError as error:
        assert "group of records: wanted at most" in str(error)  # noqa: PT017 - it may well fit
    bench.turn(120_000)
    [again] = bench.store.receive(topic, group, lease=20)
    assert (again.body, again.attempt) == (body, 3)
    assert bench.store.ack(again) is AckResult.ACKED
    bench.turn(60_000)
    assert list(bench.store.receive(topic, group, lease=20)) == []
    bench.close()


def test_what_a_store_of_before_put_larger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so where it is to be given another time, and comes at its own."""
    bench = bench_of(tmp_path, property_crc=True)
    room = room_of(bench, "t")
    with monkeypatch.context() as patched:
        patched.setattr(arguments, "_MOVE_BYTES", 0)
        bench.reopen()
        body = bytes(room + 500)
        put = bench.store.put("t", body, delay=50)
    with bench.refused(MessageError, "group of records: wanted at most 4080 bytes"):
        bench.store.reschedule(put, delay=60)
    bench.turn(50_000)
    assert bench.bodies("t") == [body]
    bench.close()
