"""timerstore/index: how much of the log the key index covers, and checksums of its files.

The file is a cache, written only by this package. If it is missing or not valid, the index is
rebuilt from the log.

Invariants:
    1. Everything it refers to was durable before it was written, including the log.
On-disk format: a line with the CRC-32 of the rest in hex, then JSON with the fields of
    IndexPosition.
"""

from typing import NamedTuple

from timerstore._engine.format.json_text import PARSE_ERRORS, Json, as_int, sealed, unsealed
from timerstore._engine.format.store_paths import is_index_name


class IndexFileState(NamedTuple):
    """One index file: the fields of its header, and CRC-32s of its contents."""

    name: str
    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    slots_used: int
    next_entry: int
    entries_crc: int  # of the entries below next_entry, without the first
    slots_crc: int | None  # None: slots and header of the file do not match these entries


class IndexPosition(NamedTuple):
    """The index of one store. Its files contain every key of the log's range [begin, end)."""

    store_id: int
    slot_count: int
    entry_count: int
    has_tags: bool
    begin: int
    end: int
    files: tuple[IndexFileState, ...]


def write(position: IndexPosition) -> bytes:
    """Return the file's bytes."""
    return sealed(position._asdict() | {"files": [one._asdict() for one in position.files]})


def read(data: bytes | None) -> IndexPosition | None:
    """Parse the file; return None if it is absent or not valid."""
    try:
        fields = unsealed(data)
        files = tuple(_file(one) for one in fields.pop("files"))
        has_tags = fields.pop("has_tags")
        numbers = {name: as_int(value, name) for name, value in fields.items()}
        return IndexPosition(**numbers, has_tags=bool(has_tags), files=files)
    except PARSE_ERRORS:
        return None


def _file(table: Json) -> IndexFileState:
    for name, value in table.items():
        if name == "name":
            if not is_index_name(value):
                raise ValueError(value)
        elif name != "slots_crc" or value is not None:
            as_int(value, name)
    return IndexFileState(**table)
