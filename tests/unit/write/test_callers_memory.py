"""Buffers that the caller changes during a put: only the bodies of that put may be wrong."""

import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support.bench import Bench
from timerstore import RowBatch, StoreConfig
from timerstore._engine.base import failpoints, message_fields
from timerstore._engine.write.append import _BATCH
from timerstore._engine.write.checked_batch import string_column
from timerstore._engine.write.ingester import check_batch

COUNT = 3 * _BATCH
BIG = 1 << 20


def test_put_many_is_safe_when_offsets_change_during_the_call(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets, id_offsets = np.arange(COUNT + 1) * 4, np.arange(COUNT + 1) * 5
    bodies = b"".join(b"%04d" % k for k in range(COUNT))
    ids = b"".join(b"%05d" % k for k in range(COUNT))

    def write(point: str) -> None:
        if point == "put_many_part_appended":
            offsets[:] = id_offsets[:] = 1 << 40

    monkeypatch.setattr(failpoints, "hook", write)
    bench.store.put_many("t", (bodies, offsets), message_ids=(ids, id_offsets), queue_id=0)
    monkeypatch.setattr(failpoints, "hook", None)
    bench.turn()
    assert bench.bodies() == [b"%04d" % k for k in range(COUNT)]
    assert [one.message_id for one in bench.out()] == [f"{k:05}" for k in range(COUNT)]


def test_checked_columns_are_copies_of_the_callers_memory() -> None:
    numbers, texts = np.array([0, 1, 2]), bytearray(b"ab")
    spans = message_fields.gather_bodies((texts, numbers), 9)
    column = string_column("keys", texts, numbers, 2)
    batch = RowBatch(topic="t", bodies=texts, body_offsets=numbers, due_ms=numbers[1:])
    checked = check_batch(batch, StoreConfig(), 1 << 20, 1000)
    assert column is not None
    for mine in (spans.offsets, column[1], checked.due_ms):
        assert not np.shares_memory(mine, numbers)
    assert type(column[0]) is bytes


class _Writer:
    """A thread that writes to the end of a buffer all the time."""

    def __init__(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._is_over = False
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()

    def _write(self) -> None:
        number = 0
        while not self._is_over:
            number = (number + 1) % 256
            self._buffer[-8:] = bytes([number]) * 8


@pytest.mark.parametrize("way", ["put", "put_many", "replace"])
@pytest.mark.parametrize("property_crc", [True, False])
def test_changed_body_has_a_valid_crc(tmp_path: Path, way: str, property_crc: bool) -> None:
    config = StoreConfig(flush="async", property_crc=property_crc)
    body = bytearray(BIG)
    calls: dict[str, Any] = {
        "put": lambda store: store.put("t", body),
        "put_many": lambda store: store.put_many("t", (body, np.array([0, 1, 2, 3, 4, BIG]))),
        "replace": lambda store: store.put("t", body, delay=9.0, key="k", replace=True),
    }
    with timerstore.open(tmp_path / "s", config) as store, _Writer(body):
        for _ in range(30):
            calls[way](store)
    with timerstore.open(tmp_path / "s", config, threads=False) as store:
        assert not store.verify().problems
        batch = store.pull_batch("t", 0, 0, max_count=200)
        for number, one in enumerate(batch.body_list()):
            assert zlib.crc32(one) & 0x7FFFFFFF == int(batch.body_crc[number])
