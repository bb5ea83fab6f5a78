"""Read tables from stores of a real broker, including its 81 doubled deliveries.

The stores are in tests/fixtures/broker. The expected values come from disk_reader and from the
records of the sender.
"""

import shutil
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import timerstore
from tests.support import tables_expected
from tests.support.amounts import sample
from tests.support.arrow_rows import read_rows
from tests.support.broker import fixtures as broker
from tests.support.broker.expected import Expected
from tests.support.pending_table import check_timers
from timerstore._engine.snapshot.position import take
from timerstore.testing import ManualClock


@pytest.fixture(scope="module", params=sample(broker.names(), "broker stores"))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def root(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return broker.unpack(name, tmp_path_factory.mktemp("broker"))


def test_precision_is_detected(name: str, root: Path) -> None:
    assert take(root).precision_ms == broker.precision_ms(name)


def test_messages_deliveries_and_slots_match_the_files(name: str, root: Path) -> None:
    precision_ms = broker.precision_ms(name)
    assert read_rows(root) == tables_expected.messages(root, precision_ms)
    assert read_rows(root, "deliveries") == tables_expected.deliveries(root, precision_ms)
    assert read_rows(root, "slots") == tables_expected.slots(root, precision_ms)


def test_messages_match_the_brokers_listing(name: str, root: Path) -> None:
    listed, _, _ = broker.opened(name)
    got = {row["log_offset"]: row for row in read_rows(root)}
    assert {line["log_offset"] for line in listed} <= got.keys()
    for line in listed:
        row = got[line["log_offset"]]
        assert (row["topic"], row["queue_id"], row["queue_offset"], row["body_crc"]) == (
            line["topic"],
            line["queue_id"],
            line["queue_offset"],
            line["body_crc"],
        )
        assert row["properties"] == line["properties"]


def test_cancelled_timers_match_the_recalls(name: str, root: Path) -> None:
    got = read_rows(root, "timer_units")
    by_offset = {row["log_offset"]: row for row in read_rows(root)}
    cancelled = {row["log_offset"] for row in got if row["cancelled"]}
    assert got == tables_expected.timer_units(root, broker.precision_ms(name), cancelled)
    keys = {by_offset[at]["msg_id"].decode() for at in cancelled}
    recalled = {line["msg_id"] for line in broker.sent(name) if line.get("recalled")}
    # A killed store died before its sender recorded the last answers.
    missing = keys ^ recalled
    assert len(missing) <= (8 if name.startswith(("killed", "doubled")) else 0), missing


def test_doubled_deliveries_can_be_counted(name: str, root: Path) -> None:
    """Count as an audit does: all deliveries of a message after the first are surplus."""
    rows = read_rows(root, "deliveries")
    copies = Counter((row["topic"], row["msg_id"]) for row in rows)
    doubled = sum(count - 1 for count in copies.values())
    by_level = Counter((row["topic"], row["msg_id"]) for row in rows if row["level"] is not None)
    levels = sum(count - 1 for count in by_level.values())
    wanted = (81, 29) if name == "doubled-by-broker" else (0, 0)
    assert (doubled, levels) == wanted


def test_no_delivery_was_early(name: str, root: Path) -> None:
    rows = read_rows(root, "deliveries")
    assert rows
    assert all(row["lateness_ms"] is None or row["lateness_ms"] >= 0 for row in rows)
    assert all((row["deliver_at"] is None) == (row["level"] is not None) for row in rows)


@pytest.mark.parametrize("has_queues", [True, False])
def test_timers_are_the_pending_messages(
    name: str, root: Path, tmp_path: Path, has_queues: bool
) -> None:
    copy = tmp_path / "s"
    shutil.copytree(root, copy)
    if not has_queues:
        shutil.rmtree(copy / "consumequeue")
    expected = Expected.of(name)
    with timerstore.open(copy, clock=ManualClock(expected.now_ms), read_only=True) as store:
        rows = check_timers(store, copy)
    wanted = sorted((expected.due_ms(line), *key) for key, line in expected.left.items())
    assert wanted == sorted(
        (row["deliver_at"], row["topic"], row["msg_id"].decode()) for row in rows
    )
