"""Open the stores of a broker: all messages read back equal, and every timer fires once, never
early.
"""

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.interop.broker_session import (
    Session,
    assert_as_sent,
    assert_complete,
    config_of,
    key_of,
    keys,
    messages_of,
    out_counts,
)
from tests.support import disk_reader as disk
from tests.support.amounts import sample
from tests.support.broker import fixtures as broker
from tests.support.broker.expected import Expected, Key
from tests.support.inside import failpoints
from timerstore import CancelResult, StoreConfig, TimerStore

_listings: dict[str, Expected] = {}


# Each kill needs a copy of the store, so only a long run kills in all of them.
KILLED_IN = ("killed-small-segments", "rolled")
STORES = [*KILLED_IN, *(name for name in broker.names() if name not in KILLED_IN)]


def _mark_of(name: str) -> list[pytest.MarkDecorator]:
    if name == KILLED_IN[0]:
        return []
    return [pytest.mark.more if name in KILLED_IN else pytest.mark.deep]


KILLS = [pytest.param(name, marks=_mark_of(name)) for name in STORES]
in_some_stores = pytest.mark.parametrize("expected", KILLS, indirect=True)


@pytest.fixture(params=sample(STORES, "broker stores"))
def expected(request: pytest.FixtureRequest) -> Expected:
    name = str(request.param)
    if name not in _listings:
        _listings[name] = Expected.of(name)
    return _listings[name]


@pytest.fixture
def root(expected: Expected, tmp_path: Path) -> Path:
    return broker.unpack(expected.name, tmp_path)


# --- contents ---


@pytest.mark.parametrize("given", ["configured", "adopted"])
def test_every_message_reads_back_equal(expected: Expected, root: Path, given: str) -> None:
    if given == "adopted" and expected.precision_ms != 1000:
        pytest.skip("no file of a broker says how wide its slots are")
    config = config_of(expected) if given == "configured" else StoreConfig(flush="async")
    with Session(root, expected, config=config) as session:
        store = session.store
        for name in ("commit_log_segment_bytes", "timer_log_segment_bytes", "queue_segment_bytes"):
            wanted = broker.about(expected.name)["store_config"]
            assert getattr(store.config, name) == wanted[name]
        topics = store.topics()
        assert {topic for topic, _ in expected.queues} <= topics.keys()
        for topic, count in topics.items():
            for queue_id in range(count):
                read_back(store, expected, topic, queue_id)
        assert store.verify().clean or expected.name == "doubled-by-broker"


def read_back(store: TimerStore, expected: Expected, topic: str, queue_id: int) -> None:
    found = {m.queue_offset: m for m in messages_of(store, topic, queue_id)}
    lines = expected.queues.get((topic, queue_id), [])
    assert len(found) == len(lines)
    for line in lines:
        assert broker.differences(line, found[line["queue_offset"]]) == []


def test_pending_messages_match_the_log(expected: Expected, root: Path) -> None:
    wanted = sorted(
        (expected.due_ms(line), line["log_offset"], *key) for key, line in expected.left.items()
    )
    with Session(root, expected) as session:
        for _ in range(2):  # from the queue of the timer topic, and later from the wheel
            found = list(session.store.pending())
            got = [(p.due_ms, p.log_offset, p.topic, p.message_id) for p in found]
            assert sorted(got) == wanted
            assert [p.due_ms for p in found] == sorted(p.due_ms for p in found)
            for one in found:
                line = expected.left[one.topic, one.message_id]
                properties = line["properties"]
                assert bool(one.handle) == (line["topic"] != disk.LEVEL_TOPIC)
                assert one.queue_id == int(properties["REAL_QID"])
            assert session.store.stats()["pending_messages"] == len(wanted)
            while session.stepper.step("enqueue_get") or session.stepper.step("enqueue_put"):
                pass


# --- deliveries ---


def test_each_timer_is_delivered_once_at_its_millisecond(expected: Expected, root: Path) -> None:
    with Session(root, expected) as session:
        session.arrived()
        assert keys(session.turn(expected.now_ms)) == Counter(expected.late)
        for due_ms, wanted in expected.by_due.items():
            if due_ms <= expected.now_ms:
                continue
            assert session.turn(due_ms - 1) == []
            found = session.turn(due_ms)
            assert keys(found) == Counter(wanted)
            for message in found:
                assert_as_sent(message, expected)
                assert message.store_ms == due_ms
        assert session.turn(expected.last_due_ms + 10 * 86_400_000) == []
        assert_complete(session.store, expected)
        for topic, queue_id in expected.queues:
            if topic == disk.LEVEL_TOPIC:  # the source records stay at their offsets
                read_back(session.store, expected, topic, queue_id)
        problems = session.store.verify().problems
        assert len(problems) == (81 if expected.name == "doubled-by-broker" else 0)
    assert_nothing_again(root, expected)


def assert_nothing_again(root: Path, expected: Expected, cancelled: set[Key] = frozenset()) -> None:
    """Check that a store without pending messages delivers none after another opening."""
    with Session(root, expected, now_ms=expected.last_due_ms + 1) as session:
        assert session.store.stats()["pending_messages"] == 0
        before = len(session.arrived())
        assert session.turn(expected.last_due_ms + 20 * 86_400_000) == []
        assert before == sum(out_counts(session.store).values())
        assert_complete(session.store, expected, cancelled)


def test_delivery_is_not_earlier_than_the_sender_asked(expected: Expected, root: Path) -> None:
    """Compare with the sender's list. A relative delay ends one slot after the slot of the put."""
    sent = {(line["topic"], line["msg_id"]): line for line in expected.sent}
    with Session(root, expected) as session:
        session.arrived()
        step_ms = max(1, (expected.last_due_ms - expected.now_ms) // 40)
        for now_ms in range(expected.now_ms, expected.last_due_ms + 2 * step_ms, step_ms):
            for message in session.turn(now_ms):
                assert_as_sent(message, expected)
                line = sent.get(key_of(message), {})
                if "by" in line and "TIMER_DELAY_MS" not in message.properties:
                    slack_ms = 0 if line["by"] == "deliver_ms" else expected.precision_ms
                    assert message.store_ms >= line["about_due_ms"] - slack_ms
        assert_complete(session.store, expected)


def test_store_can_be_reopened_between_deliveries(expected: Expected, root: Path) -> None:
    span_ms = expected.last_due_ms - expected.now_ms
    for part in range(1, 5):
        with Session(root, expected, now_ms=expected.now_ms + span_ms * (part - 1) // 4) as session:
            session.arrived()
            for message in session.turn(expected.now_ms + span_ms * part // 4):
                assert_as_sent(message, expected)
    assert_nothing_again(root, expected)


def test_store_recovers_without_side_files_between_deliveries(
    expected: Expected, root: Path
) -> None:
    """The log alone contains the deliveries of the broker and ours."""
    half_ms = (expected.now_ms + expected.last_due_ms) // 2
    with Session(root, expected) as session:
        session.turn(half_ms)
        waiting = sorted(p.message_id for p in session.store.pending())
    shutil.rmtree(root / "timerstore")
    with Session(root, expected, now_ms=half_ms) as session:
        assert sorted(p.message_id for p in session.store.pending()) == waiting
        session.turn(expected.last_due_ms)
        assert_complete(session.store, expected)
    shutil.rmtree(root / "timerstore")
    assert_nothing_again(root, expected)


# --- cancels ---


def handle_of(line: broker.Line, expected: Expected) -> str:
    """Return the broker's handle.

    Releases before 5.3.2 gave none, so it is built from the message.
    """
    given = line.get("recall_handle")
    if given:
        return str(given)
    source = expected.sources[line["topic"], line["msg_id"]]
    stamp = int(source["properties"]["TIMER_OUT_MS"]) + 1
    return disk.encode_recall_handle(line["topic"], "lab", stamp, line["msg_id"])


def test_cancel_accepts_the_brokers_handles(expected: Expected, root: Path) -> None:
    timers = [line for line in expected.sent if (line["topic"], line["msg_id"]) in expected.sources]
    cancelled: set[Key] = set()
    seen: Counter[CancelResult] = Counter()
    with Session(root, expected) as session:
        session.stepper.settle()
        for number, line in enumerate(timers):
            key = line["topic"], line["msg_id"]
            if expected.out[key] or key in expected.late:
                wanted = CancelResult.ALREADY_DELIVERED
            elif key in expected.recalled:
                wanted = CancelResult.ALREADY_CANCELLED
            elif number % 3:
                continue
            else:
                wanted = CancelResult.CANCELLED
                cancelled.add(key)
            seen[wanted] += 1
            if seen[wanted] > 40:  # each call searches the log
                cancelled -= {key} if wanted is CancelResult.CANCELLED else set()
                continue
            handle = handle_of(line, expected)
            assert session.store.cancel(handle) == wanted, line
            if wanted is CancelResult.CANCELLED:
                assert session.store.cancel(handle) == CancelResult.ALREADY_CANCELLED
        stranger = disk.encode_recall_handle("orders", "lab", expected.now_ms, "F" * 32)
        assert session.store.cancel(stranger) == CancelResult.UNKNOWN
        left = {(p.topic, p.message_id) for p in session.store.pending() if p.handle}
        assert left == expected.waiting.keys() - cancelled - expected.late
    with Session(root, expected) as session:
        session.turn(expected.last_due_ms)
        assert_complete(session.store, expected, cancelled)
        for line in timers[:10]:
            result = session.store.cancel(handle_of(line, expected))
            assert result in (CancelResult.ALREADY_DELIVERED, CancelResult.ALREADY_CANCELLED)
    shutil.rmtree(root / "timerstore")
    assert_nothing_again(root, expected, cancelled)


# --- kills ---


class Copier:
    """Copy a directory, as a kill would leave it, the first `times` times that a fail point is
    reached.
    """

    def __init__(self, root: Path, target: Path, times: int = 1) -> None:
        self.root, self.target, self.times = root, target, times
        self.reached: Counter[str] = Counter()
        self.copies: list[Path] = []

    def __call__(self, point: str) -> None:
        if self.reached[point] < self.times:
            copy = self.target / f"{point}-{self.reached[point]}"
            subprocess.run(
                ["cp", "-a", "--sparse=always", str(self.root), str(copy)],
                check=True,
            )
            self.copies.append(copy)
        self.reached[point] += 1


@pytest.mark.more
@in_some_stores
def test_import_completes_after_a_kill(
    expected: Expected, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copier = Copier(root, tmp_path)
    monkeypatch.setattr(failpoints, "hook", copier)
    with Session(root, expected):
        monkeypatch.setattr(failpoints, "hook", None)
        assert copier.reached.keys() >= {
            "recover_marked_open",
            "recover_rebuild_begun",
            "recover_rebuild_queues_restarted",
            "recover_dispatched",
            "checkpoint_watermark_written",
        }
    for copy in copier.copies:
        with Session(copy, expected) as session:
            for topic, queue_id in expected.queues:
                read_back(session.store, expected, topic, queue_id)
            session.turn(expected.last_due_ms)
            assert_complete(session.store, expected)
        shutil.rmtree(copy)


class Killed(Exception):  # noqa: N818 - names the event
    """Simulates a kill at a fail point."""


@in_some_stores
def test_import_starts_from_scratch_after_a_failure(
    expected: Expected, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for point in (
        "recover_rebuild_begun", "recover_rebuild_queues_restarted", "recover_dispatched",
    ):  # fmt: skip

        def fail(reached: str, point: str = point) -> None:
            if reached == point:
                raise Killed

        monkeypatch.setattr(failpoints, "hook", fail)
        with pytest.raises(Killed):
            Session(root, expected)
        monkeypatch.setattr(failpoints, "hook", None)
    with Session(root, expected) as session:
        session.turn(expected.last_due_ms)
        assert_complete(session.store, expected)
    assert_nothing_again(root, expected)


@pytest.mark.more
@in_some_stores
def test_deliveries_complete_after_a_kill(
    expected: Expected, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copy the store at every fail point of a step of the clock in the middle, and of closing."""
    with Session(root, expected) as session:
        session.turn((expected.now_ms + expected.last_due_ms) // 2)
        copier = Copier(root, tmp_path)
        monkeypatch.setattr(failpoints, "hook", copier)
        session.turn(expected.last_due_ms)
    monkeypatch.setattr(failpoints, "hook", None)
    for copy in copier.copies:
        with Session(copy, expected) as session:
            session.turn(expected.last_due_ms)
            assert_complete(session.store, expected)
        shutil.rmtree(copy)
