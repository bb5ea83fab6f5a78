"""Make the first inputs of every fuzz target from the structures of a golden store.

    python -m tests.fuzz.seeds     # writes native/fuzz/corpus and tests/fuzz/corpus

Inputs that fuzzing added stay: only files with the prefix `seed-` are written.
"""

import json
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import timerstore
from tests.corruption.golden import CONFIG, NOW_MS, Golden, make
from tests.fuzz.decoders import DECODERS
from timerstore._engine.format import handle, ledger_cache, ledger_json
from timerstore.testing import ManualClock

_ROOT = Path(__file__).parents[2]
NATIVE = _ROOT / "native" / "fuzz" / "corpus"
PYTHON = _ROOT / "tests" / "fuzz" / "corpus"
_SMALL = b"\x05\x00"
"""The number 0 in the encoding of native/fuzz/fuzz.h."""


_INFINITE = (
    b'{"entries":[{"log_end":100,"pending":{"a":{"0":1e999}},"ends":{},"levels":{},'
    b'"level_pending":{},"ids":[0,0,0]}]}'
)


def _number(value: int) -> bytes:
    return b"\x28" + struct.pack(">Q", value * 2)


def _records(log: bytes) -> list[bytes]:
    """Yield the records of a segment."""
    found, at = [], 0
    while at + 91 <= len(log):
        size, magic = struct.unpack_from(">iI", log, at)
        if magic not in (0xDAA320A7, 0xDAA320AB):
            break
        found.append(log[at : at + size])
        at += size
    return found


_MARKS = tuple(
    b"TIMER_DEL TS_LEVEL TIMER_ROLL TS_GROUP TIMER_DEQUEUE DELAY rmq_sys_wheel SCHEDULE TS_ONCE "
    b"TAGS rmq_sys_timerstore".split()
)


def _chosen(records: list[bytes]) -> list[bytes]:
    """Return one record of each kind, and three consecutive ones."""
    sorts: dict[tuple[bytes, ...], bytes] = {}
    for one in records:
        sorts.setdefault(tuple(mark for mark in _MARKS if mark in one), one)
    return [*sorts.values(), b"".join(records[:3])]


def _properties(record: bytes) -> bytes:
    body_size = struct.unpack_from(">i", record, 84)[0]
    at = 88 + body_size
    return record[at + 1 + record[at] + 2 :]


def _native(store: Golden) -> Iterator[tuple[str, bytes]]:
    logs = [data for name, data in sorted(store.files.items()) if name.startswith("commitlog/")]
    records = [one for log in logs for one in _records(log)]
    for one in _chosen(records):
        yield "record", b"\x01" + _SMALL + b"\x01\x03" + one
        yield "queue_unit", b"\x01\x02" + _SMALL + b"\x03\x07\x0d\x01" + b"\x01\x03" + one
        yield "copies", (_number(NOW_MS + 10**6) + b"\x05\x03" * 12)[:32] + b"\x01\x03" + one
        yield "columns", b"\x07\x00\x01\x03\x00" + _SMALL + one
    for one in _chosen(records)[:-1]:
        yield "properties", _properties(one)
    yield "record", b"\x01" + _SMALL + b"\x01\x00" + b"".join(records[:2]) + _blank(64)
    wheel, units = store.files["timerwheel"], _timer_log(store)
    used = b"".join(
        wheel[at : at + 32] for at in range(0, len(wheel), 32) if any(wheel[at : at + 32])
    )
    far = next(data for name, data in sorted(store.files.items()) if "/far/" in name)
    for sealed in (b"\x00", b"\x01"):
        yield "far", sealed + bytes([104 - 60]) + _number(0) + _number(1) + far[:312]
        yield "far", sealed + bytes([104 - 60]) + _number(4) + _number(5) + _far(6)
    for count in (1, 4):
        yield "timer_log", _SMALL + b"\x02" + bytes([count - 1]) + b"\x01\x00" + (
            _slots(count) + _units(count)
        )  # fmt: skip
    yield "timer_log", _SMALL + b"\x02\x0f\x01\x00" + used[:512].ljust(512, b"\0") + units[:416]
    for slots in (_slots(4), bytes(128)):
        requests = b"".join(
            bytes([n]) + _number((1000 + n) * 1000) + bytes([n, n % 3]) for n in range(6)
        )
        yield "link", b"\x03" + struct.pack(">Q", 1000 << 24) + b"\x80\x05" + slots + requests
    for name in ("config/timercheck", "checkpoint"):  # of a closed store
        yield "small", store.files.get(name, bytes(range(64)))[:56]
    yield "small", b"1800000000000"
    yield "small", b"AAAAAAAAAAAAAAAAAAAAAAAA"
    index = next(data for name, data in store.files.items() if name.startswith("index/"))
    yield "small", index[:40]
    yield "index", struct.pack(">Q", 9 << 33) + _index()
    yield "filter", b"\x01\x01\x04\x05paidgreen" + b"\x0b\x0bTAGS\x01paid\x02aTAGS\x01late\x02b"
    for way in range(4):
        yield "rows", bytes([way, 1]) + _number(1_000_000) + b"\x01" + (
            _number(5) + _number(9_000_000) + b"\x04\x05\x00\x07\x04\x00\x03\x02\x02\x02"
            b"bodybodya\x01b\x02c\x01\x02tagskeysid12"
        )  # fmt: skip
    yield "shards", b"\x03\x01\x02\x02\x03abcde"
    yield "shards", b"\x03\x00\x02" + struct.pack(">qq", 2, 1) + b"abc"


def _blank(size: int) -> bytes:
    return struct.pack(">iIq", size, 0xCBD43194, 0).ljust(size, b"\0")


def _timer_log(store: Golden) -> bytes:
    return next(data for name, data in store.files.items() if name.startswith("timerlog/"))


def _slots(count: int) -> bytes:
    return b"".join(
        struct.pack(">qqqii", n + 8 * count, 52 * n, 52 * n, 1, 0) for n in range(count)
    )


def _units(count: int) -> bytes:
    return b"".join(
        struct.pack(">iqiqiqiiq", 52, -1, 1, (n + 8 * count) * 1000, 0, 100 * n, 120, 7, 0)
        for n in range(count)
    )


def _far(count: int) -> bytes:
    """Return the units of one far slot, each linked to the previous one."""
    return b"".join(
        struct.pack(">qqqqqiiI", n - 1, n, 100 * n, NOW_MS, 4, 120, 7, 0) for n in range(count)
    )


def _index() -> bytes:
    header = struct.pack(">qqqqii", NOW_MS, NOW_MS + 5000, 100, 300, 1, 4)
    slots = struct.pack(">8i", 0, 3, 0, 0, 0, 0, 0, 0)
    entries = [(0, 0, 0, 0), (9, 100, 0, 0), (1, 200, 2, 1), (9, 300, 5, 2)]
    return header + slots + b"".join(struct.pack(">iqii", *one) for one in entries)


def _python(store: Golden, root: Path) -> Iterator[tuple[str, bytes]]:
    for n, text in enumerate(_decoded(store, root)):
        for one in text:
            yield "decoders", bytes([n]) + one
    # Inputs that once raised another error than a TimerStoreError.
    for n in (5, 6, 8):
        yield "decoders", bytes([n]) + b"[" * 1200
    yield "decoders", b"\x08" + _INFINITE
    # closed or killed; operation (16 more: checksums corrected), file, arguments
    for operation in (0, 1, 2, 3, 4, 6, 7, 8, 9, 25, 17, 16):
        for file in (0, 20) if operation % 2 else (9, 33):
            yield "directories", bytes([operation % 2, operation, file, 0, 40, 3, 1, 255, 255, 0])
    for name in ("watermark", "topics.json", "timercheck", "lock"):
        at = next(n for n, file in enumerate(sorted(store.files)) if file.endswith(name))
        for operation in (4, 2, 9, 25):
            yield "directories", bytes([1, operation, at, 0, 8, 1, 0, 0])


def _decoded(store: Golden, root: Path) -> list[list[bytes]]:
    """Return inputs for each decoder, by its position in the list."""
    files, marks = store.files, store.files["timerstore/watermark"]
    old = handle.encode(handle.Handle("orders", "broker", NOW_MS, "00FF", 7))
    source = ledger_json.SourceState("table", ((1, 1),), (ledger_json.Done(1, 4, 9),), ())
    cache = ledger_cache.LedgerCache(1, 2, 3, (source,))
    chunk = ledger_json.ChunkHeader("table", 1, 0, 4, 4, 99, 7, True)
    table = next(data for name, data in files.items() if name.startswith("timerstore/far-"))
    zlib_body = b"\x00\x01" + bytes.fromhex("789c4b4c4a06000 24d0127".replace(" ", ""))
    found = [
        [files["config/topics.json"]],
        [files["config/consumerOffset.json"]],
        [files["config/delayOffset.json"], b'{"offsetTable":{1:5},"dataVersion":{}}'],
        [files["config/timermetrics"]],
        [marks],
        [files["timerstore/index"], files["timerstore/index"].partition(b"\n")[2]],
        [ledger_cache.write(cache), ledger_cache.write(cache).partition(b"\n")[2]],
        [ledger_json.write_chunk(chunk), ledger_json.write_state(source)],
        [files["timerstore/counts"]],
        [(root / "backup.json").read_bytes()],
        [(root / "backup.json").read_bytes()],
        [old.encode(), b"not base64"],
        [files["timerstore/state"][:1024]],
        [b"orders", b"00000000000000000100", b"20270115080000000"],
        [zlib_body, b"\x00\x00plain"],
        [b"a\x01b\x02TAGS\x01x\x02"],
        [b"a > 5 AND b IN ('x', 'y') OR NOT c IS NULL", b"d BETWEEN 1 AND 2", b"b CONTAINS 'x'"],
        [b"a || b", b"*"],
        [b'{"format":1,"source":"s","version":1,"files":[]}'],
        [table, table[:-4]],
    ]
    assert len(found) == len(DECODERS)
    return found


def main() -> None:
    """Write all seeds."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        closed = make(scratch / "closed", is_closed=True)
        killed = make(scratch / "killed", is_closed=False)
        closed.write(scratch / "saved")
        clock = ManualClock(NOW_MS)
        with timerstore.open(scratch / "saved", CONFIG, clock=clock, threads=False) as store:
            store.backup(scratch / "backup")
        made = [(NATIVE, one) for one in (*_native(closed), *_native(killed))]
        made += [(PYTHON, one) for one in _python(closed, scratch / "backup")]
    counts: dict[Path, int] = {}
    for root, (target, data) in made:
        folder = root / target
        folder.mkdir(parents=True, exist_ok=True)
        counts[folder] = counts.get(folder, 0) + 1
        (folder / f"seed-{counts[folder]:02d}").write_bytes(data)
    json.dump({str(one): count for one, count in counts.items()}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
