"""The ends of a wait: its time, a closed or failed store, short polls, and lost files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bench import Bench, small
from tests.support.inside import inside, queue_segments
from tests.support.waiting_calls import WaitingPullCaller, long_poll_count, woken_count
from timerstore import FailedError, MessageError, PullResult, PullStatus

# --- ends of waiting ------------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "status"), [
    (0, PullStatus.NO_MESSAGE_IN_QUEUE), (1, PullStatus.OFFSET_OVERFLOW_ONE)])  # fmt: skip
def test_wait_ends_when_a_manual_clock_advances(
    queues: Bench, offset: int, status: PullStatus
) -> None:
    for _ in range(offset):
        queues.store.put("t", b"x", queue_id=0)
    queues.turn()
    short, long = (
        WaitingPullCaller(queues, offset, wait=1.0),
        WaitingPullCaller(queues, offset, wait=1.001),
    )
    assert short.enter()
    assert long.enter()
    queues.clock.advance(999)
    assert (short.wake_count, long.wake_count) == (0, 0)
    queues.clock.advance(1)
    assert (short.wake_count, long.wake_count) == (1, 0)
    result = short.resume()
    assert result == PullResult(status, (), offset, 0, offset)
    queues.clock.advance(1)
    assert long.resume() == result
    assert long_poll_count(queues) == 0


def test_pull_does_not_wait_when_its_time_is_over(queues: Bench) -> None:
    waiting = WaitingPullCaller(queues, wait=0.0)
    assert not waiting.enter()
    assert waiting.resume() is not None


def test_pull_returns_a_message_that_arrives_at_the_end_of_its_time(queues: Bench) -> None:
    waiting = WaitingPullCaller(queues, wait=1.0)
    waiting.enter()
    waiting.pull.leave()  # as a thread whose sleep has ended
    waiting.is_waiting = False
    queues.store.put("t", b"x", queue_id=0)
    queues.turn()
    waiting.resume()
    assert waiting.bodies == [b"x"]


def test_timed_out_pull_returns_an_offset_after_messages_that_did_not_match(queues: Bench) -> None:
    by_tag, by_sql = WaitingPullCaller(queues, tags="a"), WaitingPullCaller(queues, sql="size > 5")
    assert by_tag.enter()
    assert by_sql.enter()
    for size in ("1", "5"):
        queues.store.put("t", b"x", tags="b", properties={"size": size}, queue_id=0)
    queues.turn(59_999)
    assert (by_tag.wake_count, by_sql.wake_count) == (0, 0)
    queues.turn(1)
    for one in (by_tag, by_sql):
        assert one.resume() == PullResult(PullStatus.NO_MATCHED_MESSAGE, (), 2, 0, 2)


def test_waiting_pull_returns_only_matching_messages(queues: Bench) -> None:
    by_tag, by_sql = WaitingPullCaller(queues, tags="a"), WaitingPullCaller(queues, sql="size > 5")
    for one in (by_tag, by_sql):
        one.enter()
    for size, tag in ((5, "b"), (6, "b"), (5, "a")):
        properties = {"size": str(size)}
        queues.store.put("t", b"%d" % size, tags=tag, properties=properties, queue_id=0)
        queues.turn()
    assert (by_tag.wake_count, by_sql.wake_count) == (1, 1)
    for one, body in ((by_tag, b"5"), (by_sql, b"6")):
        one.resume()
        assert one.bodies == [body]


def test_pull_without_a_match_returns_the_next_offset_at_once(queues: Bench) -> None:
    queues.store.put("t", b"x", tags="b", queue_id=0)
    queues.turn()
    result = queues.store.pull("t", 0, 0, wait=1e6, tags="a")
    assert result == PullResult(PullStatus.NO_MATCHED_MESSAGE, (), 1, 0, 1)


def test_pull_returns_overflow_badly_when_its_empty_queue_gets_a_message(queues: Bench) -> None:
    waiting = WaitingPullCaller(queues, 5)
    assert waiting.enter()
    queues.store.put("t", b"x", queue_id=0)
    queues.turn()
    assert waiting.resume() == PullResult(PullStatus.OFFSET_OVERFLOW_BADLY, (), 1, 0, 1)


def test_close_answers_every_waiting_pull(queues: Bench) -> None:
    queues.store.put("t", b"x", queue_id=1)
    queues.turn()
    empty, behind = WaitingPullCaller(queues), WaitingPullCaller(queues, 1, 1)
    assert empty.enter()
    assert behind.enter()
    queues.close()
    assert (empty.wake_count, behind.wake_count) == (1, 1)
    for one in (empty, behind):
        one.pull.leave()
        assert one.pull.is_closed
        assert not one.pull.enter(lambda: None)
    assert empty.pull.when_closed() == PullResult(PullStatus.NO_MESSAGE_IN_QUEUE, (), 0, 0, 0)
    assert behind.pull.when_closed() == PullResult(PullStatus.OFFSET_OVERFLOW_ONE, (), 1, 0, 1)


def test_failed_store_wakes_every_waiting_pull(queues: Bench) -> None:
    before, after = WaitingPullCaller(queues), WaitingPullCaller(queues)
    before.enter()
    inside(queues.store).log.fail(FailedError("by a test"))
    assert before.wake_count == 1
    for one in (before, after):
        with pytest.raises(FailedError):
            one.resume()
    assert long_poll_count(queues) == 0


# --- short polls ----------------------------------------------------------------------------------


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, small(long_poll_enabled=False, short_poll_ms=250))
    bench.store.put("t", b"makes the topic", queue_id=1)
    bench.turn()
    yield bench
    bench.close()


@pytest.mark.parametrize(("wait", "ends_ms"), [(60.0, 250), (0.25, 250), (0.1, 100)])
def test_short_poll_reads_again_only_at_its_time(short: Bench, wait: float, ends_ms: int) -> None:
    waiting = WaitingPullCaller(short, wait=wait)
    assert waiting.enter()
    short.store.put("t", b"x", queue_id=0)
    short.turn(ends_ms - 1)
    assert waiting.wake_count == 0
    short.turn(1)
    assert waiting.wake_count == 1
    waiting.resume()
    assert waiting.bodies == [b"x"]
    assert woken_count(short) == 0


def test_short_poll_without_a_message_ends_at_its_time(short: Bench) -> None:
    waiting = WaitingPullCaller(short)
    waiting.enter()
    short.turn(250)
    assert waiting.resume() == PullResult(PullStatus.NO_MESSAGE_IN_QUEUE, (), 0, 0, 0)


# --- lost files -----------------------------------------------------------------------------------


def test_pull_skips_a_missing_queue_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.store.put_many("t", [b"%d" % k for k in range(250)], queue_id=0)
    bench.turn()
    segments = queue_segments(inside(bench.store).routes.get("t", 0).queue)
    segments.numbers.remove(1)  # offsets 100 to 199
    for offset, status, following in (
        (99, PullStatus.FOUND, 100),
        (100, PullStatus.OFFSET_FOUND_NULL, 200),
        (199, PullStatus.OFFSET_FOUND_NULL, 200),
        (200, PullStatus.FOUND, 201),
    ):
        result = bench.store.pull("t", 0, offset, max_count=1, wait=60.0)
        assert (result.status, result.next_offset) == (status, following)
    segments.numbers.insert(1, 1)
    bench.close()


def test_pull_skips_removed_log_segments(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(commit_log_segment_bytes=16 * 1024, staging_bytes=4096))
    bench.store.put_many("t", [b"%d" % k * 300 for k in range(100)])
    bench.turn()
    log = inside(bench.store).log.segments
    messages = bench.out()
    kept = next(m.queue_offset for m in messages if m.log_offset >= 2 * log.segment_bytes)
    removed, log.numbers = log.numbers[:2], log.numbers[2:]
    for offset in (0, 1, kept - 1):
        result = bench.store.pull("t", 0, offset, wait=60.0)
        assert (result.status, result.next_offset) == (PullStatus.MESSAGE_WAS_REMOVING, kept)
    assert bench.store.pull("t", 0, kept).messages[0] == messages[kept]
    log.numbers = removed + log.numbers
    bench.close()


def test_begin_pull_rejects_a_queue_that_does_not_exist(bench: Bench) -> None:
    for begin in (bench.store.begin_pull, bench.store.begin_pull_batch):
        with pytest.raises(MessageError, match="has 0 queues"):
            begin("t", 0, 0, wait=1.0)
