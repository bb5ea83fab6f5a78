"""Consumers: what they hand out, what a commit holds, how a group shares its queues."""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support.bench import NOW, Bench, small
from timerstore import (
    ClosedError,
    Consumer,
    CorruptError,
    FailedError,
    ForkedError,
    FullError,
    Message,
    MessageError,
    TimerStore,
)
from timerstore.files.disk import Disk
from timerstore.pull.groups import Groups

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "consumer_offsets"


@pytest.fixture
def six(bench: Bench) -> Bench:
    """Two messages in each of three queues, and one that waits."""
    for k in range(6):
        bench.store.put("t", b"%d" % k, queue_id=k % 3)
    bench.store.put("t", b"later", delay=60)
    bench.turn()
    return bench


def read(consumer: Consumer) -> list[bytes]:
    return [message.body for message in consumer]


def places(messages: list[Message]) -> set[tuple[int, int]]:
    return {(m.queue_id, m.queue_offset) for m in messages}


# --- handing out ----------------------------------------------------------------------------------


def test_a_new_group_begins_at_the_beginning_and_ends_at_the_end(six: Bench) -> None:
    with six.store.consumer("t", "g", wait=0) as consumer:
        assert sorted(read(consumer)) == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert read(consumer) == []
        six.turn(60_000)
        assert read(consumer) == [b"later"]  # a loop that has ended may begin again


def test_next_and_poll_hand_out_from_the_same_place(six: Bench) -> None:
    consumer = six.store.consumer("t", "g", wait=0)
    first = next(consumer)
    rest = consumer.poll(3) + consumer.poll(max_count=np.int64(100))
    assert len(rest) == 5
    assert len({first.body, *(m.body for m in rest)}) == 6
    assert consumer.poll() == []
    with pytest.raises(StopIteration):
        next(consumer)


def test_a_queue_keeps_its_order_and_keeps_no_other_waiting(bench: Bench) -> None:
    bench.store.put_many("t", [b"%d" % k for k in range(200)])
    bench.store.put("t", b"x", queue_id=1)
    bench.turn()
    consumer = bench.store.consumer("t", "g", wait=0)
    found = list(consumer)
    assert [m.queue_offset for m in found if m.queue_id == 0] == list(range(200))
    assert [m.queue_id for m in found].index(1) <= 64
    batches = bench.store.consumer("t", "h")
    sizes = []
    while messages := batches.poll(90):
        sizes.append(len(messages))
    assert sizes == [90, 90, 21]


def test_groups_do_not_know_each_other(six: Bench) -> None:
    one = six.store.consumer("t", "g", wait=0)
    other = six.store.consumer("t", "h", wait=0)
    assert len(read(one)) == len(read(other)) == 6
    one.commit()
    assert six.store.committed("t", "h") == {}


def test_a_topic_may_come_later_and_grow(bench: Bench) -> None:
    consumer = bench.store.consumer("later", "g", wait=0)
    assert consumer.queues == ()
    assert read(consumer) == []
    assert consumer.commit() == {}
    bench.store.put("later", b"a")
    bench.turn()
    assert read(consumer) == [b"a"]
    bench.store.put("later", b"b", queue_id=4)
    bench.turn()
    assert read(consumer) == [b"b"]
    assert consumer.queues == (0, 1, 2, 3, 4)
    assert consumer.commit() == {0: 1, 4: 1}


def test_large_messages_come_in_parts(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(commit_log_segment_bytes=8 << 20))
    bench.store.put_many("t", [bytes([k]) * (3 << 20) for k in range(30)])
    bench.turn()
    consumer = bench.store.consumer("t", "g", wait=0)
    assert [m.body[0] for m in consumer.poll(25)] == list(range(25))
    assert [m.body[0] for m in consumer] == [25, 26, 27, 28, 29]
    bench.close()


def test_an_error_amid_a_poll_loses_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was fetched before it would else be taken for handed out, and committed."""
    bench.store.put_many("t", [b"%d" % k for k in range(5)], queue_id=0)
    bench.store.put_many("t", [b"%d" % k for k in range(5, 9)], queue_id=1)
    bench.turn()
    consumer = bench.store.consumer("t", "g")
    pull = consumer._pull
    raised: list[int] = []

    def failing(queue_id: int, offset: int, max_count: int) -> Any:
        if queue_id == 1:
            raised.append(offset)
            raise error
        return pull(queue_id, offset, max_count)

    error: BaseException = CorruptError("a record is damaged")
    with monkeypatch.context() as patched:
        patched.setattr(consumer, "_pull", failing)
        assert len(consumer.poll()) == 5
        with pytest.raises(CorruptError):
            consumer.poll()
        assert consumer.commit() == {0: 5}
        bench.store.put("t", b"9", queue_id=0)
        bench.turn()
        error = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(99)
        assert consumer.commit() == {}
    assert sorted(m.body for m in consumer.poll()) == [b"5", b"6", b"7", b"8", b"9"]
    assert len(raised) == 3


# --- committing -----------------------------------------------------------------------------------


def test_what_was_committed_does_not_come_again(six: Bench) -> None:
    consumer = six.store.consumer("t", "g", wait=0)
    handed = [next(consumer) for _ in range(4)]
    ends = {m.queue_id: m.queue_offset + 1 for m in handed}
    assert consumer.commit() == ends
    assert six.store.committed("t", "g") == ends
    consumer.close()
    again = six.store.consumer("t", "g").poll()
    assert len(again) == 2
    assert not places(again) & places(handed)


def test_offsets_survive_a_restart_and_what_was_not_committed_comes_again(six: Bench) -> None:
    consumer = six.store.consumer("t", "g")
    first = consumer.poll(3)
    consumer.commit()
    second = consumer.poll(2)
    six.reopen()
    rest = six.store.consumer("t", "g").poll()
    assert len(rest) == 3
    assert places(second) < places(rest)
    assert not places(rest) & places(first)


def test_a_commit_of_nothing_new_writes_nothing(six: Bench) -> None:
    path = six.root / "config/consumerOffset.json"
    consumer = six.store.consumer("t", "g")
    assert consumer.commit() == {}
    assert not path.exists()
    consumer.poll()
    assert consumer.commit() == {0: 2, 1: 2, 2: 2}
    text = path.read_bytes()
    assert consumer.commit() == {}
    assert path.read_bytes() == text
    assert text.rstrip().endswith(b'"t@g":{0:2,1:2,2:2\n\t\t}\n\t}\n}')


def test_a_commit_holds_only_what_was_handed_out(bench: Bench) -> None:
    bench.store.put_many("t", [b"%d" % k for k in range(40)])
    bench.turn()
    consumer = bench.store.consumer("t", "g", wait=0)
    for k in range(40):  # more are fetched than are handed out
        assert next(consumer).queue_offset == k
        assert consumer.commit() == {0: k + 1}


def test_a_commit_through_a_message(bench: Bench) -> None:
    bench.store.put_many("t", [b"%d" % k for k in range(5)])
    bench.turn()
    consumer = bench.store.consumer("t", "g")
    messages = consumer.poll()
    assert consumer.commit(messages[2]) == {0: 3}
    assert consumer.commit(messages[1]) == {}  # it never goes back
    assert bench.store.committed("t", "g") == {0: 3}
    assert consumer.commit({0: 4}) == {0: 4}
    assert consumer.commit({0: 2}) == {}
    assert consumer.commit({np.int32(0): np.int64(5)}) == {0: 5}
    assert bench.store.committed("t", "g") == {0: 5}


@pytest.mark.parametrize(
    ("through", "match"),
    [
        ({0: 3}, "queue 0 was read to 2, got 3"),
        ({1: 1}, "queue 1 was read to 0, got 1"),
        ({0: -1}, "queue 0 was read to 2, got -1"),
        ({0: 1.0}, "was read to 2, got 1.0"),
        ({0: True}, "was read to 2, got True"),
        ({0: None}, "was read to 2, got None"),
        ({3: 0}, r"it has the queues \[0, 1, 2\], got 3"),
        ({"0": 1}, "got '0'"),
        ({True: 1}, "got True"),
        (5, "wanted a Message or a mapping"),
        ([0], "wanted a Message or a mapping"),
    ],
)
def test_a_commit_of_what_was_never_read_is_refused(six: Bench, through: Any, match: str) -> None:
    consumer = six.store.consumer("t", "g")
    while not (messages := [m for m in consumer.poll(1) if m.queue_id == 0]):
        consumer.commit()
    messages += consumer.poll(1)
    assert [m.queue_id for m in messages] == [0, 0]
    consumer.seek(0, queue_id=1)
    before = six.store.committed("t", "g")
    with six.refused(MessageError, match):
        consumer.commit(through)
    assert six.store.committed("t", "g") == before


def test_a_commit_of_a_message_that_this_consumer_did_not_hand_out(six: Bench) -> None:
    six.store.put("u", b"x")
    six.turn()
    message = six.store.pull("t", 0, 1).messages[0]
    other = six.store.pull("u", 0, 0).messages[0]
    consumer = six.store.consumer("t", "g")
    with six.refused(MessageError, "queue 0 was read to 0, got 2"):
        consumer.commit(message)
    with six.refused(MessageError, "reads 't', got one of 'u'"):
        consumer.commit(other)


def test_all_that_is_wrong_with_a_commit_is_said_and_nothing_committed(six: Bench) -> None:
    consumer = six.store.consumer("t", "g")
    consumer.poll()
    with pytest.raises(MessageError) as caught:
        consumer.commit({0: 1, 1: 9, 7: 0})
    assert len(caught.value.problems) == 2
    assert six.store.committed("t", "g") == {}


def test_commits_of_many_threads_share_their_writes(
    six: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[bytes] = []
    in_first, go = threading.Event(), threading.Event()
    write_small = Disk.write_small

    def slow(self: Disk, path: Path, data: bytes) -> None:
        writes.append(data)
        if len(writes) == 1:
            in_first.set()
            assert go.wait(30)
        write_small(self, path, data)

    monkeypatch.setattr(Disk, "write_small", slow)
    consumers = [six.store.consumer("t", f"g{k}") for k in range(5)]
    for consumer in consumers:
        consumer.poll()
    threads = [threading.Thread(target=consumer.commit) for consumer in consumers]
    threads[0].start()
    assert in_first.wait(30)
    for thread in threads[1:]:
        thread.start()
    while len(six.store._opened.offsets._asked) < 5:
        threading.Event().wait(0.001)
    go.set()
    for thread in threads:
        thread.join(30)
    assert len(writes) == 2  # the first alone, then all who had come meanwhile
    assert all(six.store.committed("t", f"g{k}") == {0: 2, 1: 2, 2: 2} for k in range(5))


def test_a_full_disk_commits_nothing_and_may_be_tried_again(
    six: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = six.store.consumer("t", "g")
    consumer.poll()

    def full(self: Disk, path: Path, data: bytes) -> None:
        raise FullError("no space", where=path)

    with monkeypatch.context() as patched:
        patched.setattr(Disk, "write_small", full)
        with pytest.raises(FullError):
            consumer.commit()
    assert six.store.committed("t", "g") == {}
    assert consumer.commit() == {0: 2, 1: 2, 2: 2}
    six.reopen()
    assert six.store.committed("t", "g") == {0: 2, 1: 2, 2: 2}


@pytest.mark.parametrize("error", [FullError("no space"), KeyboardInterrupt(), MemoryError()])
def test_a_commit_that_cannot_be_written_leaves_the_others_theirs(
    six: Bench, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    offsets = six.store._opened.offsets
    one, other = offsets.ask("t", "a", {0: 1}), offsets.ask("t", "b", {0: 2})

    def failing(self: Disk, path: Path, data: bytes) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Disk, "write_small", failing)
        with pytest.raises(type(error)):
            offsets.settle(one)
    offsets.settle(other)
    assert offsets.committed("t", "a") == {}
    assert offsets.committed("t", "b") == {0: 2}


def test_a_failed_sync_poisons_the_store(six: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = six.store.consumer("t", "g", wait=5)
    consumer.poll()

    def failing(self: Disk, path: Path, data: bytes) -> None:
        raise FailedError("sync: no", where=path)

    with monkeypatch.context() as patched:
        patched.setattr(Disk, "write_small", failing)
        with pytest.raises(FailedError, match="sync: no"):
            consumer.commit()
    for call in (consumer.commit, lambda: next(consumer), lambda: six.store.put("t", b"x")):
        with pytest.raises(FailedError, match="reopened"):
            call()
    six.store.close()
    six.open()
    assert six.store.committed("t", "g") == {}
    assert len(six.store.consumer("t", "g").poll()) == 6


# --- sharing --------------------------------------------------------------------------------------


def test_queues_are_shared_and_come_back(six: Bench) -> None:
    a = six.store.consumer("t", "g")
    assert a.queues == (0, 1, 2)
    b = six.store.consumer("t", "g")
    assert (a.queues, b.queues) == ((0, 1), (2,))
    c, d = six.store.consumer("t", "g"), six.store.consumer("t", "g")
    assert (a.queues, b.queues, c.queues, d.queues) == ((0,), (2,), (1,), ())
    assert d.poll() == []
    assert {m.queue_id for m in c.poll()} == {1}
    a.close()
    assert (b.queues, c.queues, d.queues) == ((2,), (1,), (0,))
    for one in (b, c):
        one.close()
    assert d.queues == (0, 1, 2)
    other = six.store.consumer("t", "h")
    assert other.queues == (0, 1, 2)


def test_what_was_handed_out_and_not_committed_comes_to_the_next(six: Bench) -> None:
    a = six.store.consumer("t", "g")
    handed = a.poll()
    assert len(handed) == 6
    assert a.commit({0: 2, 1: 1, 2: 1}) == {0: 2, 1: 1, 2: 1}
    b = six.store.consumer("t", "g")
    assert b.queues == (2,)
    assert places(b.poll()) == {(2, 1)}
    assert a.commit() == {1: 2}  # queue 2 is b's now
    a.close()
    assert b.poll() == []
    assert b.commit() == {2: 2}
    assert six.store.committed("t", "g") == {0: 2, 1: 2, 2: 2}


def test_a_commit_of_a_queue_that_moved_is_left_out(six: Bench) -> None:
    a = six.store.consumer("t", "g")
    message = next(m for m in a.poll() if m.queue_id == 2)
    b = six.store.consumer("t", "g")
    assert a.commit(message) == a.commit({2: 1}) == a.commit({2: 2}) == {}
    assert a.commit({0: 1, 2: 2}) == {0: 1}
    for through in ({2: 3}, {0: 2, 2: 3}):
        with six.refused(MessageError, r"it has the queues \[0, 1\], got 2"):
            a.commit(through)  # it never had that
    with six.refused(MessageError, r"it has the queues \[2\], got 0"):
        b.commit({0: 1})
    assert six.store.committed("t", "g") == {0: 1}
    assert places(b.poll()) == {(2, 0), (2, 1)}
    b.close()
    assert a.queues == (0, 1, 2)
    assert places(a.poll()) == {(2, 0), (2, 1)}  # b did not commit them either


def test_a_commit_of_a_queue_that_moved_and_came_back_is_left_out(six: Bench) -> None:
    """What was handed out before comes again here, too."""
    a = six.store.consumer("t", "g")
    messages = [m for m in a.poll() if m.queue_id == 2]
    b = six.store.consumer("t", "g")
    assert places(b.poll(1)) == {(2, 0)}
    assert b.commit() == {2: 1}
    b.close()
    assert a.queues == (0, 1, 2)
    for through in (*messages, {2: 1}, {2: 2}):
        assert a.commit(through) == {}
    for through in ({2: 3}, {2: -1}):
        with six.refused(MessageError, "queue 2 was read to 0"):
            a.commit(through)
    assert six.store.committed("t", "g") == {2: 1}
    assert places(a.poll()) == {(2, 1)}
    assert a.commit(messages[0]) == {}
    assert a.commit(messages[1]) == {2: 2}
    assert six.store.committed("t", "g") == {2: 2}


def test_a_commit_before_the_first_poll_takes_nothing_back(six: Bench) -> None:
    """Where the group is is not known here yet: it is not behind that."""
    first = six.store.consumer("t", "g")
    first.poll()
    assert first.commit() == {0: 2, 1: 2, 2: 2}
    first.close()
    second = six.store.consumer("t", "g")
    assert second.commit({0: 0}) == {}
    assert six.store.committed("t", "g") == {0: 2, 1: 2, 2: 2}
    assert second.poll() == []


def test_what_was_fetched_but_not_handed_out_goes_with_its_queue(six: Bench) -> None:
    a = six.store.consumer("t", "g", wait=0)
    first = next(a)  # its queue is fetched whole
    asked = [q for q in range(3) if q != first.queue_id]
    others = six.store.consumer("t", "g", queues=asked)
    assert others.queues == tuple(asked)
    assert a.queues == (first.queue_id,)
    assert [m.queue_offset for m in a] == [1]
    b = six.store.consumer("t", "g", queues=[first.queue_id])
    assert a.queues == ()
    assert read(a) == []
    assert len(b.poll()) == 2


def test_queues_that_are_asked_for(six: Bench) -> None:
    a = six.store.consumer("t", "g")
    b = six.store.consumer("t", "g", queues=(2, np.int64(0)))
    assert (a.queues, b.queues) == ((1,), (0, 2))
    with six.refused(MessageError, r"asked for \[0\] of 't' before, got \[0, 1\]"):
        six.store.consumer("t", "g", queues=[0, 1])
    assert (a.queues, b.queues) == ((1,), (0, 2))
    other = six.store.consumer("t", "h", queues=[0, 1])  # another group
    assert other.queues == (0, 1)
    b.close()
    assert a.queues == (0, 1, 2)
    six.store.consumer("t", "g", queues=[0])


def test_queues_asked_for_before_their_topic_is_there(bench: Bench) -> None:
    consumer = bench.store.consumer("t", "g", queues=[2], wait=0)
    rest = bench.store.consumer("t", "g", wait=0)
    for queue_id in (0, 3, 2):
        bench.store.put("t", b"%d" % queue_id, queue_id=queue_id)
    bench.turn()
    assert read(consumer) == [b"2"]
    assert sorted(read(rest)) == [b"0", b"3"]


def test_a_consumer_that_nobody_holds_any_more_leaves(six: Bench) -> None:
    a = six.store.consumer("t", "g")
    b = six.store.consumer("t", "g")
    b.poll()
    assert len(b.queues) == 1
    del b
    gc.collect()
    assert len(a.poll()) == 6


def test_a_queue_waits_for_the_commit_of_whoever_had_it(
    six: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next one begins at a place that is behind the times in a moment."""
    a = six.store.consumer("t", "g")
    a.poll()
    in_write, go = threading.Event(), threading.Event()
    write_small = Disk.write_small

    def slow(self: Disk, path: Path, data: bytes) -> None:
        in_write.set()
        assert go.wait(30)
        write_small(self, path, data)

    monkeypatch.setattr(Disk, "write_small", slow)
    commit = Running(a.commit)
    assert in_write.wait(30)
    b = six.store.consumer("t", "g")
    poll = Running(b.poll)
    assert not poll.is_done(within=0.05)
    go.set()
    assert poll.answer() == []
    assert commit.answer() == {0: 2, 1: 2, 2: 2}


class Running:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._result: Any = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self._result = error

    def is_done(self, within: float) -> bool:
        self._thread.join(within)
        return not self._thread.is_alive()

    def answer(self) -> Any:
        assert self.is_done(30), "it still waits"
        return self._result


# --- filters --------------------------------------------------------------------------------------


@pytest.fixture
def tagged(bench: Bench) -> Bench:
    """Aa and BB share a hash; 100 of each, then some that nobody asks for."""
    for k in range(300):
        bench.store.put("t", b"%d" % k, tags=("Aa", "BB", None)[k % 3], queue_id=k % 2)
    for _ in range(100):
        bench.store.put("t", b"no", tags="none", queue_id=0)
    bench.turn()
    return bench


@pytest.mark.parametrize("given", [{"tags": "Aa || x"}, {"sql": "TAGS = 'Aa'"}])
def test_a_filter_leaves_out_and_what_it_left_out_is_done_with(
    tagged: Bench, given: dict[str, Any]
) -> None:
    consumer = tagged.store.consumer("t", "g", wait=0, **given)
    assert sorted(int(body) for body in read(consumer)) == list(range(0, 300, 3))
    assert consumer.commit() == {0: 250, 1: 150}
    tagged.reopen()
    assert read(tagged.store.consumer("t", "g", wait=0, **given)) == []
    none = tagged.store.consumer("t", "none", wait=0, tags="no such")
    assert read(none) == []
    assert none.commit() == {0: 250, 1: 150}


def test_a_filter_and_a_commit_in_the_midst(tagged: Bench) -> None:
    consumer = tagged.store.consumer("t", "g", queues=[0], tags="BB")
    messages = consumer.poll(4)  # 4, 10, 16, 22 are in queue 0
    assert [m.body for m in messages] == [b"4", b"10", b"16", b"22"]
    assert consumer.commit(messages[1]) == {0: 6}
    consumer.close()
    again = tagged.store.consumer("t", "g", queues=[0], tags="BB")
    assert [m.body for m in again.poll(2)] == [b"16", b"22"]


def test_consumers_of_a_group_filter_alike(tagged: Bench) -> None:
    one = tagged.store.consumer("t", "g", tags="Aa")
    for given in ({}, {"tags": "BB"}, {"sql": "TAGS = 'Aa'"}):
        with tagged.refused(MessageError, "group 'g' reads 't' with tags 'Aa', sql None"):
            tagged.store.consumer("t", "g", **given)
    other = tagged.store.consumer("t", "g", tags="Aa")
    one.close()
    other.close()
    tagged.store.consumer("t", "g", tags="BB")  # when nobody is left, the group may change


@pytest.mark.parametrize(
    ("given", "match"),
    [({"tags": 5}, "tags"), ({"sql": "a >"}, "sql"), ({"tags": "a", "sql": "a > 5"}, "one of")],
)
def test_a_filter_that_cannot_be(tagged: Bench, given: dict[str, Any], match: str) -> None:
    for topic in ("t", "not-there-yet"):
        with tagged.refused(MessageError, match):
            tagged.store.consumer(topic, "g", **given)


# --- seeking --------------------------------------------------------------------------------------


def test_seek_to_offsets(six: Bench) -> None:
    consumer = six.store.consumer("t", "g", wait=0)
    read(consumer)
    assert consumer.seek(1) == {0: 1, 1: 1, 2: 1}
    assert sorted(read(consumer)) == [b"3", b"4", b"5"]
    assert consumer.seek(0, queue_id=1) == {1: 0}
    assert read(consumer) == [b"1", b"4"]
    assert consumer.seek(2) == {0: 2, 1: 2, 2: 2}  # the end
    assert read(consumer) == []
    assert consumer.seek(np.int64(1), queue_id=np.int64(2)) == {2: 1}
    assert read(consumer) == [b"5"]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"offset": 3}, "queue 0 has 0 to 2, got 3; offset: queue 1 has 0 to 2, got 3"),
        ({"offset": -1}, "queue 0 has 0 to 2, got -1"),
        ({"offset": -1, "queue_id": 2}, "queue 2 has 0 to 2, got -1"),
        ({"offset": 2**63}, "got 9223372036854775808"),
        ({"offset": 0.0}, "got 0.0"),
        ({"offset": False}, "got False"),
        ({"offset": 0, "queue_id": 3}, r"queue_id: it has the queues \[0, 1, 2\], got 3"),
        ({"offset": 0, "queue_id": "0"}, "got '0'"),
        ({"offset": 0, "queue_id": -1}, "got -1"),
        ({}, "one of offset, time and time_ms"),
        ({"offset": 0, "time_ms": 0}, "one of offset, time and time_ms"),
        ({"time_ms": 1.5}, "time_ms: wanted a whole number"),
        ({"time": datetime(2026, 1, 1)}, "with a time zone"),  # noqa: DTZ001 - what is refused
        ({"time": 5}, "with a time zone"),
    ],
)
def test_seeks_before_and_beyond_the_ends_are_refused(
    six: Bench, given: dict[str, Any], match: str
) -> None:
    consumer = six.store.consumer("t", "g", wait=0)
    read(consumer)
    with six.refused(MessageError, match):
        consumer.seek(**given)
    assert read(consumer) == []  # it is where it was


def test_seek_to_times(bench: Bench) -> None:
    for k in range(4):
        bench.store.put("t", b"%d" % k, queue_id=0)
        bench.store.put("t", b"%d" % (k + 10), queue_id=1)
        bench.turn(10)
    consumer = bench.store.consumer("t", "g", wait=0)
    assert consumer.seek(time_ms=NOW + 11) == {0: 2, 1: 2}
    assert sorted(read(consumer)) == [b"12", b"13", b"2", b"3"]
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=NOW + 10)
    assert consumer.seek(time=moment) == {0: 1, 1: 1}
    assert consumer.seek(time=moment + timedelta(microseconds=1)) == {0: 2, 1: 2}
    assert consumer.seek(time=moment - timedelta(microseconds=1), queue_id=0) == {0: 1}
    assert consumer.seek(time_ms=NOW - 1) == {0: 0, 1: 0}
    assert consumer.seek(time_ms=2**60) == {0: 4, 1: 4}
    assert read(consumer) == []
    assert bench.store.consumer("empty", "g").seek(time_ms=5) == {}


def test_a_seek_lasts_when_it_is_committed(six: Bench) -> None:
    consumer = six.store.consumer("t", "g", wait=0)
    messages = list(consumer)
    consumer.commit()
    consumer.seek(0)
    six.reopen()
    assert six.store.committed("t", "g") == {0: 2, 1: 2, 2: 2}
    consumer = six.store.consumer("t", "g", wait=0)
    consumer.seek(0)
    late = next(m for m in messages if m.queue_offset == 1)
    with six.refused(MessageError, "was read to 0, got 2"):
        consumer.commit(late)  # handed out before, but not since the seek
    assert consumer.commit() == {0: 0, 1: 0, 2: 0}
    six.reopen()
    consumer = six.store.consumer("t", "g", wait=0)
    assert len(read(consumer)) == 6
    consumer.seek(1)
    first = next(consumer)
    assert consumer.commit(first) == {first.queue_id: 2}
    six.reopen()
    assert six.store.committed("t", "g") == {0: 0, 1: 0, 2: 0, first.queue_id: 2}


@contextmanager
def amid_a_commit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]
) -> Iterator[list[object]]:
    """Inside, a commit is met on its way, asked for and not written: what `act` answered then."""
    offsets = bench.store._opened.offsets
    settle, answers = offsets.settle, []

    def act_first(asked: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(offsets, "settle", settle)
            answers.append(act())
        settle(asked)

    with monkeypatch.context() as patched:
        patched.setattr(offsets, "settle", act_first)
        yield answers


def test_a_seek_is_committed_while_another_commit_is_on_its_way(
    six: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the disk has already is on it only until the other one is written."""
    consumer = six.store.consumer("t", "g", wait=0)
    read(consumer)

    def seek_and_commit() -> object:
        consumer.seek(0)
        return consumer.commit()

    with amid_a_commit(six, monkeypatch, seek_and_commit) as answers:
        assert consumer.commit() == {0: 2, 1: 2, 2: 2}
    assert answers == [{0: 0, 1: 0, 2: 0}]
    assert six.store.committed("t", "g") == {0: 0, 1: 0, 2: 0}
    assert consumer.commit() == {}  # nothing is on its way any more
    six.reopen()
    assert len(read(six.store.consumer("t", "g", wait=0))) == 6


def test_nor_one_that_was_just_settled(six: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its caller is told."""
    consumer = six.store.consumer("t", "g", queues=[0], wait=0)
    first, last = consumer.poll(2)
    settled = Groups.commit_settled
    answers = []

    def commit_right_behind(groups: Groups, group: Any) -> None:
        settled(groups, group)
        monkeypatch.setattr(Groups, "commit_settled", settled)
        answers.append(consumer.commit(first))

    monkeypatch.setattr(Groups, "commit_settled", commit_right_behind)
    assert consumer.commit(last) == {0: 2}
    assert answers == [{}]
    assert six.store.committed("t", "g") == {0: 2}


@pytest.mark.parametrize("is_sought", [False, True])
def test_a_commit_does_not_take_back_one_that_is_on_its_way(
    six: Bench, monkeypatch: pytest.MonkeyPatch, is_sought: bool
) -> None:
    """Of two that were asked for, the later one of what lies before; but where the group was sent
    back meanwhile, that counts.
    """
    consumer = six.store.consumer("t", "g", queues=[0], wait=0)
    first, last = consumer.poll(2)

    def commit_first() -> object:
        if is_sought:
            consumer.seek(0, queue_id=0)
            consumer.poll(1)
        return consumer.commit(first)

    with amid_a_commit(six, monkeypatch, commit_first) as answers:
        assert consumer.commit(last) == {0: 2}
    assert answers == [{0: 1 if is_sought else 2}]
    assert six.store.committed("t", "g") == {0: 1 if is_sought else 2}
    assert consumer.commit(first) == {}


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "group", "given", "match"),
    [
        ("t", "a@b", {}, "group: wanted 1 to 255 of"),
        ("t", "", {}, "group"),
        ("t", "x" * 256, {}, "group.* of 256 characters"),
        ("t", "a/b", {}, "group"),
        ("t", None, {}, "group"),
        ("a@b", "g", {}, "topic"),
        ("../t", "g", {}, "topic"),
        ("t", "g", {"queues": [3]}, r"queues: wanted some of 0 to 2, got \[3\]"),
        ("t", "g", {"queues": []}, "queues: wanted some of"),
        ("t", "g", {"queues": [0, -1]}, "queues"),
        ("t", "g", {"queues": [0, 0]}, "queues: wanted each once"),
        ("t", "g", {"queues": ["0"]}, "queues"),
        ("t", "g", {"queues": [True]}, "queues"),
        ("t", "g", {"queues": 0}, "queues: wanted whole numbers, got 0"),
        ("t", "g", {"queues": "0"}, "queues"),
        ("t", "g", {"queues": np.array(5)}, "queues: wanted whole numbers, got array"),
        ("new", "g", {"queues": [-1]}, "queues: wanted some of whole numbers from 0 on"),
        ("new", "g", {"queues": [2**31]}, "queues"),
        ("t", "g", {"wait": -1}, "wait"),
        ("t", "g", {"wait": float("nan")}, "wait"),
        ("t", "g", {"wait": "1"}, "wait"),
    ],
)
def test_a_consumer_that_cannot_be(
    six: Bench, topic: Any, group: Any, given: dict[str, Any], match: str
) -> None:
    with six.refused(MessageError, match):
        six.store.consumer(topic, group, **given)
    assert six.store.consumer("t", "g").queues == (0, 1, 2)  # nobody has joined


def test_names_at_their_edge(six: Bench) -> None:
    name = "g" * 255
    consumer = six.store.consumer("t", name)
    consumer.poll()
    consumer.commit()
    six.reopen()
    assert six.store.committed("t", name) == {0: 2, 1: 2, 2: 2}
    for topic, group in (("t", "a@b"), ("a@b", "g")):
        with six.refused(MessageError, "wanted 1 to 255"):
            six.store.committed(topic, group)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"max_count": 0}, "max_count"),
        ({"max_count": 1.0}, "max_count"),
        ({"max_count": True}, "max_count"),
        ({"wait": -0.1}, "wait"),
        ({"wait": None}, "wait"),
        ({"wait": 1e9}, "wait"),
    ],
)
def test_a_poll_that_cannot_be(six: Bench, given: dict[str, Any], match: str) -> None:
    consumer = six.store.consumer("t", "g")
    with six.refused(MessageError, match):
        consumer.poll(**given)
    assert len(consumer.poll()) == 6


def test_use_after_close(six: Bench) -> None:
    consumer = six.store.consumer("t", "g", wait=0)
    messages = consumer.poll(1)
    consumer.close()
    consumer.close()
    for call in (
        consumer.poll,
        consumer.commit,
        lambda: consumer.commit(messages[0]),
        lambda: consumer.seek(0),
        lambda: iter(consumer),
    ):
        with pytest.raises(ClosedError, match="the consumer is closed"):
            call()
    assert next(consumer, None) is None
    assert consumer.queues == ()
    assert six.store.committed("t", "g") == {}
    live = six.store.consumer("t", "g")
    six.close()
    for call in (
        live.poll,
        live.commit,
        lambda: six.store.consumer("t", "g"),
        lambda: six.store.committed("t", "g"),
        lambda: six.store.offset_at("t", 0, 0),
    ):
        with pytest.raises(ClosedError):
            call()
    live.close()


def test_a_forked_child_may_not(six: Bench) -> None:
    consumer = six.store.consumer("t", "g", wait=0)
    consumer.poll(1)
    calls = (consumer.poll, consumer.commit, lambda: next(consumer), consumer.close)
    with consumer._group.lock:  # as held by another thread at the moment of the fork
        child = os.fork()
        if child == 0:
            refused = 0
            for call in calls:
                try:
                    call()
                except ForkedError:
                    refused += 1
                except BaseException:  # noqa: BLE001 - told to the parent
                    break
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)
    assert len(consumer.poll()) == 5


# --- what is on the disk --------------------------------------------------------------------------


def test_a_brokers_offsets_go_on_and_what_is_not_ours_stays(six: Bench) -> None:
    six.close()
    path = six.root / "config/consumerOffset.json"
    text = (FIXTURES / "5.3.3.json").read_text()
    path.write_text(text.replace("orders@audit", "t@audit").replace("{2:5", "{2:1"))
    six.open()
    assert six.store.committed("t", "audit") == {2: 1}
    assert path.read_text() == text.replace("orders@audit", "t@audit").replace("{2:5", "{2:1")
    consumer = six.store.consumer("t", "audit")
    assert len(consumer.poll()) == 5
    assert consumer.commit() == {0: 2, 1: 2, 2: 2}
    written = path.read_text()
    for name in ("%RETRY%billing@a|b%c", "reminders@audit", "orders@billing", "reminders@zeta"):
        at, end = text.index(name), text.index("}", text.index(name))
        assert text[at:end] in written
    assert '"t@audit":{0:2,1:2,2:2' in written


def test_offsets_beyond_the_end_are_taken_back_on_opening(six: Bench) -> None:
    """Or else what comes next would be skipped; and so it is on the disk before anything comes."""
    consumer = six.store.consumer("t", "g")
    consumer.poll()
    consumer.commit()
    six.close()
    path = six.root / "config/consumerOffset.json"
    text = path.read_text().rstrip()  # without its seal: somebody edits it
    path.write_text(text.replace("{0:2,1:2,2:2", "{0:3,1:1,2:99,3:7"))
    six.open()
    assert six.store.committed("t", "g") == {0: 2, 1: 1, 2: 2, 3: 0}
    assert "{0:2,1:1,2:2,3:0" in path.read_text()
    six.store.put("t", b"next", queue_id=2)
    six.store.put("t", b"first of its queue", queue_id=3)
    six.turn()
    found = six.store.consumer("t", "g").poll()
    assert [m.body for m in found] == [b"4", b"next", b"first of its queue"]


def test_offsets_that_cannot_be_read_stop_the_opening(six: Bench) -> None:
    six.store.consumer("t", "g").poll()
    six.close()
    path = six.root / "config/consumerOffset.json"
    path.write_text('{"offsetTable":{"t@g":{0:')
    with pytest.raises(CorruptError, match=r"committed offsets.*consumerOffset\.json.*every group"):
        six.open()
    path.with_name("consumerOffset.json.bak").write_text('{"offsetTable":{"t@g":{0:1}}}')
    six.open()
    assert six.store.committed("t", "g") == {0: 1}


# --- waiting: real threads and real time ----------------------------------------------------------


@pytest.fixture
def live(tmp_path: Path) -> Iterator[TimerStore]:
    store = timerstore.open(tmp_path / "live", small(flush="sync"))
    yield store
    store.close()


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("delay", [None, 0.2])
def test_who_waits_gets_the_message_whatever_the_queue(
    live: TimerStore, delay: float | None, flush: str
) -> None:
    live.put("t", b"first")
    consumer = live.consumer("t", "g")
    assert next(consumer).body == b"first"
    waiting = Running(lambda: next(consumer))
    assert not waiting.is_done(within=0.05)
    live.put("t", b"second", delay=delay, queue_id=3, flush=flush)
    message = waiting.answer()
    assert message.body == b"second"
    assert message.delivered_ms >= message.due_ms


def test_who_waits_for_a_topic_that_is_not_there(live: TimerStore) -> None:
    consumer = live.consumer("new", "g")
    waiting = Running(lambda: consumer.poll(10, wait=60))
    assert not waiting.is_done(within=0.05)
    live.put("other", b"no")
    assert not waiting.is_done(within=0.05)
    live.put("new", b"yes")
    assert [m.body for m in waiting.answer()] == [b"yes"]


def test_a_wait_ends_with_its_time(live: TimerStore) -> None:
    live.put("t", b"x")
    consumer = live.consumer("t", "g", wait=0.1)
    assert Running(lambda: read(consumer)).answer() == [b"x"]
    assert Running(lambda: consumer.poll(1, 0.01)).answer() == []


def test_who_waits_gets_the_queues_of_who_leaves(live: TimerStore) -> None:
    live.put("t", b"0")
    live.put("t", b"1", queue_id=1)
    a, b = live.consumer("t", "g"), live.consumer("t", "g")
    assert len(a.poll(9, wait=30)) == len(b.poll(9, wait=30)) == 1
    waiting = Running(lambda: b.poll(9, wait=60))
    assert not waiting.is_done(within=0.05)
    a.close()
    assert [m.body for m in waiting.answer()] == [b"0"]


@pytest.mark.parametrize("what", ["consumer", "store"])
def test_close_ends_the_loop_of_who_waits(tmp_path: Path, what: str) -> None:
    store = timerstore.open(tmp_path, small())
    store.put("t", b"x", flush="sync")
    consumer = store.consumer("t", "g")
    seen: list[bytes] = []
    loop = Running(lambda: [seen.append(message.body) for message in consumer])
    while not seen:
        threading.Event().wait(0.001)
    assert not loop.is_done(within=0.05)
    if what == "consumer":
        consumer.close()
    else:
        store.close()
    assert isinstance(loop.answer(), list)
    store.close()


def test_a_clock_turned_by_hand_ends_a_wait(bench: Bench) -> None:
    bench.store.put("t", b"x")
    bench.turn()
    consumer = bench.store.consumer("t", "g", wait=5)
    loop = Running(lambda: read(consumer))
    while not len(consumer._member.line):
        threading.Event().wait(0.001)
    bench.clock.advance(5000)
    assert loop.answer() == [b"x"]


class Coming:
    """Joins a group, reads some, commits, leaves; again and again."""

    def __init__(self, store: TimerStore, stride: int) -> None:
        self.seen: set[tuple[int, int]] = set()
        self.wrong: list[str] = []
        self.is_over = threading.Event()
        self._store = store
        self._stride = stride
        self.running = Running(self._run)

    def _run(self) -> None:
        while not self.is_over.is_set():
            before = self._store.committed("t", "g")
            with self._store.consumer("t", "g", wait=0.005) as consumer:
                self._read(consumer, before)
                consumer.commit()

    def _read(self, consumer: Consumer, before: dict[int, int]) -> None:
        last: dict[int, int] = {}
        for k, message in enumerate(consumer):
            queue_id, at = message.queue_id, message.queue_offset
            if at < before.get(queue_id, 0):
                self.wrong.append(f"committed, but it came again: {queue_id} {at}")
            if at > last.get(queue_id, at - 1) + 1:
                self.wrong.append(f"a gap: {queue_id} {at} after {last[queue_id]}")
            last[queue_id] = at
            self.seen.add((queue_id, at))
            if k % 3 == 0:
                before = {**before, **consumer.commit()}
            if k > 5 * self._stride:
                return


@pytest.mark.slow
def test_consumers_come_and_go_while_messages_come(live: TimerStore) -> None:
    comers = [Coming(live, stride) for stride in range(4)]
    for k in range(400):
        live.put("t", b"%d" % k, queue_id=k % 4, flush="async")
    for _ in range(6000):
        if live.committed("t", "g") == dict.fromkeys(range(4), 100):
            break
        threading.Event().wait(0.01)
    for one in comers:
        one.is_over.set()
    assert [one.running.answer() for one in comers] == [None] * 4
    assert [one.wrong for one in comers] == [[]] * 4
    assert set().union(*(one.seen for one in comers)) == {
        (q, at) for q in range(4) for at in range(100)
    }
    assert live.committed("t", "g") == dict.fromkeys(range(4), 100)
