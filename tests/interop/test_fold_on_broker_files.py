"""Run the fold over stores of a real broker, and compare with the sent messages."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support import disk_reader as disk
from tests.support.amounts import sample
from tests.support.broker import fixtures as broker
from tests.support.record_kind import RecordKind
from tests.support.scan_rows import kind_of, scan_array
from timerstore._engine.log.fold import Fold, fold

Log = list[disk.Record]


@pytest.fixture(scope="module", params=sample(broker.names(), "broker stores"))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def log(name: str, tmp_path_factory: pytest.TempPathFactory) -> Log:
    root: Path = broker.unpack(name, tmp_path_factory.mktemp("broker"))
    return list(disk.records(root))


@pytest.fixture(scope="module")
def found(name: str, log: Log) -> Fold:
    return fold(scan_array(log, broker.precision_ms(name)))


def key_of(record: disk.Record) -> str:
    return record.properties["UNIQ_KEY"]


def counted(log: Log, kind: RecordKind) -> Counter[str]:
    return Counter(key_of(record) for record in log if kind_of(record) == kind)


def waiting_keys(log: Log, found: Fold) -> Counter[str]:
    return Counter(key_of(log[row]) for row in found.rows_pending)


def test_each_timer_is_delivered_or_pending_once(name: str, log: Log, found: Fold) -> None:
    out, waiting = counted(log, RecordKind.DELIVERED), waiting_keys(log, found)
    arrived_late = counted(log, RecordKind.ORDINARY)  # was due when it was stored
    for line in broker.sent(name):
        if line["kind"] != "timer" or line.get("recalled"):
            continue
        key = line["msg_id"]
        if arrived_late[key]:
            assert (out[key], waiting[key]) == (0, 0)
        else:
            assert waiting[key] == (0 if out[key] else 1), line


def test_recalled_timers_are_not_pending(name: str, log: Log, found: Fold) -> None:
    waiting = waiting_keys(log, found)
    recalled = [line for line in broker.sent(name) if line.get("recalled")]
    assert recalled or name == "levels"
    for line in recalled:
        assert waiting[line["msg_id"]] == 0, line


def test_pending_messages_were_all_sent(name: str, log: Log, found: Fold) -> None:
    """The sender of a killed store may have died before it recorded the last answers."""
    known = {line["msg_id"] for line in broker.sent(name)}
    strangers = [key for key in waiting_keys(log, found) if key not in known]
    assert len(strangers) <= (8 if name.startswith(("killed", "doubled")) else 0)


def test_level_messages_are_pending_or_delivered(name: str, log: Log, found: Fold) -> None:
    waiting = Counter(key_of(log[row]) for row in found.level_rows_pending)
    out = counted(log, RecordKind.LEVEL_DELIVERED)
    for line in broker.sent(name):
        if line["kind"] == "level":
            key = line["msg_id"]
            assert waiting[key] == (0 if out[key] else 1), line
    assert len(found.level_places_done) == len(out)


def test_doubled_deliveries_are_found(name: str, log: Log, found: Fold) -> None:
    doubled = [log[row] for row in found.duplicate_rows]
    levels = sum(kind_of(record) == RecordKind.LEVEL_DELIVERED for record in doubled)
    wanted = (81, 29) if name == "doubled-by-broker" else (0, 0)
    assert (len(found.duplicate_rows), levels) == wanted
    surplus = counted(log, RecordKind.DELIVERED) + counted(log, RecordKind.LEVEL_DELIVERED)
    surplus.subtract(set(surplus))
    assert Counter(key_of(record) for record in doubled) == +surplus


def test_every_delivery_has_its_source(found: Fold) -> None:
    assert len(found.orphan_rows) == 0
    assert len(found.unusable_rows) == 0
    assert found.store_id is None


def test_every_source_has_one_state(log: Log, found: Fold) -> None:
    """Among rolled copies, only the last has a state.

    Every other record of the timer queue has one.
    """
    ids = [*found.ids_pending, *found.ids_delivered, *found.ids_cancelled]
    assert len(ids) == len(set(ids))
    timers = [record for record in log if kind_of(record) == RecordKind.TIMER]
    sources = [record for record in timers if "TIMER_ROLL_TIMES" not in record.properties]
    assert len(ids) == len(sources)
    assert found.next_id > max(ids)
    last = {key_of(record): record.queue_offset for record in timers}
    assert set(ids) == set(last.values())


def test_pending_rows_are_the_last_copies(log: Log, found: Fold) -> None:
    for timer_id, row, offset in zip(
        found.ids_pending, found.rows_pending, found.offsets_pending, strict=True
    ):
        record = log[row]
        assert (record.queue_offset, record.log_offset) == (timer_id, offset)
        assert kind_of(record) == RecordKind.TIMER
