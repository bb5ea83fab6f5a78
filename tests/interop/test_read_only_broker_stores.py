"""Open the stores of a broker read-only: all its messages are there, and no byte changes."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import timerstore
from tests.support import disk_reader as disk
from tests.support.amounts import sample
from tests.support.broker import fixtures as broker
from tests.support.broker.expected import Expected
from timerstore import Message, ReadOnlyStore, StoreConfig
from timerstore.testing import ManualClock


@pytest.fixture(params=sample(broker.names(), "broker stores"))
def expected(request: pytest.FixtureRequest) -> Expected:
    return Expected.of(str(request.param))


@pytest.fixture
def root(expected: Expected, tmp_path: Path) -> Path:
    return broker.unpack(expected.name, tmp_path)


def config_of(expected: Expected) -> StoreConfig:
    return StoreConfig(**broker.about(expected.name)["store_config"])


def messages_of(store: ReadOnlyStore, topic: str, queue_id: int) -> Iterator[Message]:
    begin = 0
    while len(batch := store.pull_batch(topic, queue_id, begin)):
        yield from batch
        begin = batch.next_offset


def check(store: ReadOnlyStore, expected: Expected) -> None:
    topics = store.topics()
    assert {topic for topic, _ in expected.queues} <= topics.keys()
    for topic, count in topics.items():
        for queue_id in range(count):
            found = {m.queue_offset: m for m in messages_of(store, topic, queue_id)}
            lines = expected.queues.get((topic, queue_id), [])
            assert len(found) == len(lines)
            for line in lines:
                assert broker.differences(line, found[line["queue_offset"]]) == []
    wanted = sorted(
        (expected.due_ms(line), line["log_offset"], *key) for key, line in expected.left.items()
    )
    pending = list(store.pending())
    assert sorted((p.due_ms, p.log_offset, p.topic, p.message_id) for p in pending) == wanted
    for one in pending:
        assert bool(one.handle) == (
            expected.left[one.topic, one.message_id]["topic"] != disk.LEVEL_TOPIC
        )
    assert store.stats()["pending_messages"] == len(wanted)


@pytest.mark.parametrize("has_queues", [True, False])
def test_read_only_store_matches_the_brokers_listing(
    expected: Expected, root: Path, has_queues: bool
) -> None:
    if not has_queues:
        shutil.rmtree(root / "consumequeue")
    before = trace_small(root)
    clock = ManualClock(expected.now_ms)
    with timerstore.open(root, config_of(expected), clock=clock, read_only=True) as store:
        check(store, expected)
        assert trace_small(root) == before


def test_owner_and_reader_give_the_same_answers(expected: Expected, root: Path) -> None:
    clock, config = ManualClock(expected.now_ms), config_of(expected)
    with timerstore.open(root, config, clock=clock, read_only=True) as beside:
        found = [
            list(beside.pending()),
            {topic: n for topic, n in beside.topics().items() if topic in ("orders", "reminders")},
            beside.timing_distribution(),
        ]
        ids = [one.message_id for one in found[0][:5]]
        queried = [[m.body for m in beside.query("orders", one)] for one in ids]
        states = [beside.explain(one).state for one in found[0][:5]]
        with timerstore.open(root, config, clock=clock, threads=False) as owner:
            assert found == [
                list(owner.pending()),
                {t: n for t, n in owner.topics().items() if t in ("orders", "reminders")},
                owner.timing_distribution(),
            ]
            assert queried == [[m.body for m in owner.query("orders", one)] for one in ids]
            assert states == [owner.explain(one).state for one in found[0][:5]]
            owner.put("orders", b"from here on it is ours", keys=("ours",))
            owner.flush()
            assert len(beside.query("orders", "ours")) == 1
            assert list(beside.pending()) == list(owner.pending())


def trace_small(root: Path) -> dict[str, tuple[object, ...]]:
    """Return the contents of a folder: the bytes of files up to 64 MiB.

    Larger ones are mostly holes.
    """
    found: dict[str, tuple[object, ...]] = {}
    for path in [root, *root.rglob("*")]:
        status = path.lstat()
        data = path.read_bytes() if path.is_file() and status.st_size <= 64 << 20 else b""
        found[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns, hash(data))
    return found
