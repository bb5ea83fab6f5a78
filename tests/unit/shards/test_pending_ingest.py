"""Committed rows that are not in every shard's log yet are found and reported."""

from pathlib import Path

import pyarrow as pa
import pytest

import timerstore
from timerstore import ConfigError, shards
from timerstore._engine.storage.disk import Disk
from timerstore.shards import pending_ingest as untaken_module
from timerstore.shards.cluster import ensure
from timerstore.shards.pending_ingest import PendingPart, pending_parts, refuse_pending


def _commit(root: Path, version: int) -> None:
    keys = [f"k{k}" for k in range(9)]
    rows = pa.table({"topic": ["t"] * 9, "body": [b"x"] * 9, "key": keys, "deliver_ms": [0] * 9})
    part = shards.stage(root, "s", version, "a", rows.to_batches())
    shards.commit(root, "s", version, [part])


def test_all_versions_are_pending_when_shards_were_never_opened(tmp_path: Path) -> None:
    root = tmp_path / "shards"
    ensure(Disk(), root, 2, None)
    assert pending_parts(root) == []
    _commit(root, 0)
    assert pending_parts(root) == [PendingPart("s", 0, (0, 1))]
    with pytest.raises(ConfigError, match=r"run ingest first .* is not in shards \[0, 1\]"):
        refuse_pending(root, 60.0)  # no process has them open, so this does not wait
    shards.ingest(root)
    assert pending_parts(root) == []


def test_refuse_pending_waits_for_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "shards"
    with timerstore.open_shards(root, 2) as store:
        _commit(root, 0)
        looks = []

        def look_again(_s: float) -> None:
            looks.append(pending_parts(root))
            store.flush()

        monkeypatch.setattr(untaken_module.time, "sleep", look_again)
        refuse_pending(root, 60.0)
        assert pending_parts(root) == []
        assert looks[:1] in ([], [[PendingPart("s", 0, (0, 1))]])  # as quick as the owner is
