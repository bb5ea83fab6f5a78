"""The rule by which a broker counts pending messages, replayed on the broker's own files.

The input is the timer log, commit log, config/timercheck and config/timermetrics of a store that
was closed or killed. One event of the rule changes dataVersion.counter by one, and changes the
count of one topic:

    a unit is appended to the timer log    +1, or -1 for the unit of a delete
    a message leaves the wheel             -1, whether it is delivered or rolled, and also for a
                                           delete that rolls; no change if the message was never
                                           on the wheel
    deletes of a slot were carried out     +1 each, when the thread that read them reads deletes
                                           again. This is meant for deletes that found no message,
                                           but is done for all (5.3.3), or for those whose target
                                           was read by another thread (5.4.0)

Three things therefore make a count wrong: a delete that was carried out, a delete that rolled, and
events between the last write of the file (once a second) and a kill. With more than one thread the
files do not show how many events of the last kind there were. It is computed from the counter and
the counts, which give one more equation than there are topics.

Invariants: imports nothing of timerstore.
See also: the decision record on broker interoperability, and the answers of a broker with one
    thread, step by step, in tests/interop/test_rocketmq_counts.py.
"""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.support import disk_reader as disk

_TOGETHER_MS = 100  # the time of an event is taken before or after it is counted


class Ends(NamedTuple):
    """The ends of a store's logs."""

    log: int = 0
    timer_log: int = 0

    @classmethod
    def of(cls, root: Path) -> "Ends":
        """Read the ends of a store that was closed or killed."""
        units = list(disk.timer_units(root))
        end = units[-1].pos + disk.TIMER_UNIT_BYTES if units else 0
        return cls(disk.log_end(root).position, end)


class Event(NamedTuple):
    """One change of a topic's count."""

    at_ms: int
    topic: str
    change: int
    is_delete: bool
    key: str  # of the message, or of the message that it deletes


class TimerMetrics(NamedTuple):
    """The contents of config/timermetrics."""

    counter: int
    at_ms: int
    counts: dict[str, int]
    times_ms: dict[str, int]
    raw: bytes


def read_metrics(root: Path) -> TimerMetrics:
    """Read the file, or its older copy if a kill left it half written."""
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
    """Return the events after some ends, without the counts that deletes gave back."""
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
    """Split the events into those of a file whose newest change was at `at_ms`, and the rest.

    Raises:
            ValueError: the next event is too close to `at_ms` to decide.
    """
    if any(_TOGETHER_MS < one.at_ms - at_ms < 2 * _TOGETHER_MS for one in found):
        raise ValueError(f"events too near to {at_ms}")
    within = [one for one in found if one.at_ms <= at_ms + _TOGETHER_MS]
    return within, [one for one in found if one.at_ms > at_ms + _TOGETHER_MS]


def total(found: list[Event]) -> Counter[str]:
    """Return the change of each topic's count."""
    changes: Counter[str] = Counter()
    for one in found:
        changes[one.topic] += one.change
    return changes


def carried_out(root: Path) -> list[Counter[str]]:
    """Return the deletes whose slots were read, by topic, slot by slot."""
    check = disk.read_timer_check(root)
    assert check is not None
    slots: dict[int, Counter[str]] = {}
    for unit in disk.timer_units(root):
        if unit.magic & disk.TIMER_DELETE and not unit.magic & disk.TIMER_ROLL:
            record = disk.read_record(root, unit.log_offset, unit.store_size)
            if unit.slot_ms < check.read_ms:
                slots.setdefault(unit.slot_ms, Counter())[record.properties["REAL_TOPIC"]] += 1
    return [slots[slot] for slot in sorted(slots)]
