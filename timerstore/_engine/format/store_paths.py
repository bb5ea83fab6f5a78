"""Names of the files and folders of a store.

Data:     the layout of docs/file-format.md; our own side files lie in `timerstore/` at the root.
Holds:    no name leaves the root: a topic becomes a path component in `topic_component` alone.
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
"""Headers of ingested rows. Of a broker, what begins with rmq_sys_ is a system topic."""

CLUSTER_JSON = "cluster.json"
"""At the root of a directory of shards, which is no store itself (timerstore.shards)."""
BACKUP_JSON = "backup.json"
"""A folder that has it is a backup, and no store."""

QUEUE_COUNT_MAX = 65_536
"""Of one topic, whoever made them: far beyond what brokers have, and not too many to go over."""

_TOPIC = re.compile(r"[A-Za-z0-9%_|-]{1,255}")
_SEGMENT = re.compile(r"[0-9]{20}")
_QUEUE = re.compile(r"0|[1-9][0-9]{0,9}")
_INDEX = re.compile(r"[0-9]{17}")
_OFFSET_MAX = 2**63 - 1


def segment_name(offset: int) -> str:
    """Name the file whose first byte has this offset."""
    if not 0 <= offset <= _OFFSET_MAX:
        raise ValueError(f"segment offset: wanted 0 to {_OFFSET_MAX}, got {offset}")
    return f"{offset:020d}"


def segment_offset(name: str) -> int:
    """Give the offset that a segment's name says; CorruptError on any other name."""
    if not _SEGMENT.fullmatch(name) or int(name) > _OFFSET_MAX:
        raise CorruptError(
            "stray file among segments", wanted="a name of 20 digits", got=repr(name)
        )
    return int(name)


def topic_component(topic: str) -> str:
    """Turn a topic into one path component; the only place that does.

    Lets through 1 to 255 of the characters that a topic may have, which
    leaves out separators, dots, NUL and all that a file system could read otherwise. Anything else
    is a MessageError.
    """
    if not _TOPIC.fullmatch(topic):
        raise MessageError(
            f"topic cannot name a folder: wanted 1 to 255 of A-Za-z0-9%_|-, got {topic!r}"
        )
    return topic


def whole_number(text: str, most: int) -> int:
    """Read a number of a property, 0 to `most`, as native/format/text.h and Java do: with a sign or
    without, any zeros before it; -1 where it is none.
    """
    digits = text[1:] if text.startswith(("+", "-")) else text
    if not (digits.isascii() and digits.isdecimal()):
        return -1
    digits = digits.lstrip("0") or "0"  # Python's int() takes 4,300 digits, zeros among them
    number = int(digits) if len(digits) <= 19 else most + 1
    return number if number <= most and not (number and text[0] == "-") else -1


def is_topic(name: str) -> bool:
    """Whether a topic may have that name."""
    return _TOPIC.fullmatch(name) is not None


def queue_number(name: str) -> int | None:
    """Give the queue that a folder of a topic is for; None where it is for none."""
    return int(name) if _QUEUE.fullmatch(name) and int(name) < QUEUE_COUNT_MAX else None


def can_have_queue(topic: str, queue_id: int) -> bool:
    """Whether there may be such a queue: what a record or a file says may be anything."""
    return is_topic(topic) and 0 <= queue_id < QUEUE_COUNT_MAX


def index_name(now_ms: int, last: str | None) -> str:
    """Name an index file that is made now: local time to the millisecond, but always behind the
    last one's name, since a broker takes the files in the order of their names.
    """
    here = time.localtime(now_ms // 1000)
    name = f"{here.tm_year:04d}{time.strftime('%m%d%H%M%S', here)}{now_ms % 1000:03d}"
    if last is None or name > last:
        return name
    # Not strptime: it imports, with the first call, what there may be no descriptor for.
    parts = [int(last[begin:end]) for begin, end in pairwise((0, 4, 6, 8, 10, 12, 14))]
    try:
        after = datetime(*parts, int(last[14:]) * 1000, tzinfo=UTC)  # type: ignore[misc,arg-type]
    except ValueError:  # a name that is no time: somebody else's
        return f"{int(last) + 1:017d}"
    after += timedelta(milliseconds=1)
    return f"{after.year:04d}{after:%m%d%H%M%S}{after.microsecond // 1000:03d}"


def is_index_name(name: str) -> bool:
    """Whether a file has a name as index files have."""
    return _INDEX.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Tree:
    """All paths of one store."""

    root: Path

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders in it that files are in, but for those of queues."""
        return (
            self.commit_log,
            self.queues,
            self.index,
            self.timer_log,
            self.config,
            self.side,
        )

    @property
    def commit_log(self) -> Path:
        """Folder of the message log."""
        return self.root / "commitlog"

    @property
    def queues(self) -> Path:
        """Folder of all consume queues."""
        return self.root / "consumequeue"

    def topic(self, topic: str) -> Path:
        """Folder of one topic's queues."""
        return self.queues / topic_component(topic)

    def queue(self, topic: str, queue_id: int) -> Path:
        """Folder of one consume queue."""
        if not 0 <= queue_id < QUEUE_COUNT_MAX:
            raise ValueError(f"queue: wanted 0 to {QUEUE_COUNT_MAX - 1}, got {queue_id}")
        return self.topic(topic) / str(queue_id)

    @property
    def index(self) -> Path:
        """Folder of the key index."""
        return self.root / "index"

    @property
    def timer_log(self) -> Path:
        """Folder of the timer log."""
        return self.root / "timerlog"

    @property
    def timer_wheel(self) -> Path:
        """The wheel."""
        return self.root / "timerwheel"

    @property
    def checkpoint(self) -> Path:
        """The ancestor's checkpoint."""
        return self.root / "checkpoint"

    @property
    def abort(self) -> Path:
        """There while the store is open; found at opening: it was not closed."""
        return self.root / "abort"

    @property
    def abort_backup(self) -> Path:
        """What the broker leaves behind when it writes `abort`."""
        return self.root / "abort.bak"

    @property
    def lock(self) -> Path:
        """The process lock."""
        return self.root / "lock"

    @property
    def config(self) -> Path:
        """Folder of topics, timer checkpoint and metrics."""
        return self.root / "config"

    @property
    def topics_json(self) -> Path:
        """Topics and their queue counts."""
        return self.config / "topics.json"

    @property
    def consumer_offset_json(self) -> Path:
        """How far each group has come."""
        return self.config / "consumerOffset.json"

    @property
    def recurring_json(self) -> Path:
        """What is put again and again: ours, a broker does not look at it."""
        return self.config / "timerstoreRecurring.json"

    @property
    def delay_offset_json(self) -> Path:
        """What a broker delivers next of each fixed level."""
        return self.config / "delayOffset.json"

    @property
    def timer_check(self) -> Path:
        """The timer's checkpoint."""
        return self.config / "timercheck"

    @property
    def timer_metrics(self) -> Path:
        """Pending counts by topic."""
        return self.config / "timermetrics"

    @property
    def side(self) -> Path:
        """Folder of our own side files; a broker does not look into it."""
        return self.root / "timerstore"

    @property
    def watermark(self) -> Path:
        """What recovery may trust."""
        return self.side / "watermark"

    @property
    def state(self) -> Path:
        """State of every timer id, a cache."""
        return self.side / "state"

    @property
    def staging(self) -> Path:
        """Appended bytes on their way to the commit log."""
        return self.side / "staging"

    @property
    def index_position(self) -> Path:
        """How far the index reaches, and what its files hold."""
        return self.side / "index"

    def ids(self, number: int) -> Path:
        """A file of the message ids that are remembered, a cache."""
        return self.side / f"ids-{number}"

    @property
    def ingest_ledger(self) -> Path:
        """What was ingested, a cache."""
        return self.side / "ingest"

    @property
    def wheel_checks(self) -> Path:
        """What each sector of the wheel's file holds."""
        return self.side / "wheel"

    @property
    def timer_damaged(self) -> Path:
        """There where a service met damage in the timer log, or a unit that leads to another's
        record: the next opening builds timer log and far wheel anew.
        """
        return self.side / "timer_damaged"

    @property
    def far_log(self) -> Path:
        """Folder of the far wheel's units."""
        return self.side / "far"

    def far_table(self, number: int) -> Path:
        """The far wheel's slots, in two files that are written in turn."""
        return self.side / f"far-{number % 2}"

    @property
    def counts(self) -> Path:
        """Pending counts, a cache."""
        return self.side / "counts"


def backup_of(path: Path) -> Path:
    """Name the older copy that is kept beside a JSON file."""
    return path.with_name(f"{path.name}.bak")
