"""Recurring messages over several shards."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import NOW
from tests.support.shards import ShardBench
from timerstore import MessageError

MINUTE = 60_000


def every(shards: ShardBench, name: str | None = "beat", **more: Any) -> Any:
    given = {"every": 60, "name": name, **more}
    return shards.store.put_every("t", b"tick", **given)


def test_put_every_routes_by_name(shards: ShardBench) -> None:
    for name in ("beat", "nightly", "a", "b", "c"):
        made = every(shards, name, keys="some-key")
        assert (made.name, made.shard) == (name, shards.store.shard_of(name))
        assert (made.every_ms, made.next_ms) == (MINUTE, NOW + MINUTE)
    listed = shards.store.recurring()
    assert [one.name for one in listed] == ["a", "b", "beat", "c", "nightly"]
    assert [one.shard for one in listed] == [shards.store.shard_of(one.name) for one in listed]
    for _ in range(3):
        shards.turn(MINUTE)
    assert shards.counted() == {b"tick": 15}
    by_shard = [len(part) for part in shards.bodies()]
    assert by_shard == [3 * sum(one.shard == k for one in listed) for k in range(3)]


def test_put_every_may_be_repeated(shards: ShardBench) -> None:
    first = every(shards)
    shards.turn(MINUTE)
    shards.reopen()
    again = every(shards)
    assert (again.shard, again.made_ms, again.run_count) == (first.shard, first.made_ms, 2)
    assert len(shards.store.recurring()) == 1
    shards.turn(MINUTE)
    assert shards.counted() == {b"tick": 2}
    with pytest.raises(MessageError, match="'beat' recurs already, as something else"):
        every(shards, every=61)


def test_put_every_draws_name_when_none_is_given(shards: ShardBench) -> None:
    made = [every(shards, None) for _ in range(12)]
    assert len({one.name for one in made}) == 12
    assert {one.shard for one in made} <= {0, 1, 2}
    assert all(one.shard == shards.store.shard_of(one.name) for one in made)


def test_cancel_every_ends_definition(shards: ShardBench) -> None:
    every(shards)
    assert shards.store.cancel_every("other") is False
    shards.reopen()
    assert shards.store.cancel_every("beat") is True
    assert shards.store.cancel_every("beat") is False
    assert shards.store.recurring() == []
    shards.turn(10 * MINUTE)
    assert shards.counted() == {}


def test_put_every_finds_definition_of_single_shard(shards: ShardBench) -> None:
    """A program that used `stores[k]` before goes on with the whole."""
    elsewhere = (shards.store.shard_of("beat") + 1) % 3
    shards.store.stores[elsewhere].put_every("t", b"tick", every=60, name="beat")
    assert [(one.name, one.shard) for one in shards.store.recurring()] == [("beat", elsewhere)]
    with pytest.raises(MessageError, match=f"'beat' recurs in shard {elsewhere} already"):
        every(shards)
    assert shards.store.cancel_every("beat") is True
    assert every(shards).shard == shards.store.shard_of("beat")
    shards.turn(MINUTE)
    assert shards.counted() == {b"tick": 1}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"name": 5}, "name: wanted 1 to 64"),
        ({"name": ""}, "name: wanted 1 to 64"),
        ({"name": "a b"}, "name: wanted 1 to 64"),
        ({"every": 0.5}, "every: wanted at least 1000 ms"),
        ({"every": None}, "every, cron: wanted one of them, got none"),
        ({"missed": "some"}, "missed: wanted one of"),
        ({"timezone": "UTC+1"}, "timezone: goes with cron"),
    ],
)
def test_put_every_rejects_invalid_arguments(
    shards: ShardBench, given: dict[str, Any], text: str
) -> None:
    with pytest.raises(MessageError, match=text):
        every(shards, **given)
    assert shards.store.recurring() == []
    with pytest.raises(MessageError, match="name: wanted text"):
        shards.store.cancel_every(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("missed", "comes"), [("skip", 0), ("one", 1), ("all", 41)])
def test_ingest_plans_no_recurring_runs(tmp_path: Path, missed: str, comes: int) -> None:
    pa = pytest.importorskip("pyarrow")
    from tests.support.staging import batch_of
    from timerstore.shards import commit, ingest, stage

    shards = ShardBench(tmp_path, 1)
    shards.store.put_every("t", b"run", every=10, name="e", missed=missed)
    shards.turn(1000)
    shards.close()
    for version in range(4):  # as writes of Spark do while the owner is away
        shards.clock.set(shards.clock.now_ms + 100_000)
        rows = batch_of(500, deliver_at=pa.array([0] * 500), topic=["other"] * 500)
        part = stage(tmp_path, "s", version, "p", [rows], clock=shards.clock)
        commit(tmp_path, "s", version, [part])
        assert ingest(tmp_path, clock=shards.clock).row_count == 500
    shards.clock.set(shards.clock.now_ms + 9000)
    shards.open()
    shards.turn()
    assert shards.counted() == ({b"run": comes} if comes else {})
    assert shards.counted("other") == {b"body-%d" % k: 4 for k in range(500)}
    shards.turn(10_000)
    assert shards.counted()[b"run"] == comes + 1
    shards.close()
