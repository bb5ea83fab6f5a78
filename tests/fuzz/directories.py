"""Fuzz directories: apply edits to the files of a store, open it, and ask all questions.

The first byte of an input chooses the golden store, the closed or the killed one. Then follow
edits: an operation, a file, and the arguments. For files with checksums, an edit may correct them,
as an attacker would.

Invariants:
    1. Any bytes give an answer or a TimerStoreError, and no other exception.
    2. No file outside of the directory changes.
"""

import atexit
import shutil
import struct
import tempfile
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.corruption.answers import ask
from tests.corruption.golden import Golden, make
from tests.fuzz.choices import Choices
from timerstore import TimerStoreError, repair, verify_directory
from timerstore._engine.format import json_text

_EDITS_MAX = 12
_GROWTH_MAX = 1 << 16


@cache
def scratch() -> Path:
    """Return the folder for stores, in memory if possible."""
    shm = Path("/dev/shm")
    made = tempfile.mkdtemp(prefix="tsfuzz", dir=shm if shm.is_dir() else None)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


@cache
def golden(is_closed: bool) -> Golden:
    return make(scratch() / f"golden-{is_closed}", is_closed=is_closed)


def damaged(choices: Choices) -> dict[str, bytes]:
    """Return the files of a golden store after the edits of an input."""
    store = golden(bool(choices.below(2)))
    files = dict(store.files)
    for _ in range(_EDITS_MAX):
        if not choices.left or not files:
            break
        operation = choices.below(32)
        name = sorted(files)[choices.below(len(files))]
        _edit(store, files, name, operation % 10, choices)
        if operation >= 16 and name in files:
            files[name] = mended(name, files[name])
    return files


def _edit(
    store: Golden, files: dict[str, bytes], name: str, operation: int, choices: Choices
) -> None:
    data = files[name]
    at = choices.number(2) % (len(data) + 1)
    if operation == 0:
        part = choices.bytes(1 + choices.below(32))
        files[name] = data[:at] + part + data[at + len(part) :]
    elif operation == 1:
        bit = 1 << choices.below(8)
        files[name] = data[:at] + bytes(one ^ bit for one in data[at : at + 1]) + data[at + 1 :]
    elif operation == 2:
        files[name] = data[:at]
    elif operation == 3:
        files[name] = (data + bytes(choices.number(2)))[:_GROWTH_MAX]
    elif operation == 4:
        del files[name]
    elif operation == 5:
        files[name] = choices.bytes(choices.number(2))
    elif operation == 6:
        files[name] = files[sorted(files)[choices.below(len(files))]]
    elif operation == 7:
        size = min(choices.number(2), len(data) - at)
        files[name] = data[:at] + bytes(size) + data[at + size :]
    elif operation == 8:
        files[name] = store.older.get(name, data)
    else:
        value = _ODD[choices.below(len(_ODD))]
        files[name] = data[:at] + value + data[at + len(value) :]


_ODD = [
    struct.pack(form, value)
    for form in (">i", ">q", "<q")
    for value in (-1, 0, 1, 2**31 - 1, -(2**31))
] + [struct.pack(">q", 2**63 - 1), struct.pack("<q", -(2**63)), b'"\\ud800"', b"[" * 2000]


def mended(name: str, data: bytes) -> bytes:
    """Correct the checksums of a file."""
    if name.startswith("commitlog/"):
        return _mended_log(int(Path(name).name), data)
    if name == "timerstore/watermark":
        return b"".join(_mended_slot(data[at : at + 512]) for at in range(0, len(data), 512))
    if name.startswith("config/") and data[-33:-32] == b"\n":
        return json_text.with_checksum(data[:-33])
    return data


def _mended_slot(slot: bytes) -> bytes:
    return slot[:120] + struct.pack("<I", zlib.crc32(slot[:120])) + slot[124:]


def _mended_log(begin: int, data: bytes) -> bytes:
    """Correct offset and CRCs of each plain record (IPv4, version 1)."""
    out, at = bytearray(data), 0
    while at + 91 <= len(out):
        size, magic = struct.unpack_from(">ii", out, at)
        (body_size,) = struct.unpack_from(">i", out, at + 84)
        if not 91 <= size <= len(out) - at or magic + 2**32 not in (0xDAA320A7, 0xDAA320AB):
            break
        if 0 <= body_size <= size - 91:
            body = zlib.crc32(out[at + 88 : at + 88 + body_size]) & 0x7FFFFFFF
            struct.pack_into(">i", out, at + 8, body)
            struct.pack_into(">q", out, at + 28, begin + at)
        end = at + size
        if out[end - 20 : end - 11] == b"__CRC32#\x01":
            crc = zlib.crc32(out[at : end - 20]) & 0x7FFFFFFF
            out[end - 11 : end - 1] = f"{crc:010d}"[::-1].encode()
        at = end
    return bytes(out)


def one_input(data: bytes) -> None:
    """Write the directory, verify it at rest, open it, and ask all questions.

    A second bit of the first byte also repairs it and opens the result.
    """
    root, repaired = scratch() / "store", scratch() / "repaired"
    for folder in (root, repaired):
        shutil.rmtree(folder, ignore_errors=True)
    root.mkdir()
    Golden(damaged(Choices(data)), is_closed=False, older={}).write(root)
    with suppress(TimerStoreError):
        verify_directory(root)
    if data[:1] and data[0] & 2:
        with suppress(TimerStoreError):
            repair(root, repaired)
            list(ask(repaired))
    with suppress(TimerStoreError):
        list(ask(root))
