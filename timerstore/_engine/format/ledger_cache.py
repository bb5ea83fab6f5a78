"""timerstore/ingest: the ledger as of a place in its queue.

Data:     a line with the CRC-32 of the rest in hex, then JSON: store_id; queue_offset: the fold of
          all records of the ledger's queue below; log_offset: where the last of them lies; sources:
          states as in ledger_json.py. Our own file, derived: where it is missing or does not fit,
          the queue is read from its beginning.
Holds:    every record that it stands for was durable before it was written.
"""

import json
import zlib
from typing import NamedTuple

from timerstore._engine.format.json_text import NOT_OURS, as_int
from timerstore._engine.format.ledger_json import SourceState, state_of, state_table


class LedgerCache(NamedTuple):
    """What is known of every source, and up to where it was read."""

    store_id: int
    queue_offset: int
    log_offset: int
    sources: tuple[SourceState, ...]


def write(cache: LedgerCache) -> bytes:
    """Give the file's bytes."""
    fields = cache._asdict() | {"sources": [state_table(one) for one in cache.sources]}
    text = json.dumps(fields).encode("ascii")
    return b"%08x\n" % zlib.crc32(text) + text


def read(data: bytes | None) -> LedgerCache | None:
    """Give what the file says, None where it says nothing that holds."""
    head, _, text = (data or b"").partition(b"\n")
    try:
        if int(head, 16) != zlib.crc32(text):
            return None
        fields = json.loads(text)
        sources = tuple(state_of(one) for one in fields.pop("sources"))
        numbers = {name: as_int(value, name) for name, value in fields.items()}
        return LedgerCache(**numbers, sources=sources)
    except NOT_OURS:
        return None
