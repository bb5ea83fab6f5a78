"""bury, dead_letters and requeue: each message is a dead letter or delivered, and never both."""

import json
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import DAY, NOW, Bench, small
from tests.support.driver import abandon
from tests.support.inside import inside
from tests.support.leasing import DEAD, RETRY, bodies, put, take
from tests.support.placing_races import before_space, full
from timerstore import AckResult, DeadLetter, FullError, MessageError, ReadOnlyError
from timerstore._engine.base import failpoints
from timerstore._engine.format.lease import read_letter, write_letter

SAME = (
    "topic", "queue_id", "queue_offset", "body", "tags", "keys", "message_id", "born_ms",
    "delivered_ms", "due_ms", "flag",
)  # fmt: skip
"""Attributes that a message keeps at every attempt, and as a dead letter."""


def letters(bench: Bench, topic: str | None = None) -> list[DeadLetter]:
    return list(bench.store.dead_letters("g", topic=topic))


def bury(bench: Bench, *what: bytes) -> list[DeadLetter]:
    """Put and bury these messages; return the group's dead letters."""
    put(bench, *what)
    for one in take(bench, len(what), lease=60):
        assert bench.store.bury(one) is AckResult.BURIED
    bench.turn()
    return letters(bench)


def killed(bench: Bench, to: Path) -> None:
    shutil.copytree(bench.root, to)
    abandon(bench.store)
    bench.root = to
    bench.open()


# --- bury ---


def test_buried_message_is_a_dead_letter_at_once(bench: Bench) -> None:
    put(bench, b"a", tags="Aa", keys=["k"], properties={"colour": "red"}, message_id="order-1")
    (one,) = take(bench, lease=60)
    assert bench.store.bury(json.loads(json.dumps(one.receipt))) is AckResult.BURIED
    again = [bench.store.bury(one), bench.store.ack(one), bench.store.nack(one)]
    assert again == [AckResult.SETTLED] * 3
    bench.turn()
    (dead,) = letters(bench)
    for name in (*SAME, "attempt"):
        assert getattr(dead, name) == getattr(one, name), name
    assert (dead.group, dead.properties["colour"], dead.store_ms) == ("g", "red", NOW)
    assert not {"TS_LEASE", "RETRY_TOPIC"} & dead.properties.keys()
    assert [m.body for m in bench.out(DEAD)] == [b"a"]
    bench.turn(DAY)
    assert take(bench) == []
    assert bench.out(RETRY) == []
    assert list(bench.store.pending()) == []


def test_bury_of_a_later_attempt_and_of_the_last_one(bench: Bench) -> None:
    put(bench, b"a", b"b")
    for one in take(bench, lease=60):
        bench.store.nack(one, delay=0)
    bench.turn()
    (a,) = take(bench, 1, lease=60, max_attempts=2)
    (b,) = take(bench, 1, lease=60, max_attempts=3)
    assert (a.attempt, a.is_last_attempt, b.is_last_attempt) == (2, True, False)
    assert [bench.store.bury(one) for one in (a, b)] == [AckResult.BURIED] * 2
    bench.turn()
    assert [(one.body, one.attempt) for one in letters(bench)] == [(b"a", 2), (b"b", 2)]


def test_bury_changes_nothing_when_the_lease_is_over_or_of_another_store(
    bench: Bench, tmp_path: Path
) -> None:
    put(bench, b"a")
    (one,) = take(bench, lease=1)
    bench.turn(1000)
    assert bench.store.bury(one) is AckResult.EXPIRED
    assert letters(bench) == []
    assert bodies(take(bench)) == [b"a"]
    other = Bench(tmp_path / "other")
    assert other.store.bury(one) is AckResult.UNKNOWN
    assert DEAD not in other.store.topics()
    other.close()
    with pytest.raises(MessageError, match="receipt"):
        bench.store.bury("what")


def test_bury_takes_a_receipt_of_an_earlier_opening(bench: Bench) -> None:
    put(bench, b"a")
    (one,) = take(bench, lease=60)
    bench.reopen()
    assert bench.store.bury(one) is AckResult.BURIED
    bench.reopen()
    assert bench.store.bury(one) is AckResult.SETTLED
    bench.turn(DAY)
    assert [m.body for m in letters(bench)] == [b"a"]
    assert take(bench) == []


def test_bury_changes_nothing_when_the_disk_is_full(bench: Bench) -> None:
    put(bench, b"a")
    (one,) = take(bench, lease=60)
    bench.turn()
    with before_space(bench, "reschedule", full), pytest.raises(FullError):
        bench.store.bury(one)
    assert letters(bench) == []
    assert bench.store.ack(one) is AckResult.ACKED


# --- dead_letters ---


def test_dead_letters_are_those_of_the_group_and_topic(bench: Bench) -> None:
    for topic in ("t", "u"):
        bench.store.put(topic, topic.encode())
    bench.turn()
    for topic, group in (("t", "g"), ("u", "g"), ("t", "h")):
        assert bench.store.receive(topic, group, lease=1, max_attempts=1)
    bench.turn(1000)
    assert [(one.topic, one.body) for one in letters(bench)] == [("t", b"t"), ("u", b"u")]
    assert [one.body for one in letters(bench, "u")] == [b"u"]
    assert [(one.group, one.topic) for one in bench.store.dead_letters("h")] == [("h", "t")]
    assert list(bench.store.dead_letters("nothing")) == []
    for wrong in (1, "", "a b", None):
        with pytest.raises(MessageError, match="group"):
            bench.store.dead_letters(wrong)  # type: ignore[arg-type]
    with pytest.raises(MessageError, match="topic"):
        bench.store.dead_letters("g", topic="a b")


def test_many_dead_letters_are_read_page_by_page(bench: Bench) -> None:
    bench.store.put_many("t", [b"%04d" % k for k in range(1000)])
    bench.turn()
    take(bench, 1000, lease=1, max_attempts=1)
    bench.turn(1000)
    found = bench.store.dead_letters("g")
    assert [one.body for one in islice(found, 2)] == [b"0000", b"0001"]
    assert bench.store.requeue("g", [one.receipt for one in islice(found, 100)]) == 100
    left = letters(bench)
    assert [int(one.body) for one in left] == [0, 1, *range(102, 1000)]
    assert bench.store.requeue("g") == 900
    assert letters(bench) == []
    bench.turn()
    assert sorted(int(one.body) for one in take(bench, 1000)) == list(range(1000))


# --- requeue ---


def test_requeued_message_comes_again_as_the_first_attempt(bench: Bench) -> None:
    put(bench, b"a", tags="Aa", keys=["k"], properties={"colour": "red"})
    for _ in range(3):
        (one,) = take(bench, lease=1, max_attempts=3)
        bench.turn(1000)
    (dead,) = letters(bench)
    assert dead.attempt == 3
    assert bench.store.requeue("g", dead) == 1
    assert letters(bench) == []
    bench.turn()
    for attempt in (1, 2, 3):
        (again,) = take(bench, lease=1, max_attempts=3)
        assert (again.attempt, again.is_last_attempt) == (attempt, attempt == 3)
        for name in SAME:
            assert getattr(again, name) == getattr(one, name), name
        assert again.properties["colour"] == "red"
        bench.turn(1000)
    (second,) = letters(bench)
    assert second.receipt != dead.receipt
    assert bench.store.requeue("g", dead.receipt) == 0
    assert bench.store.requeue("g", second) == 1
    bench.turn()
    (again,) = take(bench, lease=1)
    assert bench.store.ack(again) is AckResult.ACKED
    bench.turn(DAY)
    assert (take(bench), letters(bench)) == ([], [])


def test_requeue_is_for_the_group_only(bench: Bench) -> None:
    put(bench, b"a")
    (mine,) = take(bench, lease=60)
    (other,) = bench.store.receive("t", "other", lease=60)
    bench.store.ack(other)
    bench.store.bury(mine)
    bench.turn()
    assert bench.store.requeue("g") == 1
    bench.turn()
    assert bench.store.receive("t", "other", max_count=10) == []
    assert bodies(take(bench)) == [b"a"]
    assert len(bench.out("t")) == 1


def test_requeue_of_one_several_a_topic_and_all(bench: Bench) -> None:
    found = bury(bench, *(b"%d" % k for k in range(6)))
    assert bench.store.requeue("g", found[4]) == 1
    assert bench.store.requeue("g", [found[1].receipt, found[4], found[1]]) == 1
    assert bench.store.requeue("g", topic="u") == 0
    assert bench.store.requeue("g", found[0], topic="u") == 0
    assert [one.body for one in letters(bench)] == [b"0", b"2", b"3", b"5"]
    bench.turn()
    assert bodies(take(bench)) == [b"4", b"1"]
    assert bench.store.requeue("g", topic="t") == 4
    assert bench.store.requeue("g") == 0
    assert bench.store.requeue("g", []) == 0
    bench.turn()
    assert bodies(take(bench)) == [b"0", b"2", b"3", b"5"]


def test_requeue_continues_when_the_disk_has_space_again(bench: Bench) -> None:
    bury(bench, b"a", b"b")
    bench.turn()
    serve = inside(bench.store).log.provide

    def no_space(status: int, need: int, what: str) -> None:
        serve(status, need, what)
        full()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inside(bench.store).log, "provide", no_space)
        inside(bench.store).log.native.append_limit = 0
        with pytest.raises(FullError):
            bench.store.requeue("g")
    assert [one.body for one in letters(bench)] == [b"a", b"b"]
    assert bench.store.requeue("g") == 2
    bench.turn()
    assert bodies(take(bench)) == [b"a", b"b"]


def test_waiting_receive_gets_a_requeued_message(tmp_path: Path) -> None:
    with timerstore.open(tmp_path, small()) as store:
        store.put("t", b"a")
        (one,) = store.receive("t", "g", wait=10)
        store.bury(one)
        while not list(store.dead_letters("g")):
            store.flush()
        assert store.requeue("g") == 1
        assert store.receive("t", "g", wait=10)[0].body == b"a"


def test_requeue_rejects_wrong_letters_and_requeues_nothing(bench: Bench, tmp_path: Path) -> None:
    (dead,) = bury(bench, b"a")
    other = Bench(tmp_path / "other")
    (theirs,) = bury(other, b"b")
    other.close()
    receipt = read_letter(dead.receipt)
    assert bench.store.requeue("g", write_letter(receipt._replace(queue_id=7))) == 0
    assert bench.store.requeue("g", write_letter(receipt._replace(queue_offset=7))) == 0
    far = write_letter(receipt._replace(queue_offset=2**63))
    for wrong, why in (
        (["x"], r"letters\[0\]: dead letter: wanted the receipt of one"),
        ([dead, 5], r"letters\[1\]: dead letter: wanted a DeadLetter or its receipt, got"),
        ([dead, theirs], r"letters\[1\]: dead letter: wanted one of store"),
        (b"x", "letters: wanted several"),
        (5, "letters: wanted several"),
        ("x" * 9999, "dead letter"),
        (dead.receipt[:-8], "dead letter"),
        (far, "out of its range"),
    ):
        with pytest.raises(MessageError, match=why):
            bench.store.requeue("g", wrong)  # type: ignore[arg-type]
    with pytest.raises(MessageError, match="wanted one of group 'h', got one of group 'g'"):
        bench.store.requeue("h", dead)
    with pytest.raises(MessageError, match="group"):
        bench.store.requeue("a b")
    assert [one.body for one in letters(bench)] == [b"a"]


def test_letter_of_another_program_must_name_its_topic(bench: Bench) -> None:
    bench.store.put(DEAD, b"plain")
    bench.turn()
    (plain,) = letters(bench)
    assert (plain.topic, plain.attempt) == (DEAD, 0)
    with pytest.raises(MessageError, match="dead letter 0 of queue 0 of group 'g': wanted the "):
        bench.store.requeue("g", plain)
    assert bench.store.requeue("g", topic="t") == 0
    assert [one.body for one in letters(bench)] == [b"plain"]


# --- after a crash ---


@pytest.mark.parametrize("checkpoint", [False, True])
def test_requeue_survives_a_restart_and_a_kill(
    bench: Bench, tmp_path: Path, *, checkpoint: bool
) -> None:
    found = bury(bench, b"a", b"b", b"c")
    assert bench.store.requeue("g", found[1]) == 1
    if checkpoint:
        bench.store.flush()
    killed(bench, tmp_path / "killed")
    bench.turn()
    assert [one.body for one in letters(bench)] == [b"a", b"c"]
    assert bench.store.requeue("g", found) == 2
    bench.reopen()
    assert bench.store.requeue("g") == 0
    bench.turn()
    assert sorted(bodies(take(bench, lease=60))) == [b"a", b"b", b"c"]
    killed(bench, tmp_path / "again")
    assert bench.store.requeue("g", found) == 0
    assert letters(bench) == []


def test_kill_in_the_middle_of_a_requeue_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dead letters are of two topics in turn, so each has an append of its own."""
    bench = Bench(tmp_path / "store", replace(small(), flush="sync"))
    for k in range(6):
        bench.store.put("tu"[k % 2], b"%d" % k)
    bench.turn()
    for k in range(6):
        (one,) = bench.store.receive("tu"[k % 2], "g", lease=60)
        bench.store.bury(one)
    bench.turn()
    copies: list[Path] = []

    def hook(name: str) -> None:
        if name == "requeue_appended":
            copies.append(tmp_path / f"killed-{len(copies)}")
            shutil.copytree(bench.root, copies[-1])

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", hook)
        assert bench.store.requeue("g") == 6
    bench.close()
    assert len(copies) == 6
    for number, copy in enumerate(copies, 1):
        found = Bench(copy)
        found.turn()
        left = letters(found)
        assert len(left) == 6 - number
        assert found.store.requeue("g") == len(left)
        found.turn()
        got = [m for topic in "tu" for m in found.store.receive(topic, "g", max_count=9)]
        assert sorted(int(one.body) for one in got) == list(range(6))
        found.close()


# --- a read-only store ---


def test_read_only_store_lists_dead_letters(bench: Bench) -> None:
    found = bury(bench, b"a", b"b", b"c")
    bench.store.requeue("g", found[0])
    bench.store.flush()
    with timerstore.open(bench.root, read_only=True, clock=bench.clock) as reader:
        seen = list(reader.dead_letters("g"))
        assert [(one.body, one.receipt) for one in seen] == [
            (one.body, one.receipt) for one in found[1:]
        ]
        assert bench.store.requeue("g", seen[0]) == 1
        bench.turn()
        bench.store.flush()
        assert [one.body for one in reader.dead_letters("g")] == [b"c"]
        with pytest.raises(ReadOnlyError, match="requeue"):
            reader.requeue("g")
        with pytest.raises(ReadOnlyError, match="bury"):
            reader.bury("x")


def test_property_that_ends_like_the_mark_hides_no_dead_letter(bench: Bench) -> None:
    bury(bench, b"a", b"b")
    first, second = letters(bench)
    store_id = read_letter(first.receipt).store_id
    place = read_letter(second.receipt)
    mark = f"{store_id:08x} 0 0 {place.queue_id} {place.queue_offset} 0 0 0 0 0 0"
    bench.store.put(RETRY, b"x", properties={"XTS_LEASE": mark})
    bench.turn()
    assert [one.body for one in letters(bench)] == [b"a", b"b"]
    assert bench.store.requeue("g") == 2


def test_buried_message_is_a_dead_letter_if_the_clock_is_set_back(bench: Bench) -> None:
    put(bench, b"a")
    (one,) = take(bench, lease=60)
    rescheduler = bench.store._engine.rescheduler
    move = rescheduler.reschedule_handle

    def set_back(*given: object) -> object:
        bench.clock.set(bench.clock.now_ms - 5000)
        return move(*given)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rescheduler, "reschedule_handle", set_back)
        assert bench.store.bury(one) is AckResult.BURIED
    assert [one.body for one in letters(bench)] == [b"a"]


def test_requeue_is_durable_with_asynchronous_flush(bench: Bench) -> None:
    bury(bench, b"a")
    assert bench.store.requeue("g") == 1
    log = inside(bench.store).log
    assert log.durable == log.end


def test_bury_of_a_settled_message_makes_no_topic(bench: Bench) -> None:
    put(bench, b"a")
    (one,) = take(bench, lease=60)
    bench.store.ack(one)
    assert bench.store.bury(one) is AckResult.SETTLED
    assert DEAD not in bench.store.topics()


def test_foreign_dead_letter_does_not_stop_the_others(bench: Bench) -> None:
    bury(bench, b"a", b"b")
    bench.store.put(DEAD, b"foreign")
    bench.turn()
    with pytest.raises(MessageError, match=r"RETRY_TOPIC.*; requeue: 2 others were requeued"):
        bench.store.requeue("g")
    assert [one.body for one in letters(bench)] == [b"foreign"]
    bench.turn()
    assert bodies(take(bench)) == [b"a", b"b"]
