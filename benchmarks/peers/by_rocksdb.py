"""RocksDB, through rocksdict: one column family by (due, row), one by number of arrival."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path

from benchmarks.peers import contract
from benchmarks.peers.contract import Peer

KEY = struct.Struct(">cQQ")
WAITING, READY = b"w", b"y"
SYNC_S = 1.0


class InRocksdb:
    """A write batch a batch; where reading goes on is kept in memory, so tombstones are skipped."""

    def __init__(self, root: Path) -> None:
        from rocksdict import Options, Rdict, WriteBatch  # noqa: PLC0415  # it may be missing

        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(128 << 20)
        options.set_max_write_buffer_number(4)
        options.increase_parallelism(2)
        options.set_bytes_per_sync(1 << 20)
        self._root = root
        self._base = Rdict(str(root), options)
        self._batch = partial(WriteBatch, raw_mode=True)
        self._from = KEY.pack(WAITING, 0, 0)
        self._arrived = self._taken = 0

    def schedule(self, due: list[int], first: int, bodies: list[bytes]) -> None:
        change, pack = self._batch(), KEY.pack
        rows = zip(due, range(first, first + len(due)), bodies, strict=True)
        for due_ms, row, body in rows:
            change.put(pack(WAITING, due_ms, row), body)
        self._base.write(change)
        # A new message may be due before the last moved one.
        self._from = min(self._from, pack(WAITING, min(due), 0))

    def move(self, now_ms: int, limit: int) -> int:
        change, pack, place = self._batch(), KEY.pack, self._arrived
        until = pack(WAITING, now_ms + 1, 0)
        first, last, moved = self._from, None, 0
        reader = self._base.iter()
        reader.seek(first)
        while moved < limit and reader.valid() and (key := reader.key()) < until:
            change.put(pack(READY, 0, place + moved), reader.value())
            last = key
            moved += 1
            reader.next()
        if last is not None:
            after = last + b"\0"
            change.delete_range(first, after)
            self._base.write(change)
            self._from = after
            self._arrived += moved
        return moved

    def take(self, limit: int) -> list[bytes]:
        count = min(limit, self._arrived - self._taken)
        if not count:
            return []
        first = KEY.pack(READY, 0, self._taken)
        found: list[bytes] = []
        reader = self._base.iter()
        reader.seek(first)
        while len(found) < count and reader.valid():
            found.append(reader.value())
            reader.next()
        self._taken += len(found)
        change = self._batch()
        change.delete_range(first, KEY.pack(READY, 0, self._taken))
        self._base.write(change)
        return found

    def sync(self) -> None:
        self._base.flush_wal(True)

    def ram_bytes(self) -> int:
        return contract.own_ram_bytes(self._root)

    def close(self) -> None:
        self._base.close()


PEERS = (
    Peer(
        key="rocksdb",
        name="RocksDB",
        variant="WAL, sync 1 s",
        durability="up to 1 s is lost in a power cut",
        tuned="4 memtables of 128 MiB, two background threads, ranges deleted, cursors in memory",
        work=partial(contract.drive, InRocksdb, SYNC_S),
        missing=partial(contract.module_missing, "rocksdict"),
        paced=partial(contract.drive_paced, InRocksdb, SYNC_S),
    ),
)
