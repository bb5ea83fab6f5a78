"""Tables of a directory of shards, without Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from tests.support.arrow_rows import read_rows
from tests.support.shards import ShardBench
from timerstore import tables
from timerstore.errors import ConfigError


def test_tables_of_all_shards_are_read(shards: ShardBench) -> None:
    for k in range(30):
        shards.store.put("t", b"%d" % k, keys=[f"key-{k}"], message_id=f"m{k}")
    shards.turn(2000)
    rows = read_rows(shards.root, "messages")
    mine = [row for row in rows if row["topic"] == "t"]
    assert {row["body"] for row in mine} == {b"%d" % k for k in range(30)}
    for row in mine:
        assert row["shard"] == shards.store.shard_of(row["key"].decode())
    assert {row["shard"] for row in mine} == {0, 1, 2}
    assert len(read_rows(shards.root, "messages", columns=("topic",))) == len(rows)
    assert read_rows(shards.root, "deliveries") == []


def test_unopened_shard_is_empty_and_other_paths_are_rejected(
    shards: ShardBench, tmp_path: Path
) -> None:
    shards.store.put("t", b"x", keys=["k"])
    shard = shards.store.shard_of("k")
    shards.close()
    other = (shard + 1) % 3
    shutil.rmtree(shards.root / f"shard-{other:05d}")
    (shards.root / f"shard-{other:05d}").mkdir()
    assert [row["shard"] for row in read_rows(shards.root)] == [shard]
    with pytest.raises(ConfigError, match="holds no store"):
        tables.read(tmp_path)
    with pytest.raises(ConfigError, match="table: wanted one of"):
        tables.read(shards.root, "nope")
    shutil.rmtree(shards.root / f"shard-{other:05d}")
