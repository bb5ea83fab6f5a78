"""Consumer: committed messages are not read again, and no other message is committed."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bench import Bench
from tests.support.consuming import places
from tests.support.inside import inside, pending_commits
from timerstore import (
    FailedError,
    FullError,
    MessageError,
)
from timerstore._engine.storage.disk import Disk


def test_committed_messages_are_not_handed_out_again(six: Bench) -> None:
    consumer = six.store.consumer("t", "g", wait=0)
    handed = [next(consumer) for _ in range(4)]
    ends = {m.queue_id: m.queue_offset + 1 for m in handed}
    assert consumer.commit() == ends
    assert six.store.committed("t", "g") == ends
    consumer.close()
    again = six.store.consumer("t", "g").poll()
    assert len(again) == 2
    assert not places(again) & places(handed)


def test_offsets_survive_a_restart_and_uncommitted_messages_are_read_again(six: Bench) -> None:
    consumer = six.store.consumer("t", "g")
    first = consumer.poll(3)
    consumer.commit()
    second = consumer.poll(2)
    six.reopen()
    rest = six.store.consumer("t", "g").poll()
    assert len(rest) == 3
    assert places(second) < places(rest)
    assert not places(rest) & places(first)


def test_commit_without_new_offsets_writes_nothing(six: Bench) -> None:
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


def test_commit_covers_only_messages_handed_out(bench: Bench) -> None:
    bench.store.put_many("t", [b"%d" % k for k in range(40)])
    bench.turn()
    consumer = bench.store.consumer("t", "g", wait=0)
    for k in range(40):  # more are fetched than are handed out
        assert next(consumer).queue_offset == k
        assert consumer.commit() == {0: k + 1}


def test_commit_through_a_message(bench: Bench) -> None:
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
def test_commit_rejects_offsets_that_were_not_read(six: Bench, through: Any, match: str) -> None:
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


def test_commit_rejects_a_message_of_another_consumer(six: Bench) -> None:
    six.store.put("u", b"x")
    six.turn()
    message = six.store.pull("t", 0, 1).messages[0]
    other = six.store.pull("u", 0, 0).messages[0]
    consumer = six.store.consumer("t", "g")
    with six.refused(MessageError, "queue 0 was read to 0, got 2"):
        consumer.commit(message)
    with six.refused(MessageError, "reads 't', got one of 'u'"):
        consumer.commit(other)


def test_commit_reports_every_problem_and_commits_nothing(six: Bench) -> None:
    consumer = six.store.consumer("t", "g")
    consumer.poll()
    with pytest.raises(MessageError) as caught:
        consumer.commit({0: 1, 1: 9, 7: 0})
    assert len(caught.value.problems) == 2
    assert six.store.committed("t", "g") == {}


def test_concurrent_commits_share_writes(six: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
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
    while len(pending_commits(inside(six.store).group_offsets)) < 5:
        threading.Event().wait(0.001)
    go.set()
    for thread in threads:
        thread.join(30)
    assert len(writes) == 2  # the first commit alone, then all that were requested during it
    assert all(six.store.committed("t", f"g{k}") == {0: 2, 1: 2, 2: 2} for k in range(5))


def test_commit_can_be_repeated_after_a_full_disk(
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
def test_failed_commit_does_not_affect_other_commits(
    six: Bench, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    offsets = inside(six.store).group_offsets
    one, other = offsets.begin_commit("t", "a", {0: 1}), offsets.begin_commit("t", "b", {0: 2})

    def failing(self: Disk, path: Path, data: bytes) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Disk, "write_small", failing)
        with pytest.raises(type(error)):
            offsets.wait_for_commit(one)
    offsets.wait_for_commit(other)
    assert offsets.committed("t", "a") == {}
    assert offsets.committed("t", "b") == {0: 2}


def test_failed_sync_fails_the_store(six: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
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
