"""SQLite in WAL mode: a table of pending messages, and a table of ready ones."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path

from benchmarks.peers import contract
from benchmarks.peers.contract import Peer

TABLES = {
    "clustered": (
        "CREATE TABLE waiting (due INTEGER, row INTEGER, body BLOB, PRIMARY KEY (due, row))"
        " WITHOUT ROWID"
    ),
    "rowid + index": (
        "CREATE TABLE waiting (row INTEGER PRIMARY KEY, due INTEGER, body BLOB);"
        "CREATE INDEX by_due ON waiting (due, row)"
    ),
}
BEYOND = 1 << 62


class InSqlite:
    """A transaction a batch."""

    def __init__(self, root: Path, *, layout: str) -> None:
        self._root = root
        self._base = sqlite3.connect(root / "peer.sqlite", isolation_level=None)
        for setting in ("journal_mode=WAL", "synchronous=NORMAL", "cache_size=-262144",
                        "mmap_size=1073741824", "temp_store=MEMORY"):  # fmt: skip
            self._base.execute(f"PRAGMA {setting}")
        self._base.executescript(TABLES[layout])
        self._base.execute("CREATE TABLE ready (place INTEGER PRIMARY KEY, body BLOB)")

    def schedule(self, due: list[int], first: int, bodies: list[bytes]) -> None:
        rows = zip(due, range(first, first + len(due)), bodies, strict=True)
        self._base.execute("BEGIN IMMEDIATE")
        self._base.executemany("INSERT INTO waiting (due, row, body) VALUES (?, ?, ?)", rows)
        self._base.execute("COMMIT")

    def move(self, now_ms: int, limit: int) -> int:
        base = self._base
        base.execute("BEGIN IMMEDIATE")
        last = base.execute(
            "SELECT due, row FROM waiting WHERE due <= ? ORDER BY due, row LIMIT 1 OFFSET ?",
            (now_ms, limit - 1),
        ).fetchone() or (now_ms, BEYOND)
        base.execute(
            "INSERT INTO ready (body) SELECT body FROM waiting WHERE (due, row) <= (?, ?)"
            " ORDER BY due, row",
            last,
        )
        moved = base.execute("DELETE FROM waiting WHERE (due, row) <= (?, ?)", last).rowcount
        base.execute("COMMIT")
        return int(moved)

    def take(self, limit: int) -> list[bytes]:
        base = self._base
        base.execute("BEGIN IMMEDIATE")
        found = base.execute("SELECT place, body FROM ready ORDER BY place LIMIT ?", (limit,))
        taken = found.fetchall()
        if taken:
            base.execute("DELETE FROM ready WHERE place <= ?", (taken[-1][0],))
        base.execute("COMMIT")
        return [body for _, body in taken]

    def sync(self) -> None:
        pass

    def ram_bytes(self) -> int:
        return contract.own_ram_bytes(self._root)

    def close(self) -> None:
        self._base.close()


NEVER = float("inf")
PEERS = tuple(
    Peer(
        key=key,
        name="SQLite",
        variant=layout,
        durability="data since the last checkpoint of the WAL (1000 pages) is lost",
        tuned="WAL, synchronous=NORMAL, cache 256 MiB, mmap 1 GiB",
        work=partial(contract.drive, partial(InSqlite, layout=layout), NEVER),
        missing=contract.nothing_missing,
        paced=partial(contract.drive_paced, partial(InSqlite, layout=layout), NEVER),
    )
    for key, layout in (("sqlite", "clustered"), ("sqlite-index", "rowid + index"))
)
