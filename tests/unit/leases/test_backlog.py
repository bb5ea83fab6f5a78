"""`backlog` and the statistics of groups, compared with a model through every change."""

import random
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import Bench, small
from tests.support.driver import abandon
from tests.support.leasing import put, take
from tests.support.retaining import SIZES, fill
from tests.support.served_bench import ServedBench
from timerstore import CorruptError, GroupBacklog, LeasedMessage, MessageError, ReadOnlyError
from timerstore._engine.format.lease import read_receipt
from timerstore._engine.leases.dead_letters import CountedLetters
from timerstore._engine.leases.lease_timers import _SPARE_IDS

NOTHING = GroupBacklog(0, 0, 0, 0, 0)


def counts(bench: Bench, topic: str = "t", group: str = "g") -> tuple[int, int, int, int]:
    """Return ready, leased, in back-off, dead; and check that `stats` has the same numbers."""
    found = bench.store.backlog(topic, group)
    stats = bench.store.stats()
    key = f"{topic}@{group}"
    if key in stats["group_ready_messages"]:
        names = ("ready_messages", "leased_messages", "backoff_messages", "dead_letters")
        shown = [stats[f"group_{name}"][key] for name in names]
        assert shown == [found.ready, found.leased, found.in_backoff, found.dead_letters]
        assert stats["group_oldest_ms"][key] == found.oldest_ms
    else:
        assert found.leased == found.in_backoff == found.dead_letters == 0
    return found.ready, found.leased, found.in_backoff, found.dead_letters


def killed(bench: Bench, to: Path) -> None:
    """Continue with a copy of the files, as after a kill."""
    shutil.copytree(bench.root, to)
    abandon(bench.store)
    bench.root = to
    bench.open()


def test_backlog_of_a_new_group_is_the_whole_topic(bench: Bench) -> None:
    assert bench.store.backlog("t", "g") == NOTHING
    put(bench, b"1", b"2")
    bench.store.put("t", b"later", delay=60)
    assert counts(bench) == (2, 0, 0, 0)
    assert bench.store.stats()["group_ready_messages"] == {}


def test_messages_that_retention_removed_are_not_ready(tmp_path: Path) -> None:
    with closing(Bench(tmp_path / "store", SIZES)) as bench:
        put(bench, *[bytes(100)] * 25)
        fill(bench, bench.store.stats()["log_end_bytes"])
        put(bench, b"new")
        first = bench.store.pull("t", 0, 0).min_offset
        assert first > 0
        assert counts(bench) == (26 - first, 0, 0, 0)


def test_dead_letters_that_retention_removed_are_not_counted(tmp_path: Path) -> None:
    with closing(Bench(tmp_path / "store", SIZES)) as bench:
        most = 0
        for _ in range(25):
            put(bench, bytes(900))
            bench.store.bury(*take(bench))
            bench.turn()
            dead = len(list(bench.store.dead_letters("g")))
            assert counts(bench)[3] == dead
            most = max(most, dead)
        assert dead < 25, "retention removed some"
        assert most > 2


def test_each_change_moves_a_message_to_another_count(bench: Bench) -> None:
    put(bench, b"1", b"2", b"3", b"4")
    one, two, three = take(bench, 3, lease=60)
    assert counts(bench) == (1, 3, 0, 0)
    bench.store.ack(one)
    assert counts(bench) == (1, 2, 0, 0)
    bench.store.nack(two, delay=30)
    assert counts(bench) == (1, 1, 1, 0)
    bench.store.bury(three)
    bench.turn()
    assert counts(bench) == (1, 0, 1, 1)
    bench.turn(30_000)
    assert counts(bench) == (2, 0, 0, 1)
    assert bench.store.requeue("g") == 1
    bench.turn()
    assert counts(bench) == (3, 0, 0, 0)


def test_extended_lease_stays_a_lease(bench: Bench) -> None:
    put(bench, b"1", b"2")
    one, two = take(bench, 2, lease=60, max_attempts=1)
    bench.store.extend(one, lease=100)
    assert counts(bench) == (0, 2, 0, 0)
    bench.turn(61_000)
    assert counts(bench) == (0, 1, 0, 1)
    bench.store.nack(two)
    bench.turn(60_000)
    assert counts(bench) == (0, 0, 0, 2)


@pytest.mark.parametrize("attempts", [None, 1])
def test_renewed_lease_stays_a_lease(bench: Bench, tmp_path: Path, attempts: int | None) -> None:
    put(bench, b"1")
    (one,) = take(bench, 1, lease=60, max_attempts=attempts)
    for lease in (100, 200):
        bench.store.renew(one, lease=lease)
        assert counts(bench) == (0, 1, 0, 0)
    killed(bench, tmp_path / "copy")
    bench.turn(61_000)
    assert counts(bench) == (0, 1, 0, 0)
    bench.store.renew(one, lease=300)
    bench.turn(200_000)
    assert counts(bench) == (0, 1, 0, 0)
    bench.turn(101_000)
    assert counts(bench) == ((1, 0, 0, 0) if attempts is None else (0, 0, 0, 1))


def test_last_attempts_count_in_their_topic(bench: Bench) -> None:
    """The dead-letter topic is one for all topics of a group."""
    for topic in ("a", "b"):
        bench.store.put_many(topic, [b"1", b"2"])
    bench.turn()
    bench.store.receive("a", "g", max_count=2, lease=60, max_attempts=1)
    bench.store.receive("b", "g", max_count=1, lease=90, max_attempts=1)
    assert counts(bench, "a") == (0, 2, 0, 0)
    assert counts(bench, "b") == (1, 1, 0, 0)
    bench.turn(61_000)
    assert counts(bench, "a") == (0, 0, 0, 2)
    assert counts(bench, "b") == (1, 1, 0, 0)


def test_oldest_is_the_age_of_the_first_message_to_receive(bench: Bench) -> None:
    put(bench, b"1")
    bench.turn(5000)
    put(bench, b"2")
    bench.turn(1000)
    first_ms = bench.store.backlog("t", "g").oldest_ms
    assert 6000 <= first_ms < 6100
    (one,) = take(bench, 1, lease=600)
    assert 1000 <= bench.store.backlog("t", "g").oldest_ms < 1100
    take(bench, 1, lease=600)
    assert bench.store.backlog("t", "g").oldest_ms == 0
    bench.store.nack(one, delay=0)
    bench.turn(2000)
    assert 2000 <= bench.store.backlog("t", "g").oldest_ms < 2100
    bench.clock.set(bench.clock.now_ms - 60_000)
    assert bench.store.backlog("t", "g").oldest_ms == 0, "no age is below 0"


def test_group_of_consumers_counts_what_it_has_not_committed(bench: Bench) -> None:
    put(bench, b"1", b"2", b"3")
    with bench.store.consumer("t", "g") as consumer:
        consumer.poll(2, 0)
        assert counts(bench) == (3, 0, 0, 0)
        consumer.commit()
        assert counts(bench) == (1, 0, 0, 0)
    assert bench.store.stats()["group_ready_messages"] == {"t@g": 1}


@pytest.mark.parametrize("ends", ["reopen", "kill"])
def test_counts_survive_the_end_of_a_process(bench: Bench, tmp_path: Path, ends: str) -> None:
    put(bench, *(b"%d" % k for k in range(8)))
    one, two, three, four, five = take(bench, 5, lease=600)
    (six,) = take(bench, 1, lease=600, max_attempts=1)
    bench.store.nack(one, delay=500)
    bench.store.extend(two, lease=700)
    bench.store.bury(three)
    bench.store.extend(six, lease=800)
    bench.turn()
    assert counts(bench) == (2, 4, 1, 1)
    if ends == "kill":
        killed(bench, tmp_path / "copy")
    else:
        bench.reopen()
    assert counts(bench) == (2, 4, 1, 1)
    bench.store.nack(four, delay=50)
    bench.store.ack(five)
    assert counts(bench) == (2, 2, 2, 1)
    bench.turn(51_000)
    assert counts(bench) == (3, 2, 1, 1)
    again = take(bench, 3)
    assert [one.body for one in again if one.attempt == 2] == [four.body]
    assert not [one for one in again if "TIMER_BACKOFF" in one.properties]


class Model:
    """What a group has done with its messages."""

    def __init__(self) -> None:
        self.now = 0
        self.known = 0  # messages that were put
        self.ready = 0
        self.leases: list[tuple[int, bool, LeasedMessage]] = []  # end, is last, message
        self.backoffs: list[int] = []  # ends
        self.dead = 0

    def pass_time(self, ms: int) -> None:
        self.now += ms
        over = [one for one in self.leases if one[0] <= self.now]
        self.leases = [one for one in self.leases if one[0] > self.now]
        self.dead += sum(is_last for _, is_last, _ in over)
        self.ready += sum(not is_last for _, is_last, _ in over)
        self.ready += sum(end <= self.now for end in self.backoffs)
        self.backoffs = [end for end in self.backoffs if end > self.now]

    @property
    def counts(self) -> tuple[int, int, int, int]:
        return self.ready, len(self.leases), len(self.backoffs), self.dead


@pytest.mark.parametrize("seed", range(6))
def test_counts_equal_a_model(bench: Bench, tmp_path: Path, seed: int) -> None:
    dice, model = random.Random(seed), Model()
    begin_ms = bench.clock.now_ms

    def step() -> None:
        bench.turn()
        model.pass_time(bench.clock.now_ms - begin_ms - model.now)

    for number in range(120):
        action = dice.choice(
            [
                "put",
                "put",
                "receive",
                "receive",
                "ack",
                "nack",
                "extend",
                "renew",
                "bury",
                "wait",
                "requeue",
            ]
        )
        if action == "put":
            bench.store.put_many("t", [b"x"] * dice.randint(1, 4))
            step()
            model.ready += new_count(bench, model)
        elif action == "receive":
            limit = dice.choice([None, 2])
            lease = dice.choice([20, 300])
            for one in take(bench, dice.randint(1, 5), lease=lease, max_attempts=limit):
                model.ready -= 1
                end = one.lease_until_ms - begin_ms
                model.leases.append((end, one.is_last_attempt, one))
        elif action == "wait":
            bench.turn(dice.choice([5_000, 60_000]))
        elif action == "requeue":
            assert bench.store.requeue("g") == model.dead
            model.ready, model.dead = model.ready + model.dead, 0
        elif model.leases:
            settle(bench, model, dice, action, begin_ms)
        step()
        if number % 40 == 39:
            killed(bench, tmp_path / f"copy-{number}")
            step()
        assert counts(bench) == model.counts, (number, action)


def new_count(bench: Bench, model: Model) -> int:
    """Return how many messages of the topic the model does not know yet."""
    known, model.known = model.known, bench.store.pull("t", 0, 0, max_count=1).max_offset
    return model.known - known


def settle(bench: Bench, model: Model, dice: random.Random, action: str, begin_ms: int) -> None:
    at = dice.randrange(len(model.leases))
    _, is_last, one = model.leases.pop(at)
    if action == "ack":
        assert bench.store.ack(one) == "ACKED"
    elif action == "bury":
        assert bench.store.bury(one) == "BURIED"
        model.dead += 1
    elif action == "renew":
        end_ms = bench.store.renew(one, lease=200)
        model.leases.append((end_ms - begin_ms, is_last, one))
    elif action == "extend":
        receipt = bench.store.extend(one, lease=200)
        again: Any = type(one)(**{**fields_of(one), "receipt": receipt})
        model.leases.append((bench.clock.now_ms - begin_ms + 200_000, is_last, again))
    else:
        delay = dice.choice([0, 30])
        end = bench.clock.now_ms - begin_ms + 1000 * delay
        assert bench.store.nack(one, delay=delay) == "NACKED"
        if is_last:
            model.dead += 1
        elif delay:
            model.backoffs.append(end)
        else:
            model.ready += 1


def fields_of(one: LeasedMessage) -> dict[str, Any]:
    return {
        name: getattr(one, name) for name, field in one.__dataclass_fields__.items() if field.init
    }


def test_longest_properties_that_can_be_leased_have_room_for_the_mark(bench: Bench) -> None:
    def is_leased(size: int) -> bool:
        bench.store.put(f"t{size:05}", b"a", properties={"p": "v" * size})
        bench.turn()
        try:
            return bool(bench.store.receive(f"t{size:05}", "g", lease=600))
        except MessageError:
            return False

    low, high = 0, 32_400
    while high - low > 1:
        size = (low + high) // 2
        low, high = (size, high) if is_leased(size) else (low, size)
    bench.store.put("t00000", b"a", properties={"p": "v" * low})
    bench.turn()
    (one,) = bench.store.receive("t00000", "g", lease=60)
    assert bench.store.nack(one, delay=60) == "NACKED"
    assert counts(bench, "t00000") == (0, 0, 1, 0)


# --- every kind of store ---


def test_backlog_through_a_server_is_that_of_the_store(tmp_path: Path) -> None:
    served = ServedBench(Bench(tmp_path / "store"), tmp_path / "s")
    try:
        put(served.bench, b"1", b"2")
        take(served.bench, 1)
        remote = served.connect()
        assert remote.backlog("t", "g") == served.bench.store.backlog("t", "g")
        assert remote.stats()["group_leased_messages"] == {"t@g": 1}
    finally:
        served.close()


def test_backlog_of_shards_is_the_sum(tmp_path: Path) -> None:
    with timerstore.open_shards(tmp_path / "shards", 2, small(flush="sync")) as shards:
        for key in range(20):
            shards.put("t", b"x", keys=str(key))
        parts = [one.backlog("t", "g") for one in shards.stores]
        assert [bool(one.ready) for one in parts] == [True, True]
        assert shards.backlog("t", "g").ready == 20
        shards.receive("t", "g", max_count=5)
        found = shards.backlog("t", "g")
        assert (found.ready, found.leased) == (15, 5)
        stats = shards.stats()
        assert stats["group_leased_messages"] == {"t@g": 5}
        oldest = [one["group_oldest_ms"].get("t@g", 0) for one in stats["by_shard"]]
        assert stats["group_oldest_ms"] == {"t@g": max(oldest)}


@pytest.mark.parametrize("damaged", ["dead letter", "lease"])
def test_damage_hides_the_counts_of_a_group_and_nothing_else(
    tmp_path: Path, damaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = timerstore.open(tmp_path, small())
    store.put_many("t", [b"1", b"2"])
    store.receive("t", "other", wait=10)
    one, two = store.receive("t", "g", wait=10, max_count=2, lease=60)
    store.bury(one)
    (letter,) = store.dead_letters("g")
    offset = {"dead letter": letter.log_offset, "lease": read_receipt(two.receipt).log_offset}
    store.close()
    with (tmp_path / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(offset[damaged] + 4)
        file.write(b"\xff" * 4)
    with timerstore.open(tmp_path, small()) as store:
        with pytest.raises(CorruptError):
            store.backlog("t", "g")
        stats = store.stats()
        assert stats["log_end_bytes"] > 0
        assert "t@g" not in stats["group_ready_messages"]
        assert ("t@other" in stats["group_ready_messages"]) is (damaged == "dead letter")
    assert "not counted" in caplog.text


class TimeLimitError(Exception):
    """Raised by a signal handler."""


def test_dead_letter_is_counted_once_after_an_interrupted_count(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bench, b"1", b"2")
    for one in take(bench, 2):
        bench.store.bury(one)
    bench.turn()
    add = CountedLetters.add

    def interrupted(counted: CountedLetters, *letter: Any) -> None:
        add(counted, *letter)
        raise TimeLimitError

    with monkeypatch.context() as patched:
        patched.setattr(CountedLetters, "add", interrupted)
        with pytest.raises(TimeLimitError):
            bench.store.backlog("t", "g")
    assert counts(bench) == (0, 0, 0, 2)


def test_read_only_store_names_the_reason(bench: Bench) -> None:
    put(bench, b"1")
    bench.close()
    with (
        timerstore.open(bench.root, read_only=True) as store,
        pytest.raises(ReadOnlyError, match="counts leases"),
    ):
        store.backlog("t", "g")
    bench.open()


@pytest.mark.parametrize(
    ("topic", "group"), [("", "g"), ("t", ""), (7, "g"), ("t", None), ("a b", "g")]
)
def test_invalid_names_are_rejected(bench: Bench, topic: Any, group: Any) -> None:
    with pytest.raises(MessageError, match=r"(topic|group): wanted 1 to 255"):
        bench.store.backlog(topic, group)


# --- cost ---


def test_later_calls_read_no_pending_message(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bench, b"1", b"2")
    take(bench, 1, lease=600)
    bench.reopen()
    bench.store.put_many("t", [b"x"] * 2000, delay=3600)
    assert counts(bench) == (1, 1, 0, 0)

    def read(*_: object) -> None:
        raise AssertionError("the pending messages were read")

    monkeypatch.setattr(bench.store._engine.pending, "entries", read)
    assert counts(bench) == (1, 1, 0, 0)


def test_memory_of_returned_messages_is_bounded(bench: Bench) -> None:
    bench.store.put("t", b"x")
    bench.turn()
    for _ in range(3):
        (one,) = take(bench, 1)
        bench.store.nack(one, delay=0.001)
        bench.turn(10)
    kinds = bench.store._engine.lease_kinds.in_backoff
    for timer_id in range(3 * _SPARE_IDS):
        kinds.add("t", "g", timer_id)
    assert len(kinds._ids["t", "g"]) <= _SPARE_IDS + 1
