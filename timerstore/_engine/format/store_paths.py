"""Names of the files and folders of a store.

Invariants:
    1. No name leads out of the root: only `topic_component` turns a topic into a path component.
On-disk format: the layout of docs/file-format.md. Files that a broker does not know are in the
    folder `timerstore/` of the root.
"""

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from timerstore.errors import CorruptError, MessageError

WHEEL_TIMER_TOPIC = "rmq_sys_wheel_timer"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
INGEST_TOPIC = "rmq_sys_timerstore_ingest"
"""The ingest ledger. A broker treats topics that begin with rmq_sys_ as system topics."""
DELETED_TOPIC = "rmq_sys_timerstore_deleted"
"""A record for each deleted topic (maintenance/topic_deletion.py)."""
DELETED_PROPERTY = "TS_DELETED"
"""On such a record: the topic."""

CLUSTER_JSON = "cluster.json"
"""In the root of a directory of shards, which is not a store itself (timerstore.shards)."""
BACKUP_JSON = "backup.json"
"""A folder with this file is a backup, not a store."""

QUEUE_COUNT_MAX = 65_536
"""Of one topic. Far more than brokers use, and few enough to iterate over."""

_SHARD = re.compile(r"shard-([0-9]{5})")
_TOPIC = re.compile(r"[A-Za-z0-9%_|-]{1,255}")
_SEGMENT = re.compile(r"[0-9]{20}")
_QUEUE = re.compile(r"0|[1-9][0-9]{0,9}")
_INDEX = re.compile(r"[0-9]{17}")
_OFFSET_MAX = 2**63 - 1


def segment_name(offset: int) -> str:
    """Return the name of the segment whose first byte has this offset."""
    if not 0 <= offset <= _OFFSET_MAX:
        raise ValueError(f"segment offset: wanted 0 to {_OFFSET_MAX}, got {offset}")
    return f"{offset:020d}"


def segment_offset(name: str) -> int:
    """Return the offset in a segment's name. CorruptError on any other name."""
    if not _SEGMENT.fullmatch(name) or int(name) > _OFFSET_MAX:
        raise CorruptError(
            "stray file among segments", wanted="a name of 20 digits", got=repr(name)
        )
    return int(name)


def shard_name(shard: int) -> str:
    """Return the folder name of a shard, in a directory of shards and in its backups."""
    return f"shard-{shard:05d}"


def shard_number(name: str) -> int | None:
    """Return the shard of a folder name, or None for another name."""
    found = _SHARD.fullmatch(name)
    return int(found[1]) if found else None


def topic_component(topic: str) -> str:
    """Return the path component of a topic.

    A topic has 1 to 255 characters. Separators, dots, NUL and other characters with a meaning in a
    file system are not allowed.

    Raises:
        MessageError: the topic has another length or other characters.
    """
    if not _TOPIC.fullmatch(topic):
        raise MessageError(
            f"topic cannot name a folder: wanted 1 to 255 of A-Za-z0-9%_|-, got {topic!r}"
        )
    return topic


def whole_number(text: str, most: int) -> int:
    """Parse a number from 0 to `most` in a property; return -1 if it is not one.

    A sign and leading zeros are allowed, as in native/format/text.h and Java.
    """
    digits = text[1:] if text.startswith(("+", "-")) else text
    if not (digits.isascii() and digits.isdecimal()):
        return -1
    digits = digits.lstrip("0") or "0"  # Python's int() takes 4,300 digits, zeros among them
    number = int(digits) if len(digits) <= 19 else most + 1
    return number if number <= most and not (number and text[0] == "-") else -1


def is_topic(name: str) -> bool:
    """Return whether a topic may have this name."""
    return _TOPIC.fullmatch(name) is not None


def queue_number(name: str) -> int | None:
    """Return the queue number in the name of a topic's folder; None if it is not one."""
    return int(name) if _QUEUE.fullmatch(name) and int(name) < QUEUE_COUNT_MAX else None


def can_have_queue(topic: str, queue_id: int) -> bool:
    """Return whether such a queue may exist, for values from a record or a file."""
    return is_topic(topic) and 0 <= queue_id < QUEUE_COUNT_MAX


def index_name(now_ms: int, last: str | None) -> str:
    """Return the name of a new index file: the local time to the millisecond.

    The name is always greater than `last`, because a broker orders the files by name.
    """
    here = time.localtime(now_ms // 1000)
    name = f"{here.tm_year:04d}{time.strftime('%m%d%H%M%S', here)}{now_ms % 1000:03d}"
    if last is None or name > last:
        return name
    # Not strptime: its first call imports a module, which fails when no descriptor is free.
    parts = [int(last[begin:end]) for begin, end in pairwise((0, 4, 6, 8, 10, 12, 14))]
    try:
        after = datetime(*parts, int(last[14:]) * 1000, tzinfo=UTC)  # type: ignore[misc,arg-type]
    except ValueError:  # a name that is not a time: another program made the file
        return f"{int(last) + 1:017d}"
    after += timedelta(milliseconds=1)
    return f"{after.year:04d}{after:%m%d%H%M%S}{after.microsecond // 1000:03d}"


def is_index_name(name: str) -> bool:
    """Return whether this is the name of an index file."""
    return _INDEX.fullmatch(name) is not None


class _Below:
    """A path of every store, below its root."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, tree: "Tree", _kind: type) -> Path:
        return tree.root / self._name


@dataclass(frozen=True, slots=True)
class Tree:
    """All paths of one store."""

    root: Path

    commit_log = _Below("commitlog")
    """Folder of the commit log."""
    queues = _Below("consumequeue")
    """Folder of all consume queues."""
    index = _Below("index")
    """Folder of the key index."""
    timer_log = _Below("timerlog")
    """Folder of the timer log."""
    timer_wheel = _Below("timerwheel")
    """The timing wheel."""
    checkpoint = _Below("checkpoint")
    """The broker's checkpoint."""
    abort = _Below("abort")
    """Exists while the store is open. Found at opening, it shows that there was no close."""
    lock = _Below("lock")
    """The process lock."""
    config = _Below("config")
    """Folder of topics, timer checkpoint and metrics."""
    topics_json = _Below("config/topics.json")
    """Topics and their queue counts."""
    consumer_offset_json = _Below("config/consumerOffset.json")
    """Committed offsets of consumer groups."""
    recurring_json = _Below("config/timerstoreRecurring.json")
    """Recurring messages; a broker does not read it."""
    delay_offset_json = _Below("config/delayOffset.json")
    """Offset that a broker delivers next, for each delay level."""
    timer_check = _Below("config/timercheck")
    """The timer's checkpoint."""
    timer_metrics = _Below("config/timermetrics")
    """Pending counts by topic."""
    side = _Below("timerstore")
    """Folder of the side files that a broker does not read."""
    watermark = _Below("timerstore/watermark")
    """The last checkpoint: what recovery may trust."""
    state = _Below("timerstore/state")
    """State of every timer id, a cache."""
    staging = _Below("timerstore/staging")
    """Appended bytes on their way to the commit log."""
    index_position = _Below("timerstore/index")
    """How much of the log the key index covers, and checksums of its files."""
    ingest_ledger = _Below("timerstore/ingest")
    """The ingest ledger, a cache."""
    wheel_checks = _Below("timerstore/wheel")
    """Checksums of the sectors of the wheel's file."""
    timer_damaged = _Below("timerstore/timer_damaged")
    """Exists if a service found damage in the timer log, or a unit of a wrong record.

    The next opening then rebuilds the timer log and the far wheel.
    """
    far_log = _Below("timerstore/far")
    """Folder of the far wheel's units."""
    counts = _Below("timerstore/counts")
    """Pending counts, a cache."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders with files, except the folders of queues."""
        return (
            self.commit_log,
            self.queues,
            self.index,
            self.timer_log,
            self.config,
            self.side,
        )

    def topic(self, topic: str) -> Path:
        """Folder of one topic's queues."""
        return self.queues / topic_component(topic)

    def queue(self, topic: str, queue_id: int) -> Path:
        """Folder of one consume queue."""
        if not 0 <= queue_id < QUEUE_COUNT_MAX:
            raise ValueError(f"queue: wanted 0 to {QUEUE_COUNT_MAX - 1}, got {queue_id}")
        return self.topic(topic) / str(queue_id)

    def ids(self, number: int) -> Path:
        """Return the path of a file of known message ids, a cache."""
        return self.side / f"ids-{number}"

    def far_table(self, number: int) -> Path:
        """Return the path of a table of far slots; two files are written alternately."""
        return self.side / f"far-{number % 2}"


def backup_of(path: Path) -> Path:
    """Return the path of the older copy of a JSON file."""
    return path.with_name(f"{path.name}.bak")
