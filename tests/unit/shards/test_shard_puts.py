"""Puts into several shards: routing, batches, message ids."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bench import NOW, small
from tests.support.inside import inside
from tests.support.shards import ShardBench, shard_of
from timerstore import (
    CancelResult,
    ConflictError,
    MessageError,
)
from timerstore._engine.base import message_fields
from timerstore._engine.base.message_fields import PROPERTIES_HEADROOM_BYTES
from timerstore._engine.storage.disk import Disk
from timerstore.errors import FullError


def test_put_routes_by_crc32_of_key(shards: ShardBench) -> None:
    for k in range(50):
        receipt = shards.store.put("t", b"x", keys=[f"key-{k}", "second"])
        assert receipt.shard == shard_of(f"key-{k}") == shards.store.shard_of(f"key-{k}")
        array = np.array([f"key-{k}", "other"])
        assert shards.store.put("t", b"x", keys=array).shard == receipt.shard  # type: ignore[arg-type]
    assert shards.store.put("t", b"x", keys="é").shard == zlib.crc32("é".encode()) % 3


def test_put_distributes_round_robin_when_without_key(shards: ShardBench) -> None:
    went = [shards.store.put("t", b"x").shard for _ in range(9)]
    assert sorted(went) == sorted(list(range(3)) * 3)


def test_put_many_routes_by_key_and_returns_receipts_in_order(shards: ShardBench) -> None:
    keys = [f"k{k % 20}" for k in range(200)]
    bodies = [b"%d" % k for k in range(200)]
    due = [NOW + 1000 + k for k in range(200)]
    batch = shards.store.put_many("t", bodies, deliver_ms=due, keys=keys)
    assert len(batch) == 200
    assert [one.shard for one in batch] == [shard_of(key) for key in keys]
    assert [one.due_ms for one in batch] == due
    assert len(set(batch.message_ids)) == 200
    assert shards.store.cancel(batch.handles[7]) == CancelResult.CANCELLED
    assert shards.store.cancel(batch[8]) == CancelResult.CANCELLED
    shards.turn(5000)
    for shard, found in enumerate(shards.bodies()):
        wanted = [b for b, key in zip(bodies, keys, strict=True) if shard_of(key) == shard]
        assert found == [b for b in wanted if b not in (b"7", b"8")]


def _bench_with_ids(tmp_path: Path) -> ShardBench:
    return ShardBench(tmp_path / "ids", 3, small(dedupe_window_ms=60_000))


def test_put_returns_first_receipt_when_message_id_is_repeated(tmp_path: Path) -> None:
    bench = _bench_with_ids(tmp_path)
    for k in range(20):
        first = bench.store.put("t", b"x", message_id=f"id-{k}")
        again = bench.store.put("t", b"x", message_id=f"id-{k}")
        assert (first.shard, first.duplicate, again.duplicate) == (
            shard_of(f"id-{k}"),
            False,
            True,
        )
        assert again.shard == first.shard
        assert again.message_id == first.message_id == f"id-{k}"
    keyed = [bench.store.put("t", b"x", keys="k", message_id="id") for _ in range(2)]
    assert [(one.shard, one.duplicate) for one in keyed] == [
        (shard_of("k"), False),
        (shard_of("k"), True),
    ]
    bench.turn()
    assert bench.counted() == {b"x": 21}
    bench.close()


@pytest.mark.parametrize("as_buffer", [False, True])
def test_put_many_with_message_ids(tmp_path: Path, as_buffer: bool) -> None:
    bench = _bench_with_ids(tmp_path)
    texts = ["" if k % 5 == 4 else f"id-{k}" for k in range(40)]
    keys: list[str | None] = [f"k{k}" if k % 2 else None for k in range(40)]
    raw = [one.encode() for one in texts]
    given = (b"".join(raw), np.cumsum([0, *map(len, raw)])) if as_buffer else texts
    bodies = [b"%d" % k for k in range(40)]
    first, again = (bench.store.put_many("t", bodies, keys=keys, message_ids=given) for _ in "12")
    for k, one in enumerate(first):
        if keys[k] or texts[k]:
            assert one.shard == again[k].shard == shard_of(keys[k] or texts[k])
        assert (one.duplicate, again[k].duplicate) == (False, bool(texts[k]))
        assert not texts[k] or one.message_id == again[k].message_id == texts[k]
    bench.turn()
    assert bench.counted() == {b"%d" % k: 1 if texts[k] else 2 for k in range(40)}
    with pytest.raises(MessageError, match="message_ids: wanted one entry for each of 2"):
        bench.store.put_many("t", [b"a", b"b"], message_ids=["x"])
    bench.close()


def test_atomic_put_many_needs_one_shard(tmp_path: Path) -> None:
    bench = _bench_with_ids(tmp_path)
    with pytest.raises(MessageError, match=r"atomic: wanted messages of one shard.*\[0, 1, 2\]"):
        bench.store.put_many("t", [b"x"] * 9, keys=[f"k{k}" for k in range(9)], atomic=True)
    with pytest.raises(MessageError, match="atomic"):
        bench.store.put_many("t", [b"x"] * 9, message_ids=[f"i{k}" for k in range(9)], atomic=True)
    bench.turn()
    assert bench.counted() == {}
    mixed = bench.store.put_many("t", [b"a", b"b", b"c"], keys=[None, "k", None], atomic=True)
    assert {one.shard for one in mixed} == {shard_of("k")}
    bench.store.put_many("t", [b"d", b"e"], atomic=True)
    bench.turn()
    assert sorted(map(sorted, filter(None, bench.bodies()))) in (
        [[b"a", b"b", b"c"], [b"d", b"e"]],
        [[b"a", b"b", b"c", b"d", b"e"]],
    )
    bench.close()


def test_put_many_checks_ids_before_any_shard_stores(tmp_path: Path) -> None:
    bench = _bench_with_ids(tmp_path)
    name = "i" * message_fields.MESSAGE_ID_BYTES_MAX
    keys = ["k0", next(f"k{k}" for k in range(9) if shard_of(f"k{k}") != shard_of("k0"))]
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


def test_put_many_uses_one_shard_when_without_keys(shards: ShardBench) -> None:
    data = np.frombuffer(b"abcdef", np.uint8)
    one = shards.store.put_many("t", (data, np.arange(7)))
    two = shards.store.put_many("t", [b"g", b"h"])
    assert len({receipt.shard for receipt in one}) == 1
    assert {receipt.shard for receipt in one} != {receipt.shard for receipt in two}
    assert len(shards.store.put_many("t", [])) == 0
    mixed = shards.store.put_many("t", [b"i", b"j", b"k"], keys=["i", (), "k"])
    assert (mixed[0].shard, mixed[2].shard) == (shard_of("i"), shard_of("k"))


def test_put_many_stores_nothing_when_one_row_is_invalid(shards: ShardBench) -> None:
    keys = [f"k{k}" for k in range(30)]
    room = shards.store.config.properties_bytes_max - PROPERTIES_HEADROOM_BYTES - len("t")
    wrong = [
        {"keys": [*keys[:-1], "two words"]},
        {"keys": keys[:-1]},
        {"keys": keys, "deliver_ms": NOW + 10**15},
        {"keys": keys, "queue_id": -1},
        {"keys": keys, "tags": ""},
        {"keys": [*keys[:-1], "k" * 40_000]},
        {"keys": [*keys[:-1], "k" * (room - 7)], "priority": [*[0] * 29, 3]},  # 7: KEYS and marks
    ]
    before = shards.store.stats()["log_end_bytes"]
    for given in wrong:
        with pytest.raises(MessageError):
            shards.store.put_many("t", [b"x"] * 30, **given)
    with pytest.raises(MessageError, match="topic"):
        shards.store.put_many("no such.topic", [b"x"] * 30, keys=keys)
    assert shards.store.stats()["log_end_bytes"] == before


def test_put_many_stores_nothing_when_timers_are_off_and_one_row_is_delayed(
    tmp_path: Path,
) -> None:
    bench = ShardBench(tmp_path / "s", 3, small(timer_enabled=False))
    keys = [f"k{k}" for k in range(30)]
    due = np.array([0 if shard_of(key) else NOW + 3_600_000 for key in keys])
    with pytest.raises(MessageError, match="timers are off"):
        bench.store.put_many("t", [b"x"] * 30, keys=keys, deliver_ms=due)
    assert "t" not in bench.store.topics()
    bench.store.put_many("t", [b"x"] * 30, keys=keys, deliver_ms=np.minimum(due, NOW))
    bench.turn()
    assert bench.counted() == {b"x": 30}
    bench.close()


def test_full_error_counts_durable_messages_of_all_shards(
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


@pytest.mark.parametrize(
    "given",
    [{"deliver_ms": NOW + 60_000}, {"delay": 60}, {"spread": 60}, {"delay": 6, "spread": 9}],
)
def test_repeated_id_is_compared_by_its_shard(tmp_path: Path, given: dict[str, Any]) -> None:
    bench = _bench_with_ids(tmp_path)
    store, ids, bodies = bench.store, [f"id-{k}" for k in range(9)], [b"%d" % k for k in range(9)]
    store.put_many("t", bodies, message_ids=ids, **given)
    store.put("t", b"one", message_id="one", **given)
    bench.clock.advance(7)  # a time that is derived from a delay or a spread is another one now
    again = store.put_many("t", bodies, message_ids=ids, **given)
    assert all(one.duplicate for one in again)
    assert store.put("t", b"one", message_id="one", **given).duplicate
    with pytest.raises(ConflictError, match=r"message_id 'id-3' of topic 't'.*differs in body"):
        store.put("t", b"other", message_id="id-3", **given)
    with pytest.raises(ConflictError, match=r"'id-5' of topic 't'.*differs in body"):
        store.put_many("t", [*bodies[:5], b"other"], message_ids=ids[:6], **given)
    if "deliver_ms" in given:
        with pytest.raises(ConflictError, match="differs in due time"):
            store.put_many("t", [b"3"], message_ids=["id-3"], deliver_ms=NOW + 60_001)
    bench.close()
