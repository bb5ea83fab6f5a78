"""timerstore/index: how far the index reaches, and what each of its files holds.

Data:     a line with the CRC-32 of the rest in hex, then JSON: the fields of IndexPosition. Our own
          file, derived: where it is missing or does not fit, the index is built anew from the log.
Holds:    what it speaks of was durable before it was written, the log included.
"""

import json
import zlib
from typing import NamedTuple

from timerstore._engine.format.json_text import NOT_OURS, Json, as_int
from timerstore._engine.format.store_paths import is_index_name


class IndexFileState(NamedTuple):
    """One index file: its header, and what its bytes add up to."""

    name: str
    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    slots_used: int
    next_entry: int
    entries_crc: int  # CRC-32 of the entries below next_entry, the first not counted
    slots_crc: int | None  # None: the file's slots and header are not of these entries


class IndexPosition(NamedTuple):
    """The index of one store: of the log [begin, end) every key is in the files."""

    store_id: int
    slot_count: int
    entry_count: int
    has_tags: bool
    begin: int
    end: int
    files: tuple[IndexFileState, ...]


def write(position: IndexPosition) -> bytes:
    """Give the file's bytes."""
    fields = position._asdict() | {"files": [one._asdict() for one in position.files]}
    text = json.dumps(fields).encode("ascii")
    return b"%08x\n" % zlib.crc32(text) + text


def read(data: bytes | None) -> IndexPosition | None:
    """Give what the file says, None where it says nothing that holds."""
    head, _, text = (data or b"").partition(b"\n")
    try:
        if int(head, 16) != zlib.crc32(text):
            return None
        fields = json.loads(text)
        files = tuple(_file(one) for one in fields.pop("files"))
        has_tags = fields.pop("has_tags")
        numbers = {name: as_int(value, name) for name, value in fields.items()}
        return IndexPosition(**numbers, has_tags=bool(has_tags), files=files)
    except NOT_OURS:
        return None


def _file(table: Json) -> IndexFileState:
    for name, value in table.items():
        if name == "name":
            if not is_index_name(value):
                raise ValueError(value)
        elif name != "slots_crc" or value is not None:
            as_int(value, name)
    return IndexFileState(**table)
