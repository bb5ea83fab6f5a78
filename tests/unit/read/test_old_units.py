"""Tags codes and due times of units are compared with the log after a store was closed."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.amounts import sample
from tests.support.bench import DAY, NOW, SECOND, Bench
from timerstore import CorruptError, PullStatus
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC

CODE_AT, UNIT_BYTES = 12, 20
HOUR = DAY // 24


def flip(bench: Bench, queue: str, offset: int, bit: int) -> Path:
    """Flip one bit of a unit's tags code."""
    path = bench.root / "consumequeue" / queue / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(offset * UNIT_BYTES + CODE_AT + bit // 8)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1 << bit % 8]))
    return path


def test_message_is_found_when_the_tags_code_of_its_unit_is_damaged(bench: Bench) -> None:
    for k in range(5):
        bench.store.put("t", b"%d" % k, tags="a" if k != 1 else None)
    bench.turn()
    for bit in range(64):
        bench.close()
        flip(bench, "t/0", 3, bit)
        bench.open()
        is_ext = bit == 7  # the sign bit: an address in the queue's ext file, which is not trusted
        got = bench.store.pull("t", 0, 0, tags="a")
        before = [b"0", b"2", b"3", b"4"][: 4 if is_ext else 2]
        assert [one.body for one in got.messages] == before
        assert got.next_offset == (5 if is_ext else 3)
        if not is_ext:
            where = f"consumequeue/t/0/{0:020d} offset {3 * UNIT_BYTES}"
            for offset, tags in ((3, "a"), (0, "b")):
                with pytest.raises(CorruptError, match=where):
                    bench.store.pull("t", 0, offset, tags=tags)
        assert len(bench.store.pull("t", 0, 0).messages) == 5
        flip(bench, "t/0", 3, bit)


def test_address_in_an_ext_file_excludes_no_message(bench: Bench) -> None:
    bench.store.put("t", b"here", tags="a")
    bench.turn()
    bench.close()
    path = bench.root / "consumequeue" / "t/0" / f"{0:020d}"
    unit = path.read_bytes()[:CODE_AT] + (-(2**31) - 7).to_bytes(8, "big", signed=True)
    whole = path.read_bytes()
    path.write_bytes(unit + whole[UNIT_BYTES:])
    bench.open()
    assert [one.body for one in bench.store.pull("t", 0, 0, tags="a").messages] == [b"here"]
    assert bench.store.pull("t", 0, 0, tags="b").status is PullStatus.NO_MATCHED_MESSAGE
    path.write_bytes(whole)


def test_messages_before_a_damaged_record_are_returned_first(bench: Bench) -> None:
    receipts = [bench.store.put("t", b"%d" % k, tags="a") for k in range(10)]
    bench.turn()
    bench.close()
    log = bench.root / "commitlog" / f"{0:020d}"
    whole = log.read_bytes()
    with log.open("r+b") as file:
        file.seek(receipts[6].log_offset + 4)  # its magic
        file.write(b"XXXX")
    bench.open()
    got = bench.store.pull("t", 0, 0, tags="a")
    assert ([one.body for one in got.messages], got.next_offset) == (
        [b"%d" % k for k in range(6)],
        6,
    )
    with pytest.raises(CorruptError, match="commitlog"):
        bench.store.pull("t", 0, 6, tags="a")
    log.write_bytes(whole)


def test_error_names_the_damaged_one_of_unit_and_record(bench: Bench) -> None:
    receipt = bench.store.put("t", b"x", tags="a")
    bench.turn()
    bench.close()
    log = bench.root / "commitlog" / f"{0:020d}"
    whole = log.read_bytes()
    log.write_bytes(whole.replace(b"TAGS\x01a", b"TAGS\x01b"))
    bench.open()
    with pytest.raises(CorruptError, match=f"commitlog/{0:020d} offset {receipt.log_offset}"):
        bench.store.pull("t", 0, 0, tags="b")
    log.write_bytes(whole)


def test_unit_that_points_elsewhere_is_not_trusted(bench: Bench) -> None:
    bench.store.put("t", b"here", tags="a")
    bench.store.put("u", b"there", tags="b")
    bench.turn()
    bench.close()
    paths = [bench.root / "consumequeue" / topic / "0" / f"{0:020d}" for topic in ("t", "u")]
    whole = [path.read_bytes() for path in paths]
    paths[0].write_bytes(whole[1])
    bench.open()
    with pytest.raises(CorruptError, match="commitlog"):
        bench.store.pull("t", 0, 0, tags="a")
    paths[0].write_bytes(whole[0])


def test_tags_are_found_after_removed_messages(bench: Bench) -> None:
    for k in range(3000):
        bench.store.put("t", b"x" * 1000, tags="a" if k % 500 == 499 else "b")
    bench.turn()
    bench.config = replace(bench.config, retention_ms=DAY)
    bench.reopen()
    bench.turn(2 * DAY)
    bench.store.put("t", b"new", tags="a")
    bench.turn(HOUR)
    begin = bench.store.pull("t", 0, 0).min_offset
    assert begin > 500, "something is gone"
    offset, found = begin, []
    while offset < 3001:
        got = bench.store.pull("t", 0, offset, tags="a")
        found += [one.queue_offset for one in got.messages]
        offset = got.next_offset
    assert found == [k for k in range(499, 3000, 500) if k >= begin] + [3000]


@pytest.mark.parametrize("bit", sample(range(64), "bits of a unit"))
def test_level_message_is_delivered_in_time_when_its_unit_is_damaged(
    bench: Bench, bit: int
) -> None:
    for body in (b"before", b"it", b"behind"):
        bench.store.put("t", body, level=2)
        bench.turn(SECOND)
    bench.close()
    flip(bench, f"{SCHEDULE_TOPIC}/1", 1, bit)
    bench.open()
    due_ms = [NOW + at * SECOND for at in (5, 6, 7)]
    assert [one.due_ms for one in bench.store.pending()] == due_ms
    assert bench.store.histogram(NOW, NOW + 10 * SECOND, "second").counts.tolist() == [
        *[0] * 5, 1, 1, 1, 0, 0,
    ]  # fmt: skip
    with pytest.raises(CorruptError, match="offset"):
        bench.store.pull(SCHEDULE_TOPIC, 1, 1)
    for at in range(3, 9):
        bench.clock.set(NOW + at * SECOND)
        bench.stepper.settle()
    assert [one.due_ms for one in bench.out()] == due_ms
    assert [one.store_ms for one in bench.out()] == due_ms
    bench.store.close()


def test_damaged_record_gives_no_due_time(bench: Bench) -> None:
    """The unit gives the due time: the delivery reports the damage then, not years later."""
    receipt = bench.store.put("t", b"x", level=2)
    bench.turn()
    bench.close()
    log = bench.root / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.seek(receipt.log_offset + 56)  # store time
        file.write(b"\x7f")
    bench.open()
    assert [one.due_ms for one in bench.store.pending()] == [NOW + 5 * SECOND]
    bench.clock.advance(5 * SECOND)
    with pytest.raises(CorruptError, match="offset"):
        bench.stepper.settle()
    bench.store.close()
