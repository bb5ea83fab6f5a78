"""Index files: the header and the entries of each."""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

INDEX_HEADER_BYTES = 40
NEVER_INDEXED = 9223372036854775807

_INDEX_HEADER = struct.Struct(">qqqqii")
_INDEX_ENTRY = struct.Struct(">iqii")


class IndexHeader(NamedTuple):
    """The head of an index file."""

    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    slots_used: int
    next_entry: int


class IndexEntry(NamedTuple):
    """One entry of an index file; `number` is its position and is not stored."""

    number: int
    key_hash: int
    log_offset: int
    seconds: int
    previous: int


def encode_index_header(header: IndexHeader) -> bytes:
    """Return the 40 bytes of a header."""
    return _INDEX_HEADER.pack(*header)


def decode_index_header(data: bytes) -> IndexHeader:
    """Decode 40 bytes or more."""
    return IndexHeader(*_INDEX_HEADER.unpack_from(data))


def encode_index_entry(key_hash: int, log_offset: int, seconds: int, previous: int) -> bytes:
    """Return the 20 bytes of an entry."""
    return _INDEX_ENTRY.pack(key_hash, log_offset, seconds, previous)


def index_slot_position(key_hash: int, slot_count: int = 5000000) -> int:
    """Return the position of a hash's slot in the file."""
    return INDEX_HEADER_BYTES + 4 * (key_hash % slot_count)


def index_entry_position(number: int, slot_count: int = 5000000) -> int:
    """Return the position of an entry in the file; the first used entry has number 1."""
    return INDEX_HEADER_BYTES + 4 * slot_count + _INDEX_ENTRY.size * number


def index_files(root: Path) -> list[Path]:
    """Return the index files, oldest first."""
    folder = root / "index"
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if re.fullmatch(r"[0-9]{17}", path.name))


def read_index_header(path: Path) -> IndexHeader:
    """Read the head of one index file."""
    with path.open("rb") as file:
        return decode_index_header(file.read(INDEX_HEADER_BYTES))


def iter_index(path: Path, slot_count: int) -> Iterator[IndexEntry]:
    """Yield the entries of one index file, by number."""
    with path.open("rb") as file:
        header = decode_index_header(file.read(INDEX_HEADER_BYTES))
        file.seek(index_entry_position(1, slot_count))
        for number in range(1, header.next_entry):
            yield IndexEntry(number, *_INDEX_ENTRY.unpack(file.read(_INDEX_ENTRY.size)))
