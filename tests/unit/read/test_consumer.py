"""Consumers: the messages they hand out, and invalid arguments."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bench import Bench, small
from tests.support.consuming import read
from tests.support.inside import consumer_pull, group_lock
from timerstore import (
    ClosedError,
    CorruptError,
    ForkedError,
    MessageError,
)


def test_new_group_reads_from_the_beginning_to_the_end(six: Bench) -> None:
    with six.store.consumer("t", "g", wait=0) as consumer:
        assert sorted(read(consumer)) == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert read(consumer) == []
        six.turn(60_000)
        assert read(consumer) == [b"later"]  # a loop that has ended may begin again


def test_next_and_poll_share_one_position(six: Bench) -> None:
    consumer = six.store.consumer("t", "g", wait=0)
    first = next(consumer)
    rest = consumer.poll(3) + consumer.poll(max_count=np.int64(100))
    assert len(rest) == 5
    assert len({first.body, *(m.body for m in rest)}) == 6
    assert consumer.poll() == []
    with pytest.raises(StopIteration):
        next(consumer)


def test_queues_keep_their_order_and_take_turns(bench: Bench) -> None:
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


def test_groups_are_independent(six: Bench) -> None:
    one = six.store.consumer("t", "g", wait=0)
    other = six.store.consumer("t", "h", wait=0)
    assert len(read(one)) == len(read(other)) == 6
    one.commit()
    assert six.store.committed("t", "h") == {}


def test_consumer_reads_a_topic_that_is_created_later_and_grows(bench: Bench) -> None:
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


def test_large_messages_arrive_in_several_polls(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small(commit_log_segment_bytes=8 << 20))
    bench.store.put_many("t", [bytes([k]) * (3 << 20) for k in range(30)])
    bench.turn()
    consumer = bench.store.consumer("t", "g", wait=0)
    found = consumer.poll(25)
    assert len(found) == 22, "the first with which there are 64 MiB or more"
    assert [m.body[0] for m in [*found, *consumer.poll(25)]] == list(range(30))
    bench.close()


def test_error_during_a_poll_loses_no_message(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise buffered messages would count as handed out, and be committed."""
    bench.store.put_many("t", [b"%d" % k for k in range(5)], queue_id=0)
    bench.store.put_many("t", [b"%d" % k for k in range(5, 9)], queue_id=1)
    bench.turn()
    consumer = bench.store.consumer("t", "g")
    pulling = consumer_pull(consumer)
    pull = pulling.value
    raised: list[int] = []

    def failing(queue_id: int, offset: int, *given: Any) -> Any:
        if queue_id == 1:
            raised.append(offset)
            raise error
        return pull(queue_id, offset, *given)

    error: BaseException = CorruptError("a record is damaged")
    with monkeypatch.context() as patched:
        patched.setattr(*pulling, failing)
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
        ("t", "g", {"queues": np.array(5)}, "queues: wanted whole numbers, got 5"),
        ("new", "g", {"queues": [-1]}, "queues: wanted some of whole numbers from 0 on"),
        ("new", "g", {"queues": [2**31]}, "queues"),
        ("t", "g", {"wait": -1}, "wait"),
        ("t", "g", {"wait": float("nan")}, "wait"),
        ("t", "g", {"wait": "1"}, "wait"),
    ],
)
def test_consumer_rejects_invalid_arguments(
    six: Bench, topic: Any, group: Any, given: dict[str, Any], match: str
) -> None:
    with six.refused(MessageError, match):
        six.store.consumer(topic, group, **given)
    assert six.store.consumer("t", "g").queues == (0, 1, 2)  # no consumer has joined


def test_consumer_accepts_the_longest_names(six: Bench) -> None:
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
def test_poll_rejects_invalid_arguments(six: Bench, given: dict[str, Any], match: str) -> None:
    consumer = six.store.consumer("t", "g")
    with six.refused(MessageError, match):
        consumer.poll(**given)
    assert len(consumer.poll()) == 6


def test_closed_consumer_rejects_calls(six: Bench) -> None:
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


def test_forked_child_cannot_use_a_consumer(six: Bench) -> None:
    consumer = six.store.consumer("t", "g", wait=0)
    consumer.poll(1)
    calls = (consumer.poll, consumer.commit, lambda: next(consumer), consumer.close)
    with group_lock(consumer):  # as held by another thread at the moment of the fork
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


def test_read_of_a_server_buffers_within_its_limit(bench: Bench) -> None:
    for _ in range(6):
        bench.store.put("t", bytes(700_000))
    bench.turn()
    counts = []
    for group, bytes_max in (("a", 1), ("b", 2_000_000), ("c", 0)):
        with bench.store.consumer("t", group) as consumer:
            (queue,) = consumer.fetch_next(6, bytes_max=bytes_max)
            counts.append(len(queue.buffered))
    assert counts == [1, 3, 6]
