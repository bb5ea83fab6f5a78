"""Damage files at rest in many ways.

Invariants:
    1. A case is a name and a function that changes a directory. It does nothing if its file does
       not exist, so that two cases can be applied one after the other.
"""

import struct
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from random import Random

import numpy as np

Damage = Callable[[Path], None]
Case = tuple[str, Damage]
Files = dict[str, bytes]
BLOCKS = (512, 4096)


def _edit(name: str, change: Callable[[bytearray], bytes | bytearray]) -> Damage:
    def damage(root: Path) -> None:
        path = root / name
        if path.exists():
            path.write_bytes(change(bytearray(path.read_bytes())))

    return damage


def flip(name: str, bit: int) -> Case:
    """Flip one bit of one file."""

    def change(data: bytearray) -> bytearray:
        data[bit >> 3] ^= 1 << (bit & 7)
        return data

    return f"{name} byte {bit >> 3} bit {bit & 7}", _edit(name, change)


def flips(files: Files, random: Random, per_file: int | None = None) -> list[Case]:
    """Flip every bit of every file, or a sample of each file, most of it in bytes that are not
    zero.
    """
    cases = []
    for name, data in files.items():
        bits: list[int] | range = range(8 * len(data))
        if per_file is not None:
            used = 8 * max(1, len(data.rstrip(b"\0")))
            bits = [random.randrange(used) for _ in range(per_file)]
            bits += [random.randrange(8 * len(data)) for _ in range(max(1, per_file // 8))]
        cases += [flip(name, bit) for bit in bits]
    return cases


_UNREAD_STEP = 16
_STAGING = "timerstore/staging"


def every_bit(files: Files, random: Random, *, is_closed: bool) -> tuple[list[Case], list[Case]]:
    """Flip every bit of used bytes, and a sample of reserved ones.

    The sample has a bit of each byte of the zeros at the end of a file, and of every 16th byte of a
    staging file outside its head and the ranges that the head claims.
    """
    content: list[Case] = []
    reserve: list[Case] = []
    for name, data in files.items():
        parts = [(0, len(data.rstrip(b"\0")))]
        step = 1
        if name == _STAGING:
            parts, step = ([] if is_closed else _claimed(data)), _UNREAD_STEP
        inside = np.zeros(len(data), bool)
        for begin, end in parts:
            inside[begin:end] = True
        content += [flip(name, 8 * at + bit) for at in np.flatnonzero(inside).tolist()
                    for bit in range(8)]  # fmt: skip
        reserve += [flip(name, 8 * at + random.randrange(8))
                    for at in np.flatnonzero(~inside)[::step].tolist()]  # fmt: skip
    return content, reserve


def _claimed(data: bytes) -> list[tuple[int, int]]:
    """Return the head of a killed store's staging file, and the filled ranges of its halves."""
    half_bytes, _, one, _, other = struct.unpack_from("<5q", data, 24)
    assert one or other
    return [(0, 64), (4096, 4096 + one), (4096 + half_bytes, 4096 + half_bytes + other)]


def spread(cases: list[Case], random: Random) -> list[Case]:
    """Return cases in an order in which every prefix is a sample of all files."""
    random.shuffle(cases)
    by_file: dict[str, list[Case]] = {}
    for case in cases:
        by_file.setdefault(case[0].split(" ")[0], []).append(case)
    rows = zip_longest(*by_file.values())
    return [case for row in rows for case in row if case is not None]


def _put(name: str, at: int, new: bytes) -> Damage:
    def change(data: bytearray) -> bytearray:
        data[at : at + len(new)] = new
        return data

    return _edit(name, change)


def put(name: str, at: int, new: bytes) -> Case:
    """Overwrite bytes at an offset."""
    return f"{name} {len(new)} bytes at {at}", _put(name, at, new)


def blocks(files: Files, older: Files, random: Random) -> Iterator[Case]:
    """Damage each block: zeros, ones, another block of its file, or an earlier state."""
    for name, data in files.items():
        for size in BLOCKS:
            for at in range(0, len(data), size):
                old = data[at : at + size]
                other = random.randrange(0, len(data), size)
                news = {
                    "zeros": bytes(len(old)),
                    "ones": b"\xff" * len(old),
                    f"that at {other}": data[other : other + len(old)],
                    "as it was earlier": older.get(name, b"")[at : at + size],
                    "noise": random.randbytes(len(old)),
                }
                for what, new in news.items():
                    if len(new) == len(old) and new != old:
                        yield f"{name} block of {size} at {at}: {what}", _put(name, at, new)


def truncations(files: Files, random: Random, per_file: int) -> Iterator[Case]:
    """Shorten each file by some bytes."""
    for name, data in files.items():
        for _ in range(min(per_file, len(data))):
            size = random.randrange(len(data))
            yield f"{name} cut to {size} bytes", _edit(name, lambda data, size=size: data[:size])


def cut(name: str, size: int) -> Case:
    """Change the length of a file."""
    return f"{name} cut to {size} bytes", _edit(name, lambda data: data[:size].ljust(size, b"\0"))


def delete(name: str) -> Case:
    """Delete a file."""
    return f"{name} deleted", lambda root: (root / name).unlink(missing_ok=True)


def zero(name: str) -> Case:
    """Fill a file with zeros."""
    return f"{name} zeroed", _edit(name, lambda data: bytes(len(data)))


def garble(name: str) -> Case:
    """Fill a file with random bytes."""
    return f"{name} garbled", _edit(name, lambda data: Random(name).randbytes(len(data)))


def empty(name: str) -> Case:
    """Empty a file."""
    return f"{name} emptied", _edit(name, lambda _data: b"")


def extra(folder: str) -> Iterator[Case]:
    """Add a file that does not belong to the store."""
    for name in ("stray", "00000000000000000001", "99999999999999999999", "x.tmp"):

        def damage(root: Path, name: str = name) -> None:
            (root / folder).mkdir(parents=True, exist_ok=True)
            (root / folder / name).write_bytes(b"what is this")

        yield f"{folder}/{name} is there", damage


def both(one: Case, other: Case) -> Case:
    """Apply two cases, one after the other."""

    def damage(root: Path) -> None:
        one[1](root)
        other[1](root)

    return f"{one[0]}, {other[0]}", damage


def kind_of(name: str) -> str:
    """Return the kind of a file."""
    return name.rsplit("/", 1)[0] if name[-1].isdigit() and "/" in name else name


def one_of_each_kind(files: Files) -> list[str]:
    """Return one file of each kind, the last one if there are several."""
    kinds: dict[str, str] = {}
    for name in sorted(files):
        kind = "consumequeue" if name.startswith("consumequeue/") else kind_of(name)
        kinds[kind] = name
    return sorted(kinds.values())


def pairs(files: Files) -> Iterator[Case]:
    """Return every pair of (delete, zero, garble) for the kinds of files."""
    names = one_of_each_kind(files)
    ways = (delete, zero, garble)
    for n, one in enumerate(names):
        for other in names[n + 1 :]:
            for way in ways:
                for second in ways:
                    yield both(way(one), second(other))
