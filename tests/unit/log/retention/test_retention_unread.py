"""Messages that consumer groups have not read, and retention."""

import logging
from pathlib import Path
from threading import Thread

import pytest

from tests.support.retaining import DAY_MS, KIB, RetentionBench, config


def test_messages_that_a_group_has_not_read_are_kept(bench: RetentionBench) -> None:
    bench.store.put("t", b"first")
    bench.stepper.settle()
    with bench.store.consumer("t", "g") as reader:
        assert [m.body for m in reader.poll()] == [b"first"]
        reader.commit()
    bench.fill(40)
    bench.age(10 * DAY_MS)
    assert bench.log_files[0] == 0
    with bench.store.consumer("t", "g") as reader:
        while reader.poll(1000):
            reader.commit()
        assert reader.removed_count == 0
    bench.age()
    assert len(bench.log_files) == 1


@pytest.mark.parametrize("is_read", [True, False])
def test_file_is_removed_when_a_group_has_read_all_of_it(
    bench: RetentionBench, is_read: bool
) -> None:
    """The group has read up to the first record of the next file, or up to the one before."""
    bench.fill()
    in_first = sum(
        one.log_offset < 16 * KIB for one in bench.store.pull("t", 0, 0, max_count=100).messages
    )
    with bench.store.consumer("t", "g") as reader:
        reader.poll(in_first - (not is_read))
        reader.commit()
    bench.age()
    assert bench.log_files[0] == (16 * KIB if is_read else 0)


def test_group_without_a_commit_keeps_messages_until_it_leaves(bench: RetentionBench) -> None:
    reader = bench.store.consumer("t", "g")
    bench.fill(40)
    bench.age(10 * DAY_MS)
    assert bench.log_files[0] == 0
    reader.close()
    bench.age()
    assert len(bench.log_files) == 1


def test_unread_messages_are_removed_counted_and_logged_at_the_size_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = RetentionBench(tmp_path, config(retention_log_bytes=40 * KIB))
    bench.fill(1)
    with bench.store.consumer("t", "g") as reader:
        assert len(reader.poll()) == 1
        reader.commit()
        with caplog.at_level(logging.WARNING, "timerstore.read"):
            bench.fill(60)
        low = bench.store.pull("t", 0, 2**62).min_offset
        assert low > 20
        assert bench.stat("retention_unconsumed_messages") == low - 1
        assert "group=g" in caplog.text
        found = reader.poll(1)
        assert [m.queue_offset for m in found] == [low]
        assert reader.removed_count == low - 1
        assert reader.commit() == {0: low + 1}
    with bench.store.consumer("t", "new") as newcomer:
        assert [m.queue_offset for m in newcomer.poll(1)] == [low]
        assert newcomer.removed_count == 0  # the group is new
    bench.store.close()


def test_logging_handler_may_call_the_notified_consumer(tmp_path: Path) -> None:
    bench = RetentionBench(tmp_path, config(retention_log_bytes=40 * KIB))
    bench.fill(1)
    reader = bench.store.consumer("t", "g")
    assert len(reader.poll()) == 1
    queues: list[tuple[int, ...]] = []

    class Asking(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            queues.append(reader.queues)

    bench.fill(60)
    handler, logger = Asking(), logging.getLogger("timerstore.read")
    logger.addHandler(handler)
    try:
        reading = Thread(target=reader.poll, daemon=True)
        reading.start()
        reading.join(30)
    finally:
        logger.removeHandler(handler)
    assert not reading.is_alive(), "deadlock: the thread waits for a lock that it holds"
    assert queues == [(0,)]
    bench.store.close()


@pytest.mark.parametrize(
    ("pending", "message"), [(0, "removed_unread="), (60, "retention='the log is too large")]
)
def test_logging_handler_may_verify_the_store(tmp_path: Path, pending: int, message: str) -> None:
    bench = RetentionBench(tmp_path, config(retention_log_bytes=40 * KIB))
    bench.fill(1)
    reader = bench.store.consumer("t", "g")
    found: list[str] = []

    class Verifying(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert bench.store.verify().clean
            found.append(record.getMessage())

    for _ in range(pending):
        bench.store.put("t", bytes(1200), delay=DAY_MS / 1000)
    handler, logger = Verifying(), logging.getLogger("timerstore")
    logger.addHandler(handler)
    try:
        filling = Thread(target=bench.fill, args=(60,), daemon=True)
        filling.start()
        filling.join(60)
    finally:
        logger.removeHandler(handler)
    assert not filling.is_alive(), "deadlock: the thread waits for a lock that it holds"
    assert any(one.startswith(message) for one in found)
    reader.close()
    bench.store.close()
