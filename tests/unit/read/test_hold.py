"""The hold table: who is woken by what, and that nobody sleeps past a message."""

import itertools
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench, small
from tests.support.inside import (
    flush_is_requested,
    forget_flush_request,
    inside,
    property_reader,
    queue_segments,
    route_and_filter,
)
from timerstore import FailedError, MessageError, PullResult, PullStatus
from timerstore._engine.read.long_poll import LongPoll
from timerstore._engine.read.waiting_pull import WaitingPull
from timerstore.errors import CorruptError


class Waiting:
    """A pull that waits without a thread: `step` goes on from wherever it is."""

    def __init__(
        self,
        bench: Bench,
        offset: int = 0,
        queue_id: int = 0,
        wait: float = 60.0,
        **wanted: str,
    ) -> None:
        self.rung = 0
        self.result: PullResult | None = None
        self.pull: WaitingPull[PullResult] = bench.store.begin_pull(
            "t", queue_id, offset, wait=wait, **wanted
        )
        self.is_held = False

    def _ring(self) -> None:
        self.rung += 1

    def look(self) -> None:
        got = self.pull.look()
        if self.pull.is_done(got):
            self.result = self.pull.final(got)

    def enter(self) -> bool:
        self.is_held = self.result is None and self.pull.enter(self._ring)
        return self.is_held

    def go_on(self) -> PullResult | None:
        """What its caller does when it was rung, or its time is over; its answer, if there is."""
        if self.is_held:
            self.pull.leave()
            self.is_held = False
        if self.result is None:
            self.look()
            self.enter()
        return self.result

    @property
    def bodies(self) -> list[bytes]:
        assert self.result is not None
        return [message.body for message in self.result.messages]


@pytest.fixture
def queues(bench: Bench) -> Bench:
    """Queues 0 to 3 of topic t, empty."""
    bench.store.put("t", b"makes the topic", queue_id=3)
    bench.turn()
    return bench


def holds(bench: Bench) -> int:
    return inside(bench.store).long_polls.count


def woken(bench: Bench) -> int:
    return int(bench.store.stats()["pull_woken"])


def hold_at(
    bench: Bench, offset: int, tags: str | None, rung: list[str], queue_id: int = 0
) -> LongPoll:
    """A hold behind a filter, straight in the table."""
    store = bench.store
    route, wanted = route_and_filter(store, "t", queue_id, tags)
    hold = inside(store).long_polls.enter(
        route, offset, 2**62, wanted, lambda: rung.append(tags or "all")
    )
    assert hold is not None
    return hold


# --- the same instant -----------------------------------------------------------------------------

STORE_STEPS = ("put", "dispatch", "flush")
PULL_STEPS = ("look", "enter")
ORDERS = [
    order
    for order in set(itertools.permutations((*STORE_STEPS, *PULL_STEPS)))
    if order.index("put") < min(order.index("dispatch"), order.index("flush"))
    and order.index("look") < order.index("enter")
]


@pytest.mark.parametrize("visibility", ["durable", "written"])
@pytest.mark.parametrize("offset", [0, 1])
def test_a_pull_never_sleeps_past_a_message_of_the_same_instant(
    tmp_path: Path, visibility: str, offset: int
) -> None:
    bench = Bench(tmp_path, small(visibility=visibility))
    bench.store.put("t", b"makes the queues", queue_id=len(ORDERS))
    for queue_id in range(len(ORDERS) * offset):
        bench.store.put("t", b"before", queue_id=queue_id)
    bench.turn()
    for queue_id, order in enumerate(sorted(ORDERS)):
        waiting = Waiting(bench, offset, queue_id)
        steps: dict[str, Callable[[], object]] = {
            "put": partial(bench.store.put, "t", b"now", queue_id=queue_id),
            "dispatch": partial(bench.stepper.step, "dispatch"),
            "flush": partial(bench.stepper.step, "flush"),
            "look": waiting.look,
            "enter": waiting.enter,
        }
        for name in order:
            steps[name]()
        if waiting.is_held:
            assert waiting.rung == 1, f"{order}: it sleeps, and its message is there"
        waiting.go_on()
        assert waiting.bodies == [b"now"], order
        assert holds(bench) == 0
        bench.turn()
    bench.close()


@pytest.mark.parametrize(("first", "last"), [("flush", "dispatch"), ("dispatch", "flush")])
def test_a_message_between_the_look_and_the_sleep_is_seen(
    queues: Bench, first: str, last: str
) -> None:
    """The narrowest place: the queue was looked at in vain, and its hold does not sleep yet."""
    waiting = Waiting(queues)
    queue = inside(queues.store).routes.get("t", 0).queue
    parts = inside(queues.store)
    queues.store.put("t", b"now", queue_id=0)
    queues.stepper.step(first)
    arriving = threading.Thread(target=queues.stepper.step, args=(last,))

    def visible(log_end: int) -> int:
        seen = type(queue).visible(queue, log_end)
        if arriving.ident is None:
            before = (parts.dispatch.dispatched, parts.log.durable)
            arriving.start()
            while before == (parts.dispatch.dispatched, parts.log.durable):
                assert arriving.is_alive()
            # It has moved what may be seen; it tells the table next, or does already.
        return seen

    queue.visible = visible  # type: ignore[method-assign]
    assert waiting.enter(), "what it saw was too old"
    arriving.join(10)
    assert not arriving.is_alive()
    assert waiting.rung == 1
    waiting.go_on()
    assert waiting.bodies == [b"now"]


# --- who is woken ---------------------------------------------------------------------------------


def test_a_message_wakes_the_holds_of_its_queue_alone(queues: Bench) -> None:
    waiting = [[Waiting(queues, 0, queue_id) for _ in range(5)] for queue_id in range(3)]
    assert all(one.enter() for row in waiting for one in row)
    assert holds(queues) == 15
    queues.store.put("t", b"x", queue_id=1)
    queues.turn()
    assert [[one.rung for one in row] for row in waiting] == [[0] * 5, [1] * 5, [0] * 5]
    assert (holds(queues), woken(queues)) == (10, 5)
    for one in waiting[1]:
        assert one.go_on() is not None
        assert one.bodies == [b"x"]


def test_ctrl_c_amid_the_ringing_leaves_nobody_asleep(queues: Bench) -> None:
    """It comes to whoever syncs, or closes, between two who are to be rung."""
    rung: list[str] = []

    def ring() -> None:
        rung.append("first")
        if len(rung) == 1:
            raise KeyboardInterrupt

    first, last = Waiting(queues), Waiting(queues)
    assert first.pull.enter(ring)
    assert last.enter()
    with pytest.raises(KeyboardInterrupt):
        inside(queues.store).long_polls.wake_all()
    assert last.rung


def test_thousands_wait_and_each_message_wakes_one(bench: Bench) -> None:
    count = 1000
    bench.store.put("t", b"makes the topic", queue_id=count)
    bench.turn()
    waiting = [Waiting(bench, 0, queue_id) for queue_id in range(count)]
    assert all(one.enter() for one in waiting)
    for expected, queue_id in enumerate((7, 0, 999, 500), 1):
        bench.store.put("t", b"x", queue_id=queue_id)
        bench.turn()
        assert woken(bench) == expected
        assert sum(one.rung for one in waiting) == expected
        assert waiting[queue_id].rung == 1


def test_what_is_not_durable_wakes_nobody_and_its_sync_is_asked_for(queues: Bench) -> None:
    waiting = Waiting(queues)
    waiting.enter()
    queues.store.put("t", b"x", queue_id=0)
    flush = inside(queues.store).pipeline.flush
    forget_flush_request(flush)
    queues.stepper.step("dispatch")
    assert waiting.rung == 0
    assert flush_is_requested(flush), "a pull waits for this"
    queues.stepper.step("flush")
    assert waiting.rung == 1


def test_who_begins_to_wait_asks_for_the_sync_of_what_is_there(queues: Bench) -> None:
    flush = inside(queues.store).pipeline.flush
    forget_flush_request(flush)
    Waiting(queues).enter()
    assert not flush_is_requested(flush), "nothing is behind"
    queues.store.put("t", b"x", queue_id=0)
    forget_flush_request(flush)
    Waiting(queues).enter()
    assert flush_is_requested(flush)


def test_a_sync_of_other_queues_does_not_look_at_this_one(queues: Bench) -> None:
    waiting = Waiting(queues)
    waiting.enter()
    queue = inside(queues.store).routes.get("t", 0).queue
    queue.visible = lambda _end: pytest.fail("looked")  # type: ignore[method-assign]
    queues.store.put("t", b"x", queue_id=1)
    queues.turn()
    queues.store.flush()
    assert waiting.rung == 0
    del queue.visible
    waiting.pull.leave()


def test_delivery_wakes_as_a_put_does(queues: Bench) -> None:
    queues.store.put("t", b"later", delay=5, queue_id=0)
    queues.turn()
    waiting = Waiting(queues)
    waiting.enter()
    queues.turn(4999)
    assert waiting.rung == 0
    queues.turn(1)
    assert waiting.rung == 1
    waiting.go_on()
    assert waiting.bodies == [b"later"]


# --- filters --------------------------------------------------------------------------------------


def test_only_those_are_woken_whose_filter_matches(queues: Bench) -> None:
    rung: list[str] = []
    held = [hold_at(queues, 0, tags, rung) for tags in ("a", "b", "a || b", "c", None)]
    queues.store.put("t", b"1", tags="b", queue_id=0)
    queues.turn()
    assert sorted(rung) == ["a || b", "all", "b"]
    assert [hold.no_match_below for hold in held] == [1, 0, 0, 1, 0]
    queues.store.put("t", b"2", tags="d", queue_id=0)
    queues.store.put("t", b"3", queue_id=0)
    queues.turn()
    assert len(rung) == 3
    queues.store.put("t", b"4", tags="a", queue_id=0)
    queues.turn()
    assert sorted(rung) == ["a", "a || b", "all", "b"]
    assert [hold.no_match_below for hold in held] == [3, 0, 0, 4, 0]
    assert woken(queues) == 4


def test_one_hash_of_two_tags_wakes_nobody_for_the_other(queues: Bench) -> None:
    rung: list[str] = []
    hold = hold_at(queues, 0, "Aa", rung)
    queues.store.put("t", b"1", tags="BB", queue_id=0)  # the same hash
    queues.turn()
    assert (rung, hold.no_match_below) == ([], 1)
    queues.store.put("t", b"2", tags="Aa", queue_id=0)
    queues.turn()
    assert (rung, hold.no_match_below) == (["Aa"], 1)


def test_who_leaves_while_a_message_is_read_for_him_does_not_pass_it_over(
    queues: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung: list[str] = []
    table = inside(queues.store).long_polls
    hold = hold_at(queues, 0, "a", rung)
    reader = property_reader(table)
    read = reader.value

    def leave_meanwhile(*given: Any) -> Any:
        assert not table.leave(hold), "nobody answered it"
        return read(*given)

    monkeypatch.setattr(*reader, leave_meanwhile)
    queues.store.put("t", b"1", tags="a", queue_id=0)
    queues.turn()
    assert (rung, hold.no_match_below) == ([], 0)


def test_messages_are_read_once_for_all_who_wait_for_them(
    queues: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung: list[str] = []
    table = inside(queues.store).long_polls
    reader = property_reader(table)
    read, reads = reader.value, []

    def counted(*given: Any) -> Any:
        reads.append(given)
        return read(*given)

    monkeypatch.setattr(*reader, counted)
    for _ in range(50):
        hold_at(queues, 0, "a", rung)
    queues.store.put("t", b"1", tags="a", queue_id=0)
    queues.turn()
    assert (len(rung), len(reads)) == (50, 1)


@pytest.mark.parametrize("count", [1023, 1024, 1025])
def test_more_than_can_be_read_in_passing_the_pull_reads_itself(tmp_path: Path, count: int) -> None:
    bench = Bench(tmp_path, small(queue_segment_bytes=200_000))
    bench.store.put("t", b"makes the topic", queue_id=1)
    bench.turn()
    rung: list[str] = []
    hold = hold_at(bench, 0, "Aa", rung)
    bench.store.put_many("t", [b"x"] * count, tags="BB", queue_id=0)
    bench.turn()
    assert (len(rung), hold.no_match_below) == ((1, 0) if count > 1024 else (0, count))
    bench.close()


def test_what_does_not_read_is_the_pulls_to_find(queues: Bench) -> None:
    waiting, other = Waiting(queues), Waiting(queues, 0, 1)
    assert waiting.enter()
    assert other.enter()
    queue = inside(queues.store).routes.get("t", 0).queue

    def broken(_end: int) -> int:
        raise CorruptError("broken")

    queue.visible = broken  # type: ignore[method-assign]
    queues.store.put("t", b"x", queue_id=0)
    queues.turn()
    assert (waiting.rung, other.rung) == (1, 0)
    with pytest.raises(CorruptError):
        waiting.go_on()
    del queue.visible
    other.pull.leave()


# --- ends of waiting ------------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "status"), [
    (0, PullStatus.NO_MESSAGE_IN_QUEUE), (1, PullStatus.OFFSET_OVERFLOW_ONE)])  # fmt: skip
def test_time_is_over_on_a_clock_turned_by_hand(
    queues: Bench, offset: int, status: PullStatus
) -> None:
    for _ in range(offset):
        queues.store.put("t", b"x", queue_id=0)
    queues.turn()
    short, long = Waiting(queues, offset, wait=1.0), Waiting(queues, offset, wait=1.001)
    assert short.enter()
    assert long.enter()
    queues.clock.advance(999)
    assert (short.rung, long.rung) == (0, 0)
    queues.clock.advance(1)
    assert (short.rung, long.rung) == (1, 0)
    result = short.go_on()
    assert result == PullResult(status, (), offset, 0, offset)
    queues.clock.advance(1)
    assert long.go_on() == result
    assert holds(queues) == 0


def test_a_pull_whose_time_is_over_does_not_begin_to_wait(queues: Bench) -> None:
    waiting = Waiting(queues, wait=0.0)
    assert not waiting.enter()
    assert waiting.go_on() is not None


def test_a_message_at_the_last_moment_is_given(queues: Bench) -> None:
    waiting = Waiting(queues, wait=1.0)
    waiting.enter()
    waiting.pull.leave()  # as a thread whose sleep has ended
    waiting.is_held = False
    queues.store.put("t", b"x", queue_id=0)
    queues.turn()
    waiting.go_on()
    assert waiting.bodies == [b"x"]


def test_what_came_and_did_not_match_is_behind_the_pull_that_gave_up(queues: Bench) -> None:
    by_tag, by_sql = Waiting(queues, tags="a"), Waiting(queues, sql="size > 5")
    assert by_tag.enter()
    assert by_sql.enter()
    for size in ("1", "5"):
        queues.store.put("t", b"x", tags="b", properties={"size": size}, queue_id=0)
    queues.turn(59_999)
    assert (by_tag.rung, by_sql.rung) == (0, 0)
    queues.turn(1)
    for one in (by_tag, by_sql):
        assert one.go_on() == PullResult(PullStatus.NO_MATCHED_MESSAGE, (), 2, 0, 2)


def test_a_pull_that_waited_gives_what_matches_alone(queues: Bench) -> None:
    by_tag, by_sql = Waiting(queues, tags="a"), Waiting(queues, sql="size > 5")
    for one in (by_tag, by_sql):
        one.enter()
    for size, tag in ((5, "b"), (6, "b"), (5, "a")):
        properties = {"size": str(size)}
        queues.store.put("t", b"%d" % size, tags=tag, properties=properties, queue_id=0)
        queues.turn()
    assert (by_tag.rung, by_sql.rung) == (1, 1)
    for one, body in ((by_tag, b"5"), (by_sql, b"6")):
        one.go_on()
        assert one.bodies == [body]


def test_no_match_is_answered_at_once_with_where_to_go_on(queues: Bench) -> None:
    queues.store.put("t", b"x", tags="b", queue_id=0)
    queues.turn()
    result = queues.store.pull("t", 0, 0, wait=1e6, tags="a")
    assert result == PullResult(PullStatus.NO_MATCHED_MESSAGE, (), 1, 0, 1)


def test_a_pull_beyond_the_first_message_of_an_empty_queue_is_told(queues: Bench) -> None:
    waiting = Waiting(queues, 5)
    assert waiting.enter()
    queues.store.put("t", b"x", queue_id=0)
    queues.turn()
    assert waiting.go_on() == PullResult(PullStatus.OFFSET_OVERFLOW_BADLY, (), 1, 0, 1)


def test_close_answers_everybody(queues: Bench) -> None:
    queues.store.put("t", b"x", queue_id=1)
    queues.turn()
    empty, behind = Waiting(queues), Waiting(queues, 1, 1)
    assert empty.enter()
    assert behind.enter()
    queues.close()
    assert (empty.rung, behind.rung) == (1, 1)
    for one in (empty, behind):
        one.pull.leave()
        assert one.pull.is_closed
        assert not one.pull.enter(lambda: None)
    assert empty.pull.when_closed() == PullResult(PullStatus.NO_MESSAGE_IN_QUEUE, (), 0, 0, 0)
    assert behind.pull.when_closed() == PullResult(PullStatus.OFFSET_OVERFLOW_ONE, (), 1, 0, 1)


def test_a_store_that_fails_answers_everybody(queues: Bench) -> None:
    before, after = Waiting(queues), Waiting(queues)
    before.enter()
    inside(queues.store).log.fail(FailedError("by a test"))
    assert before.rung == 1
    for one in (before, after):
        with pytest.raises(FailedError):
            one.go_on()
    assert holds(queues) == 0


# --- short polls ----------------------------------------------------------------------------------


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, small(long_poll_enabled=False, short_poll_ms=250))
    bench.store.put("t", b"makes the topic", queue_id=1)
    bench.turn()
    yield bench
    bench.close()


@pytest.mark.parametrize(("wait", "ends_ms"), [(60.0, 250), (0.25, 250), (0.1, 100)])
def test_a_short_poll_looks_again_at_its_time_only(short: Bench, wait: float, ends_ms: int) -> None:
    waiting = Waiting(short, wait=wait)
    assert waiting.enter()
    short.store.put("t", b"x", queue_id=0)
    short.turn(ends_ms - 1)
    assert waiting.rung == 0
    short.turn(1)
    assert waiting.rung == 1
    waiting.go_on()
    assert waiting.bodies == [b"x"]
    assert woken(short) == 0


def test_a_short_poll_without_a_message_is_answered_at_its_time(short: Bench) -> None:
    waiting = Waiting(short)
    waiting.enter()
    short.turn(250)
    assert waiting.go_on() == PullResult(PullStatus.NO_MESSAGE_IN_QUEUE, (), 0, 0, 0)


# --- what is gone ---------------------------------------------------------------------------------


def test_a_queue_file_that_is_missing(tmp_path: Path) -> None:
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


def test_log_files_that_are_gone(tmp_path: Path) -> None:
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


def test_a_queue_that_is_not_there_is_refused_as_by_pull(bench: Bench) -> None:
    for begin in (bench.store.begin_pull, bench.store.begin_pull_batch):
        with pytest.raises(MessageError, match="has 0 queues"):
            begin("t", 0, 0, wait=1.0)
