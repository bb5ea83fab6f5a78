"""Consumer: the consumers of a group share its queues, and queues move between them."""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.support.bench import Bench
from tests.support.consuming import Running, places, read
from timerstore import (
    MessageError,
)
from timerstore._engine.storage.disk import Disk


def test_queues_are_shared_and_returned(six: Bench) -> None:
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


def test_uncommitted_messages_go_to_the_next_consumer(six: Bench) -> None:
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


def test_commit_leaves_out_a_revoked_queue(six: Bench) -> None:
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


def test_commit_leaves_out_a_queue_that_was_revoked_and_assigned_again(six: Bench) -> None:
    """Messages that were handed out before are handed out again, here too."""
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


def test_commit_before_the_first_poll_reduces_no_offset(six: Bench) -> None:
    """The consumer does not know the group's offset yet, so it commits nothing."""
    first = six.store.consumer("t", "g")
    first.poll()
    assert first.commit() == {0: 2, 1: 2, 2: 2}
    first.close()
    second = six.store.consumer("t", "g")
    assert second.commit({0: 0}) == {}
    assert six.store.committed("t", "g") == {0: 2, 1: 2, 2: 2}
    assert second.poll() == []


def test_buffered_messages_move_with_their_queue(six: Bench) -> None:
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


def test_consumer_gets_the_queues_it_requests(six: Bench) -> None:
    a = six.store.consumer("t", "g")
    b = six.store.consumer("t", "g", queues=(2, np.int64(0)))
    assert (a.queues, b.queues) == ((1,), (0, 2))
    with six.refused(MessageError, r"already has \[0\] of 't', got \[0, 1\]"):
        six.store.consumer("t", "g", queues=[0, 1])
    assert (a.queues, b.queues) == ((1,), (0, 2))
    other = six.store.consumer("t", "h", queues=[0, 1])  # another group
    assert other.queues == (0, 1)
    b.close()
    assert a.queues == (0, 1, 2)
    six.store.consumer("t", "g", queues=[0])


def test_consumer_gets_requested_queues_when_the_topic_is_created(bench: Bench) -> None:
    consumer = bench.store.consumer("t", "g", queues=[2], wait=0)
    rest = bench.store.consumer("t", "g", wait=0)
    for queue_id in (0, 3, 2):
        bench.store.put("t", b"%d" % queue_id, queue_id=queue_id)
    bench.turn()
    assert read(consumer) == [b"2"]
    assert sorted(read(rest)) == [b"0", b"3"]


def test_collected_consumer_leaves_its_group(six: Bench) -> None:
    a = six.store.consumer("t", "g")
    b = six.store.consumer("t", "g")
    b.poll()
    assert len(b.queues) == 1
    del b
    gc.collect()
    assert len(a.poll()) == 6


def test_reassigned_queue_waits_for_the_commit_of_its_previous_consumer(
    six: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next consumer would begin at an offset that is about to change."""
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
