"""LMDB: one tree by (due, row), one by number of arrival."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path

from benchmarks.peers import contract
from benchmarks.peers.contract import Peer

MAP_BYTES = 64 << 30  # address space, not disk
KEY = struct.Struct(">QQ")


class InLmdb:
    """A transaction a batch. durable: each of them is synced."""

    def __init__(self, root: Path, *, durable: bool) -> None:
        import lmdb  # noqa: PLC0415  # it may be missing, and the other peers run all the same

        self._root = root
        self._env = lmdb.open(
            str(root), map_size=MAP_BYTES, max_dbs=2, sync=durable, metasync=durable,
            writemap=not durable, map_async=not durable, lock=False,
        )  # fmt: skip
        self._waiting = self._env.open_db(b"waiting")
        self._ready = self._env.open_db(b"ready")
        self._arrived = 0

    def schedule(self, due: list[int], first: int, bodies: list[bytes]) -> None:
        pack = KEY.pack
        rows = zip(due, range(first, first + len(due)), bodies, strict=True)
        items = [(pack(due_ms, row), body) for due_ms, row, body in rows]
        items.sort()
        with self._env.begin(write=True) as change, change.cursor(self._waiting) as cursor:
            cursor.putmulti(items)

    def move(self, now_ms: int, limit: int) -> int:
        out: list[tuple[bytes, bytes]] = []
        until = KEY.pack(now_ms + 1, 0)
        place = self._arrived
        with self._env.begin(write=True) as change:
            with change.cursor(self._waiting) as cursor:
                there = cursor.first()
                while there and len(out) < limit and cursor.key() < until:
                    out.append((KEY.pack(0, place + len(out)), cursor.value()))
                    there = cursor.delete() and bool(cursor.key())  # of the next, if there is one
            if out:
                with change.cursor(self._ready) as cursor:
                    cursor.putmulti(out, append=True)
        self._arrived += len(out)
        return len(out)

    def take(self, limit: int) -> list[bytes]:
        found: list[bytes] = []
        with self._env.begin(write=True) as change, change.cursor(self._ready) as cursor:
            there = cursor.first()
            while there and len(found) < limit:
                found.append(cursor.value())
                there = cursor.delete() and bool(cursor.key())
        return found

    def sync(self) -> None:
        self._env.sync(True)

    def ram_bytes(self) -> int:
        return contract.own_ram_bytes(self._root)

    def close(self) -> None:
        self._env.close()


LOOSE, DURABLE = partial(InLmdb, durable=False), partial(InLmdb, durable=True)
MISSING = partial(contract.module_missing, "lmdb")
PEERS = (
    Peer(
        key="lmdb",
        name="LMDB",
        variant="NOSYNC, WRITEMAP",
        durability="up to 1 s is lost in a power cut, and the file may then be corrupt as a whole",
        tuned="keys sorted a batch (putmulti), append into the ready tree, no lock file, sync 1/s",
        work=partial(contract.drive, LOOSE, 1.0),
        missing=MISSING,
        paced=partial(contract.drive_paced, LOOSE, 1.0),
    ),
    Peer(
        key="lmdb-sync",
        name="LMDB",
        variant="sync each transaction",
        durability="nothing is lost",
        tuned="keys sorted a batch (putmulti), append into the ready tree, no lock file",
        work=partial(contract.drive, DURABLE, float("inf")),
        missing=MISSING,
    ),
)
