"""ShardedStore: routing, answers that name their shard, many stores as one."""

import json
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support.bench import NOW, small
from tests.support.inside import inside
from tests.support.shards import ShardBench
from timerstore import (
    CancelResult,
    ClosedError,
    ConfigError,
    CorruptError,
    LockedError,
    MessageError,
    TimerStore,
)
from timerstore._engine.base import message_fields
from timerstore._engine.storage.disk import Disk
from timerstore.errors import FailedError, FormatVersionError, FullError
from timerstore.shards import cluster
from timerstore.shards.shard_ingest import IngestService
from timerstore.testing import ManualClock


def _shard(key: str, n: int = 3) -> int:
    return zlib.crc32(key.encode()) % n


def test_a_key_decides_by_crc32(shards: ShardBench) -> None:
    for k in range(50):
        receipt = shards.store.put("t", b"x", keys=[f"key-{k}", "second"])
        assert receipt.shard == _shard(f"key-{k}") == shards.store.shard_of(f"key-{k}")
        array = np.array([f"key-{k}", "other"])
        assert shards.store.put("t", b"x", keys=array).shard == receipt.shard  # type: ignore[arg-type]
    assert shards.store.put("t", b"x", keys="é").shard == zlib.crc32("é".encode()) % 3


def test_without_a_key_shards_take_turns(shards: ShardBench) -> None:
    went = [shards.store.put("t", b"x").shard for _ in range(9)]
    assert sorted(went) == sorted(list(range(3)) * 3)


def test_handles_name_their_shard_and_survive_reopening(shards: ShardBench) -> None:
    receipts = [shards.store.put("t", b"%d" % k, keys=f"k{k}", delay=60) for k in range(12)]
    assert {one.shard for one in receipts} == {0, 1, 2}
    for one in receipts:
        assert one.handle.startswith(f"s{one.shard:05d}.")
    shards.reopen()
    assert shards.store.cancel(receipts[0].handle) == CancelResult.CANCELLED
    assert shards.store.cancel(receipts[0]) == CancelResult.ALREADY_CANCELLED
    moved = shards.store.reschedule(receipts[1].handle, delay=90)
    assert moved.shard == receipts[1].shard
    assert moved.handle != receipts[1].handle
    assert moved.message_id == receipts[1].message_id
    shards.turn(60_000)
    assert shards.counted() == {b"%d" % k: 1 for k in range(2, 12)}
    shards.turn(30_000)
    assert shards.counted() == {b"%d" % k: 1 for k in range(1, 12)}


def test_many_are_cancelled_in_their_shards_and_answered_in_order(shards: ShardBench) -> None:
    receipts = [shards.store.put("t", b"%d" % k, keys=f"k{k}", delay=60) for k in range(12)]
    shards.store.cancel(receipts[5])
    asked = [receipts[11], *(one.handle for one in receipts[4:7]), receipts[0]]
    wrong = "s00002.@"
    with pytest.raises(MessageError, match=r"receipts_or_handles\[5\]: handle"):
        shards.store.cancel_many([*asked, wrong])
    answers = shards.store.cancel_many(asked)
    wanted = [CancelResult.CANCELLED] * 5
    wanted[2] = CancelResult.ALREADY_CANCELLED
    assert answers == wanted
    shards.turn(60_000)
    assert shards.counted() == {b"%d" % k: 1 for k in (1, 2, 3, 7, 8, 9, 10)}


@pytest.mark.parametrize(
    "handle", ["", "djEgb3JkZXJz", "s00003.djEg", "s3.djEg", "s00000.", "s00001.@", 5, None]
)
def test_a_handle_that_names_no_shard_is_refused(shards: ShardBench, handle: object) -> None:
    with pytest.raises(MessageError, match="handle"):
        shards.store.cancel(handle)  # type: ignore[arg-type]


def test_put_many_goes_by_key_and_answers_in_order(shards: ShardBench) -> None:
    keys = [f"k{k % 20}" for k in range(200)]
    bodies = [b"%d" % k for k in range(200)]
    due = [NOW + 1000 + k for k in range(200)]
    batch = shards.store.put_many("t", bodies, deliver_ms=due, keys=keys)
    assert len(batch) == 200
    assert [one.shard for one in batch] == [_shard(key) for key in keys]
    assert [one.due_ms for one in batch] == due
    assert len(set(batch.message_ids)) == 200
    assert shards.store.cancel(batch.handles[7]) == CancelResult.CANCELLED
    assert shards.store.cancel(batch[8]) == CancelResult.CANCELLED
    shards.turn(5000)
    for shard, found in enumerate(shards.bodies()):
        wanted = [b for b, key in zip(bodies, keys, strict=True) if _shard(key) == shard]
        assert found == [b for b in wanted if b not in (b"7", b"8")]


def _repeatable(tmp_path: Path) -> ShardBench:
    return ShardBench(tmp_path / "ids", 3, small(dedupe_window_ms=60_000))


def test_a_message_id_put_again_meets_itself(tmp_path: Path) -> None:
    bench = _repeatable(tmp_path)
    for k in range(20):
        first = bench.store.put("t", b"x", message_id=f"id-{k}")
        again = bench.store.put("t", b"x", message_id=f"id-{k}")
        assert (first.shard, first.duplicate, again.duplicate) == (_shard(f"id-{k}"), False, True)
        assert again.shard == first.shard
        assert again.message_id == first.message_id == f"id-{k}"
    keyed = [bench.store.put("t", b"x", keys="k", message_id="id") for _ in range(2)]
    assert [(one.shard, one.duplicate) for one in keyed] == [
        (_shard("k"), False),
        (_shard("k"), True),
    ]
    bench.turn()
    assert bench.counted() == {b"x": 21}
    bench.close()


@pytest.mark.parametrize("as_buffer", [False, True])
def test_put_many_with_message_ids(tmp_path: Path, as_buffer: bool) -> None:
    bench = _repeatable(tmp_path)
    texts = ["" if k % 5 == 4 else f"id-{k}" for k in range(40)]
    keys: list[str | None] = [f"k{k}" if k % 2 else None for k in range(40)]
    raw = [one.encode() for one in texts]
    given = (b"".join(raw), np.cumsum([0, *map(len, raw)])) if as_buffer else texts
    bodies = [b"%d" % k for k in range(40)]
    first, again = (bench.store.put_many("t", bodies, keys=keys, message_ids=given) for _ in "12")
    for k, one in enumerate(first):
        if keys[k] or texts[k]:
            assert one.shard == again[k].shard == _shard(keys[k] or texts[k])
        assert (one.duplicate, again[k].duplicate) == (False, bool(texts[k]))
        assert not texts[k] or one.message_id == again[k].message_id == texts[k]
    bench.turn()
    assert bench.counted() == {b"%d" % k: 1 if texts[k] else 2 for k in range(40)}
    with pytest.raises(MessageError, match="message_ids: wanted one entry for each of 2"):
        bench.store.put_many("t", [b"a", b"b"], message_ids=["x"])
    bench.close()


def test_atomic_is_of_one_shard(tmp_path: Path) -> None:
    bench = _repeatable(tmp_path)
    with pytest.raises(MessageError, match=r"atomic: wanted messages of one shard.*\[0, 1, 2\]"):
        bench.store.put_many("t", [b"x"] * 9, keys=[f"k{k}" for k in range(9)], atomic=True)
    with pytest.raises(MessageError, match="atomic"):
        bench.store.put_many("t", [b"x"] * 9, message_ids=[f"i{k}" for k in range(9)], atomic=True)
    bench.turn()
    assert bench.counted() == {}
    mixed = bench.store.put_many("t", [b"a", b"b", b"c"], keys=[None, "k", None], atomic=True)
    assert {one.shard for one in mixed} == {_shard("k")}
    bench.store.put_many("t", [b"d", b"e"], atomic=True)
    bench.turn()
    assert sorted(map(sorted, filter(None, bench.bodies()))) in (
        [[b"a", b"b", b"c"], [b"d", b"e"]],
        [[b"a", b"b", b"c", b"d", b"e"]],
    )
    bench.close()


def test_ids_at_their_limit_are_checked_before_any_shard_stores(tmp_path: Path) -> None:
    bench = _repeatable(tmp_path)
    name = "i" * message_fields.MESSAGE_ID_BYTES_MAX
    keys = ["k0", next(f"k{k}" for k in range(9) if _shard(f"k{k}") != _shard("k0"))]
    longest = None
    for size in range(message_fields.room_bytes(bench.config.record_bytes_max, b"t"), 0, -1):
        bodies = [b"small", bytes(size)]
        try:
            bench.store.put_many("t", bodies, keys=keys, message_ids=["", name])
        except MessageError:
            continue
        longest = size
        break
    bench.turn()
    assert bench.counted() == {b"small": 1, bytes(longest or 0): 1}, "none was left by a refusal"
    bench.close()


def test_put_many_without_keys_stays_together(shards: ShardBench) -> None:
    data = np.frombuffer(b"abcdef", np.uint8)
    one = shards.store.put_many("t", (data, np.arange(7)))
    two = shards.store.put_many("t", [b"g", b"h"])
    assert len({receipt.shard for receipt in one}) == 1
    assert {receipt.shard for receipt in one} != {receipt.shard for receipt in two}
    assert len(shards.store.put_many("t", [])) == 0
    mixed = shards.store.put_many("t", [b"i", b"j", b"k"], keys=["i", (), "k"])
    assert (mixed[0].shard, mixed[2].shard) == (_shard("i"), _shard("k"))


def test_put_many_stores_nothing_where_one_row_is_wrong(shards: ShardBench) -> None:
    keys = [f"k{k}" for k in range(30)]
    wrong = [
        {"keys": [*keys[:-1], "two words"]},
        {"keys": keys[:-1]},
        {"keys": keys, "deliver_ms": NOW + 10**15},
        {"keys": keys, "queue_id": -1},
        {"keys": keys, "tags": ""},
        {"keys": [*keys[:-1], "k" * 40_000]},
    ]
    before = shards.store.stats()["log_end_bytes"]
    for given in wrong:
        with pytest.raises(MessageError):
            shards.store.put_many("t", [b"x"] * 30, **given)
    with pytest.raises(MessageError, match="topic"):
        shards.store.put_many("no such.topic", [b"x"] * 30, keys=keys)
    assert shards.store.stats()["log_end_bytes"] == before


def test_put_many_stores_nothing_where_timers_are_off_and_one_row_is_due_later(
    tmp_path: Path,
) -> None:
    bench = ShardBench(tmp_path / "s", 3, small(timer_enabled=False))
    keys = [f"k{k}" for k in range(30)]
    due = np.array([0 if _shard(key) else NOW + 3_600_000 for key in keys])
    with pytest.raises(MessageError, match="timers are off"):
        bench.store.put_many("t", [b"x"] * 30, keys=keys, deliver_ms=due)
    assert "t" not in bench.store.topics()
    bench.store.put_many("t", [b"x"] * 30, keys=keys, deliver_ms=np.minimum(due, NOW))
    bench.turn()
    assert bench.counted() == {b"x": 30}
    bench.close()


def test_a_histogram_begins_by_the_stores_clock(shards: ShardBench) -> None:
    for k in range(9):
        shards.store.put("t", b"x", keys=f"k{k}", deliver_ms=NOW + 60_000 * (k + 1))
    shards.turn()
    found = shards.store.histogram()
    alone = shards.store.stores[0].histogram()
    assert found.edges.tolist() == alone.edges.tolist()
    assert int(found.counts.sum()) == 9


def test_pending_is_in_order_of_due_over_all_shards(shards: ShardBench) -> None:
    for k in (5, 3, 9, 1, 7, 2, 8):
        shards.store.put("t", b"%d" % k, keys=f"k{k}", delay=k)
    shards.turn()
    found = list(shards.store.pending())
    assert [one.due_ms for one in found] == [NOW + 1000 * k for k in (1, 2, 3, 5, 7, 8, 9)]
    assert [one.due_ms for one in shards.store.pending(begin_ms=NOW + 8000)] == [
        NOW + 8000, NOW + 9000,
    ]  # fmt: skip
    assert {shards.store.cancel(one.handle) for one in found} == {CancelResult.CANCELLED}


def test_query_asks_every_shard(shards: ShardBench) -> None:
    for k in range(6):
        shards.store.put("t", b"%d" % k, keys=[f"k{k}", "common"])
    shards.store.put("t", b"waits", keys="common", delay=60)
    shards.turn()
    found = shards.store.query("t", "common")
    assert {one.body for one in found} == {b"waits", *(b"%d" % k for k in range(6))}
    for one in found:
        first = one.keys[0]
        assert one.shard == _shard(first)
    waiting = next(one for one in found if one.waits)
    assert shards.store.cancel(waiting.handle) == CancelResult.CANCELLED
    assert len(shards.store.query("t", "common", max_count=2)) == 2


def test_query_keeps_each_shards_order_when_the_clock_was_set_back(shards: ShardBench) -> None:
    for k in range(12):
        shards.store.put("t", b"%d" % k, keys=[f"k{k}", "common"])
        shards.clock.set(shards.clock.now_ms - 1000)
    shards.turn()
    found = shards.store.query("t", "common")
    assert len(found) == 12
    for shard in range(3):
        bodies = [int(one.body) for one in found if one.shard == shard]
        assert bodies == sorted(bodies)


def test_pull_names_a_shard(shards: ShardBench) -> None:
    shard = shards.store.put("t", b"x", keys="a").shard
    shards.turn()
    assert [m.body for m in shards.store.pull("t", 0, 0, shard=shard).messages] == [b"x"]
    assert shards.store.pull_batch("t", 0, 0, shard=shard)[0].body == b"x"
    for wrong in (3, -1, "0", True):
        with pytest.raises(MessageError, match="shard: wanted 0 to 2"):
            shards.store.pull("t", 0, 0, shard=wrong)  # type: ignore[arg-type]
    with pytest.raises(MessageError, match=f"shard {shard}: .*queue"):
        shards.store.pull("t", 5, 0, shard=shard)


def test_stats_add_up_and_times_are_the_worst(shards: ShardBench) -> None:
    for k in range(12):
        shards.store.put("t", b"x", keys=f"k{k}", delay=60)
    shards.turn()
    stats = shards.store.stats()
    assert stats["pending_messages"] == 12
    assert stats["pending_by_topic"] == {"t": 12}
    assert stats["shard_count"] == 3
    assert sum(one["pending_messages"] for one in stats["by_shard"]) == 12
    assert stats["delivery_lag_ms"] == 0
    for k in range(12):
        shards.store.put("t", b"x", keys=f"k{k}")
    for one in shards.store.stats()["by_shard"]:
        assert one["log_durable_bytes"] < one["log_end_bytes"]
    shards.store.flush()
    flushed = shards.store.stats()
    assert flushed["log_durable_bytes"] == flushed["log_end_bytes"]
    assert shards.store.topics()["t"] == 1


# --- consumers ---


def test_a_group_reads_all_shards_and_goes_on_where_it_committed(shards: ShardBench) -> None:
    for k in range(30):
        shards.store.put("t", b"%d" % k, keys=f"k{k}")
    shards.turn()
    with shards.store.consumer("t", "g", wait=0) as consumer:
        first = consumer.poll(10)
        assert len(first) == 10
        consumer.commit()
        rest = consumer.poll(7)
        done = consumer.commit(rest[0])
        assert list(done) == [(rest[0].shard, 0)]
    shards.reopen()
    assert sum(shards.store.committed("t", "g").values()) == 11
    with shards.store.consumer("t", "g", wait=0) as consumer:
        again = list(consumer)
        bodies = {m.body for m in [*first, rest[0], *again]}
        assert len(bodies) == 30
        assert len(again) == 19
        assert consumer.seek(time_ms=0) == {(k, 0): 0 for k in range(3)}
        assert len(list(consumer)) == 30
        consumer.commit({(1, 0): 2})
        assert shards.store.committed("t", "g")[1, 0] >= 2
        for wrong in ({0: 1}, {(3, 0): 1}, {(0,): 1}, 5, "x", []):
            with pytest.raises(MessageError, match="commit"):
                consumer.commit(wrong)  # type: ignore[arg-type]


def test_no_shard_keeps_the_others_waiting(shards: ShardBench) -> None:
    per_shard: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for k in range(60):
        per_shard[_shard(f"k{k}")].append(f"k{k}")
    for keys in per_shard.values():
        for key in keys[:10]:
            shards.store.put("t", key.encode(), keys=key)
    shards.turn()
    with shards.store.consumer("t", "g", wait=0) as consumer:
        assert {consumer.poll(10)[0].shard for _ in range(3)} == {0, 1, 2}


def test_who_waits_is_woken_by_a_message_of_any_shard(tmp_path: Path) -> None:
    with timerstore.open_shards(tmp_path / "s", 3, small()) as store:
        for shard in range(3):
            key = next(f"k{k}" for k in range(99) if _shard(f"k{k}") == shard)
            with store.consumer("t", f"g{shard}") as consumer:
                consumer.poll(100)
                got: list[timerstore.Message] = []
                waiter = threading.Thread(target=lambda c=consumer, g=got: g.append(next(c)))
                waiter.start()
                store.put("t", b"x", keys=key)
                waiter.join(30)
                assert [one.body for one in got] == [b"x"]
                consumer.commit()


def test_close_ends_who_waits(tmp_path: Path) -> None:
    store = timerstore.open_shards(tmp_path / "s", 2, small())
    consumer = store.consumer("t", "g")
    ended = threading.Event()

    def wait() -> None:
        assert list(consumer) == []
        ended.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    store.close()
    assert ended.wait(30)
    waiter.join()
    for call in (store.flush, store.stats, lambda: store.put("t", b"x"), lambda: consumer.poll(1)):
        with pytest.raises(ClosedError):
            call()
    store.close()


def test_close_beside_a_call_that_asks_every_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = timerstore.open_shards(tmp_path / "s", 3, small())
    first, topics = store.stores[0], store.stores[0].topics

    def close_right_behind() -> dict[str, int]:
        found = topics()
        monkeypatch.undo()
        store.close()
        return found

    monkeypatch.setattr(first, "topics", close_right_behind)
    with pytest.raises(ClosedError):
        store.stats()


# --- opening ---


def test_n_is_in_cluster_json_and_may_be_left_out(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with pytest.raises(ConfigError, match="not a directory of shards yet"):
        timerstore.open_shards(root)
    timerstore.open_shards(root, 2, small(), threads=False).close()
    text = (root / "cluster.json").read_bytes()
    assert json.loads(text)["shards"] == 2
    with timerstore.open_shards(root, threads=False) as store:
        assert store.shard_count == 2
    for wrong in (1, 3):
        with pytest.raises(ConfigError, match=f"has 2 shards, got {wrong}"):
            timerstore.open_shards(root, wrong)
    assert (root / "cluster.json").read_bytes() == text
    assert sorted(one.name for one in root.iterdir()) == [
        "cluster.json", "shard-00000", "shard-00001",
    ]  # fmt: skip


@pytest.mark.parametrize("n", [0, -1, 1025, 2.0, "2", True])
def test_a_wrong_number_of_shards_is_refused(tmp_path: Path, n: object) -> None:
    with pytest.raises(ConfigError, match="n: wanted 1 to 1024 shards"):
        timerstore.open_shards(tmp_path / "s", n)  # type: ignore[arg-type]
    assert not (tmp_path / "s").exists()


def test_one_locked_shard_closes_the_others(tmp_path: Path) -> None:
    root = tmp_path / "s"
    timerstore.open_shards(root, 3, small(), threads=False).close()
    with timerstore.open(root / "shard-00001", small(), threads=False):
        with pytest.raises(LockedError, match=r"shard 1: .*shard-00001"):
            timerstore.open_shards(root, threads=False)
        for free in (0, 2):
            timerstore.open(root / f"shard-{free:05d}", small(), threads=False).close()
    timerstore.open_shards(root, threads=False).close()


def test_a_shard_that_finds_no_memory_to_close_leaves_the_others_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    store = timerstore.open_shards(root, 3, small(), threads=False)
    close = TimerStore.close

    def no_memory(self: TimerStore) -> None:
        if self is store.stores[0]:
            raise MemoryError
        close(self)

    with monkeypatch.context() as patched:
        patched.setattr(TimerStore, "close", no_memory)
        with pytest.raises(MemoryError):
            store.close()
    for free in (1, 2):
        timerstore.open(root / f"shard-{free:05d}", small(), threads=False).close()
    store.close()
    timerstore.open_shards(root, threads=False).close()


def test_a_shard_that_does_not_open_closes_all_others_whatever_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    timerstore.open_shards(root, 3, small(), threads=False).close()
    close = TimerStore.close
    closed = []

    def fails(self: TimerStore) -> None:
        close(self)
        closed.append(self.path.name)
        raise FailedError("by a test")

    last = timerstore.open(root / "shard-00002", small(), threads=False)
    with monkeypatch.context() as patched:
        patched.setattr(TimerStore, "close", fails)
        with pytest.raises(LockedError, match="shard 2: ") as caught:
            timerstore.open_shards(root, threads=False)
    last.close()
    assert closed == ["shard-00000", "shard-00001"]
    assert [note.count("by a test") for note in caught.value.__notes__] == [1, 1]


def test_without_a_thread_for_ingest_none_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"

    def no_thread(_self: IngestService) -> None:
        raise FailedError("no thread")

    with monkeypatch.context() as patched:
        patched.setattr(IngestService, "start", no_thread)
        with pytest.raises(FailedError, match="no thread"):
            timerstore.open_shards(root, 2, small())
    timerstore.open_shards(root, threads=False).close()


def test_a_lost_shard_is_not_made_anew(tmp_path: Path) -> None:
    root = tmp_path / "s"
    timerstore.open_shards(root, 3, small(), threads=False).close()
    (root / "shard-00002").rename(tmp_path / "elsewhere")
    with pytest.raises(CorruptError, match="shard 2 of 3 is lost"):
        timerstore.open_shards(root, threads=False)
    assert not (root / "shard-00002").exists()


def test_shards_without_cluster_json_are_not_taken_for_new_ones(tmp_path: Path) -> None:
    root = tmp_path / "s"
    timerstore.open_shards(root, 3, small(), threads=False).close()
    (root / "cluster.json").unlink()
    with pytest.raises(CorruptError, match=r"no cluster\.json"):
        timerstore.open_shards(root, 2, threads=False)
    assert not (root / "cluster.json").exists()


def test_a_crash_while_it_is_made_leaves_what_can_be_made(tmp_path: Path) -> None:
    root = tmp_path / "s"
    (root / "shard-00000").mkdir(parents=True)  # died before cluster.json
    (root / ".cluster.json.1.ab.tmp").write_bytes(b"{")
    with timerstore.open_shards(root, 2, small(), threads=False) as store:
        assert store.shard_count == 2


def test_a_single_store_is_no_directory_of_shards(tmp_path: Path) -> None:
    timerstore.open(tmp_path / "s", small(), threads=False).close()
    with pytest.raises(ConfigError, match="single store"):
        timerstore.open_shards(tmp_path / "s", 2)


def test_of_two_makers_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "s"
    load, looks = cluster.load, []

    def slow_load(disk: object, tree: object) -> object:
        found = load(disk, tree)  # type: ignore[arg-type]
        if not looks:
            looks.append(1)
            timerstore.open_shards(root, 2, small(), threads=False).close()
        return found

    monkeypatch.setattr(cluster, "load", slow_load)
    with pytest.raises(ConfigError, match="has 2 shards, got 3"):
        timerstore.open_shards(root, 3, small(), threads=False)


def test_damaged_cluster_json_is_said(tmp_path: Path) -> None:
    root = tmp_path / "s"
    timerstore.open_shards(root, 2, small(), threads=False).close()
    file = root / "cluster.json"
    good = file.read_bytes()
    for k in range(len(good) - 1):
        bad = bytearray(good)
        bad[k] ^= 1
        file.write_bytes(bad)
        if bad.decode("utf-8", "replace").split() == good.decode().split():
            continue
        with pytest.raises((CorruptError, FormatVersionError), match=r"cluster\.json"):
            timerstore.open_shards(root, threads=False)
    for size in range(0, len(good) - 1, 7):
        file.write_bytes(good[:size])
        with pytest.raises(CorruptError):
            timerstore.open_shards(root, threads=False)
    file.write_bytes(cluster.sealed({"format": 2}))
    with pytest.raises(FormatVersionError, match="wanted 1; got 2"):
        timerstore.open_shards(root, threads=False)
    file.write_bytes(cluster.sealed({**json.loads(good), "hash": "md5", "crc": 0}))
    with pytest.raises(CorruptError):
        timerstore.open_shards(root, threads=False)
    table = json.loads(good)
    del table["crc"]
    file.write_bytes(cluster.sealed({**table, "hash": "md5"}))
    with pytest.raises(FormatVersionError, match="hash"):
        timerstore.open_shards(root, threads=False)
    file.write_bytes(cluster.sealed({**table, "config": {"of_tomorrow": 1}}))
    with pytest.raises(FormatVersionError, match="of_tomorrow"):
        timerstore.open_shards(root, threads=False)
    file.write_bytes(cluster.sealed({**table, "config": {"precision_ms": 0}}))
    with pytest.raises(CorruptError, match="precision_ms"):
        timerstore.open_shards(root, threads=False)
    file.write_bytes(good)
    timerstore.open_shards(root, threads=False).close()


def test_limits_that_writers_were_promised_must_fit(tmp_path: Path) -> None:
    root = tmp_path / "s"
    timerstore.open_shards(root, 1, small(message_bytes_max=5000), threads=False).close()
    with timerstore.open_shards(root, threads=False) as store:
        assert store.config == small(message_bytes_max=5000)
    with pytest.raises(ConfigError, match=r"message_bytes_max: .*5000, got 4999"):
        timerstore.open_shards(root, 1, small(message_bytes_max=4999), threads=False)
    timerstore.open_shards(root, 1, small(message_bytes_max=5001), threads=False).close()


def test_wrong_arguments_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="config"):
        timerstore.open_shards(tmp_path / "s", 2, {})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="clock"):
        timerstore.open_shards(tmp_path / "s", 2, clock=5)  # type: ignore[arg-type]
    assert not (tmp_path / "s").exists()
    assert ManualClock(NOW).now_ms == NOW


def test_full_error_of_put_many_counts_what_is_durable_in_all_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = ShardBench(tmp_path / "shards", 2, small(flush="sync"))
    for k in range(8):
        shards.store.put("t", b"before", keys=f"key-{k}")
    full = inside(shards.store.stores[1]).tree.commit_log
    real = Disk.open

    def open_file(disk: Disk, path: Path, *args: Any, **given: Any) -> Any:
        if path.parent == full and not path.exists():
            raise FullError("no space", where=path)
        return real(disk, path, *args, **given)

    keys = [f"key-{k}" for k in range(10_000)]
    with monkeypatch.context() as patched:
        patched.setattr(Disk, "open", open_file)
        with pytest.raises(FullError) as caught:
            shards.store.put_many("t", [bytes(300)] * 10_000, keys=keys)
    for one in shards.store.stores:
        log = inside(one).log
        assert log.durable == log.end
    shards.turn()
    assert sum(map(len, shards.bodies())) == 8 + caught.value.stored_count
    assert 4000 < caught.value.stored_count < 10_000
    shards.close()
