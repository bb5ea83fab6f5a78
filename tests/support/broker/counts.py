"""The rule by which a broker counts what waits, replayed on its own files.

Data:     timer log, commit log, config/timercheck and config/timermetrics of a closed or killed
          store.
Holds:    imports nothing of timerstore. One event of the rule is one change of dataVersion.counter
          and of one topic's count:
              a unit is appended to the timer log   +1, a delete's unit -1
              a message leaves the wheel            -1, be it delivered or rolled on, a rolled
                                                    delete too; none where it never was on it
              deletes of a slot were carried out    +1 each, when the thread that read them reads
                                                    deletes again: meant for those that found
                                                    nothing, done for all (5.3.3; 5.4.0 for
                                                    those whose target another thread read)
          So three things make a count wrong: a delete that was carried out, a delete that rolled,
          and events between the file's last write (once a second) and a death.
          How many of the last kind of event there were is the one thing that the files do not tell,
          with more than one thread; counter and counts, being one number more than topics, do.
Source:   docs/decisions/0011-broker-interoperability.md;
          a broker's answers, step by step, with one thread:
          tests/interop/test_rocketmq_counts.py.
"""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.support import disk_reader as disk

_TOGETHER_MS = 100  # an event's stamp is taken before or after it is counted


class Ends(NamedTuple):
    """How far a store's files reach."""

    log: int = 0
    timer_log: int = 0

    @classmethod
    def of(cls, root: Path) -> "Ends":
        """Of a store that was closed or killed."""
        units = list(disk.timer_units(root))
        end = units[-1].pos + disk.TIMER_UNIT_BYTES if units else 0
        return cls(disk.log_end(root).position, end)


class Event(NamedTuple):
    """One change of a topic's count."""

    at_ms: int
    topic: str
    change: int
    is_delete: bool
    key: str  # of the message that it is, or that it deletes


class TimerMetrics(NamedTuple):
    """config/timermetrics, whole."""

    counter: int
    at_ms: int
    counts: dict[str, int]
    times_ms: dict[str, int]
    raw: bytes


def read_metrics(root: Path) -> TimerMetrics:
    """Read the file, or its older copy where a death left it half written."""
    path = root / "config" / "timermetrics"
    found = disk.read_json(path)
    version, topics = found["dataVersion"], found["timingCount"]
    return TimerMetrics(
        version["counter"],
        version["timestamp"],
        {topic: one["count"] for topic, one in topics.items()},
        {topic: one["timeStamp"] for topic, one in topics.items()},
        path.read_bytes(),
    )


def events(root: Path, after: Ends = Ends()) -> list[Event]:  # noqa: B008
    """What changed the counts behind some ends, without what deletes were given back."""
    log = {record.position: record for record in disk.records(root)}
    found = []
    for unit in disk.timer_units(root):
        if unit.pos >= after.timer_log:
            record = log[unit.log_offset]
            is_delete = bool(unit.magic & disk.TIMER_DELETE)
            found.append(_event(record, record.store_ms, -1 if is_delete else 1))
    for record in log.values():
        enqueued = record.properties.get("TIMER_ENQUEUE_MS", str(disk.NEVER_INDEXED))
        if record.position >= after.log and int(enqueued) != disk.NEVER_INDEXED:
            found.append(_event(record, int(record.properties["TIMER_DEQUEUE_MS"]), -1))
    return found


def _event(record: disk.Record, at_ms: int, change: int) -> Event:
    properties = record.properties
    target = properties.get("TIMER_DEL_UNIQKEY")
    topic = properties["REAL_TOPIC"]
    return Event(at_ms, topic, change, target is not None, target or properties["UNIQ_KEY"])


def split(found: list[Event], at_ms: int) -> tuple[list[Event], list[Event]]:
    """Those that a file has that was written when the newest change was of `at_ms`, and the rest.

    ValueError where that cannot be told: the next one came too soon.
    """
    if any(_TOGETHER_MS < one.at_ms - at_ms < 2 * _TOGETHER_MS for one in found):
        raise ValueError(f"events too near to {at_ms}")
    within = [one for one in found if one.at_ms <= at_ms + _TOGETHER_MS]
    return within, [one for one in found if one.at_ms > at_ms + _TOGETHER_MS]


def total(found: list[Event]) -> Counter[str]:
    """Change of each topic's count."""
    changes: Counter[str] = Counter()
    for one in found:
        changes[one.topic] += one.change
    return changes


def carried_out(root: Path) -> list[Counter[str]]:
    """Deletes whose slots were read, by topic, slot by slot."""
    check = disk.read_timer_check(root)
    assert check is not None
    slots: dict[int, Counter[str]] = {}
    for unit in disk.timer_units(root):
        if unit.magic & disk.TIMER_DELETE and not unit.magic & disk.TIMER_ROLL:
            record = disk.read_record(root, unit.log_offset, unit.store_size)
            if unit.slot_ms < check.read_ms:
                slots.setdefault(unit.slot_ms, Counter())[record.properties["REAL_TOPIC"]] += 1
    return [slots[slot] for slot in sorted(slots)]
