"""Private parts of components, for the simulator and for tests of crashes, properties and files."""

from random import Random
from typing import Any, NamedTuple

from timerstore._engine.base import owner
from timerstore._engine.format import backup_json, counts_json
from timerstore._engine.log.survey import _Segment
from timerstore._engine.read import queue_reader
from timerstore._engine.storage import directory

# --- parts that the simulator and the driver read ---


def allow_unclosed(store: Any) -> None:
    """Have a store, or shards, give no warning when they are dropped without close."""
    store._warns_unclosed = False


def release_unclosed(store: Any) -> None:
    """Release the directory of a store and take it for closed, with nothing synced or closed."""
    store._closed = True
    store._engine.directory.release()


def held_directories() -> dict[Any, Any]:
    """The directories that this process has locked, by device and inode."""
    return directory._held


def open_stores() -> Any:
    """The stores that are closed when the interpreter ends, if they still exist: a set of them."""
    return owner._open


def spreader_of(store: Any) -> Any:
    """What draws due times from a window, of a store or of shards."""
    return getattr(store, "_puts", store)._spreader


def random_of(spreader: Any) -> Random:
    """The random numbers of a spreader."""
    found: Random = spreader._random
    return found


def states_of(finder: Any) -> Any:
    """The states of timers that a finder of pending messages reads."""
    return finder._states


def retry_ns_of(schedule: Any) -> int:
    """When the hand-over of fixed delay levels tries again, on the monotonic clock."""
    return int(schedule._retry_ns)


def pull_bytes_max() -> int:
    """How many bytes of messages one pull reads at a time."""
    return queue_reader._BUFFER_BYTES_MAX


# --- parts that tests of crashes and corruption read ---


def find_in_segment(data: bytearray, end: int, wanted: bytes, start: int) -> int:
    """Where the survey of a damaged log finds bytes in a segment's first `end` bytes, or -1."""
    segment = object.__new__(_Segment)
    segment._data, segment._data_end = data, end  # type: ignore[assignment]
    return segment._find(wanted, start)


# --- parts that fuzz tests read ---


def crc_of_count(entry: dict[str, Any]) -> int:
    """The CRC of one entry of counts.json."""
    return counts_json._crc(entry)


# --- parts that property and stress tests read ---


class DelayQueueTables(NamedTuple):
    """The tables of a DelayQueue, by bucket number."""

    counts: dict[int, int]  # entries of each bucket
    opened: set[int]  # buckets that are sorted
    marks: dict[int, int]  # cancelled entries that still stand in a bucket
    numbers: set[int]  # those that the heap of buckets has, or will have


def delay_queue_tables(queue: Any) -> DelayQueueTables:
    """Copy the tables of a DelayQueue."""
    return DelayQueueTables(
        {number: queue._count(number) for number in queue._buckets},
        set(queue._opened),
        dict(queue._tombstones),
        {*queue._numbers, *queue._new_numbers},
    )
