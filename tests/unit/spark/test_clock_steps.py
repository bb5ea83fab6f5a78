"""`clock_step_ms`: the parts of a log that a plan leaves out, and the segment a stream begins with.

Both go by the first record of a part. A record inside may have been stored `clock_step_ms` later or
earlier than that: at this distance a part is read, and one millisecond further it is not.
"""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.support.bench import NOW, Bench, small
from timerstore.spark import plan
from timerstore.spark.offsets import positions
from timerstore.spark.read_options import parse
from timerstore.spark.stream import StreamReader

SEGMENT = 64 * 1024
STEP_MS = 5_000
TIMES = [NOW, NOW + 100_000, NOW + 200_000]
"""When the records of each segment were stored."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of one segment for each time."""
    bench = Bench(tmp_path_factory.mktemp("steps") / "s", small(commit_log_segment_bytes=SEGMENT))
    for number, time_ms in enumerate(TIMES):
        bench.clock.set(time_ms)
        while bench.store.stats()["log_end_bytes"] <= number * SEGMENT + SEGMENT - 2000:
            bench.store.put("t", bytes(900))
        if number + 1 < len(TIMES):  # the next record begins the next segment
            bench.clock.set(TIMES[number + 1])
            bench.store.put("t", bytes(2000))
    bench.store.flush()
    bench.close()
    return bench.root


def _options(path: Path, **given: Any) -> Any:
    texts = {name: str(value) for name, value in given.items()}
    return parse({"path": str(path), "clock_step_ms": str(STEP_MS)} | texts)


def _segments(path: Path, **given: Any) -> list[int]:
    asked = _options(path, max_partition_bytes="64k", **given)
    found = plan.plan(asked, asked.wanted(("log_offset",), times_as_long=False)).tasks
    return sorted({task.part.begin // SEGMENT for task in found})


@pytest.mark.parametrize(
    ("bounds", "segments"),
    [
        ({"stored_from_ms": TIMES[1] + STEP_MS}, [0, 1, 2]),
        ({"stored_from_ms": TIMES[1] + STEP_MS + 1}, [1, 2]),
        ({"stored_from_ms": TIMES[2] + STEP_MS}, [1, 2]),
        ({"stored_from_ms": TIMES[2] + STEP_MS + 1}, [2]),
        ({"stored_to_ms": TIMES[2] - STEP_MS + 1}, [0, 1, 2]),
        ({"stored_to_ms": TIMES[2] - STEP_MS}, [0, 1]),
        ({"stored_to_ms": TIMES[1] - STEP_MS + 1}, [0, 1]),
        ({"stored_to_ms": TIMES[1] - STEP_MS}, [0]),
    ],
)
def test_plan_reads_a_part_at_the_distance_of_a_clock_step(
    stored: Path, bounds: dict[str, int], segments: list[int]
) -> None:
    assert _segments(stored, **bounds) == segments


@pytest.mark.parametrize(
    ("since_ms", "segment"),
    [
        (TIMES[1] + STEP_MS, 0),
        (TIMES[1] + STEP_MS + 1, 1),
        (TIMES[2] + STEP_MS, 1),
        (TIMES[2] + STEP_MS + 1, 2),
    ],
)
def test_stream_begins_with_a_segment_that_is_more_than_a_clock_step_older(
    stored: Path, since_ms: int, segment: int
) -> None:
    asked = _options(stored, starting_offsets=f"timestamp:{since_ms}")
    reader = StreamReader(asked, asked.wanted(("log_offset",), times_as_long=False))
    (at,) = positions("offset", reader.initialOffset()).values()
    assert at.p == segment * SEGMENT
