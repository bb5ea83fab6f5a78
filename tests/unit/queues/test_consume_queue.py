"""`ConsumeQueue.visible` equals a linear search, for any order of calls."""

import random
import struct
from pathlib import Path

import pytest

from tests.support.inside import queue_segments
from timerstore._engine.queues.consume_queue import UNIT_BYTES, ConsumeQueue
from timerstore._engine.storage.disk import Disk


def make(tmp_path: Path, first: int, ends: list[int], segment_units: int = 700) -> ConsumeQueue:
    """Return a queue whose records end at these log offsets; its first queue offset is `first`."""
    queue = ConsumeQueue(Disk(), tmp_path / "0", segment_units * UNIT_BYTES)
    queue.load()
    queue.restart(first)
    units = b"".join(
        struct.pack(">qiq", begin, end - begin, 7)
        for begin, end in zip([0, *ends], ends, strict=False)
    )
    queue.append(first, units)
    return queue


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("first", [0, 1, 1234])
def test_visible_equals_a_linear_search(tmp_path: Path, first: int, seed: int) -> None:
    chance, ends = random.Random(seed), [0]
    for _ in range(chance.choice([1, 5, 1023, 1024, 1025, 9000])):
        ends.append(ends[-1] + chance.randrange(91, 400))
    queue = make(tmp_path, first, ends[1:])
    assert queue.visible(0) == first
    at = 0
    for _ in range(200):
        at = min(at + chance.choice([0, 1, 300, 50_000]), ends[-1] + 10)
        if chance.random() < 0.1:
            at = chance.randrange(ends[-1] + 10)
        wanted = first + sum(end <= at for end in ends[1:])
        assert queue.visible(at) == wanted
    assert queue.visible(ends[-1]) == first + len(ends) - 1 == queue.count


def test_units_added_later_become_visible(tmp_path: Path) -> None:
    queue = make(tmp_path, 0, [100 * k for k in range(1, 5001)])
    assert queue.visible(250_000) == 2500
    queue.append(
        5000, b"".join(struct.pack(">qiq", 500_000 + 100 * k, 100, 7) for k in range(3000))
    )
    assert queue.visible(250_050) == 2500
    assert queue.visible(600_000) == 6000
    assert queue.visible(100_000) == 1000, "a lower log end than before"
    assert queue.visible(800_000) == 8000


@pytest.mark.parametrize("seed", range(6))
def test_visible_between_appends(tmp_path: Path, seed: int) -> None:
    """Units are appended in many small parts, some of them twice, as after a full disk.

    The log end lies before, within and after the last part.
    """
    chance, ends = random.Random(seed), [100]
    queue = make(tmp_path, 0, ends)
    for _ in range(80):
        first, begin = len(ends), ends[-1]
        ends += [begin + 100 * k for k in range(1, chance.choice([1, 2, 40, 1500]) + 1)]
        again = chance.randrange(first + 1) if chance.random() < 0.1 else first
        units = (struct.pack(">qiq", end - 100, 100, 7) for end in ends[again:])
        queue.append(again, b"".join(units))
        assert queue.count == len(ends)
        for _ in range(chance.randrange(4)):
            at = max(0, ends[-1] - chance.choice([0, 1, 99, 100, 5_000, 200_000, 10**9]))
            wanted = max(queue.min_offset, sum(end <= at for end in ends))
            assert queue.visible(at) == wanted == queue.visible(at)
        if chance.random() < 0.1:
            queue.min_offset = chance.randrange(queue.min_offset, queue.count + 1)
            assert queue.visible(0) == queue.min_offset
    assert queue.visible(ends[-1]) == len(ends)


def test_visible_reads_few_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make(tmp_path, 0, [100 * k for k in range(1, 60_001)], segment_units=100_000)
    assert queue.visible(3_000_000) == 30_000
    sizes: list[int] = []
    segments = queue_segments(queue)
    read = segments.read

    def counted(offset: int, size: int) -> bytes:
        sizes.append(size)
        return read(offset, size)

    monkeypatch.setattr(segments, "read", counted)
    for k in range(1, 100):
        assert queue.visible(3_000_000 + 100_000 * k // 4) == 30_000 + 250 * k
    assert len(sizes) <= 99 * 7
    assert max(sizes) <= 1024 * UNIT_BYTES
