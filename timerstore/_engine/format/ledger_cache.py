"""timerstore/ingest: the ingest ledger up to an offset of its queue.

The file is a cache, written only by this package. If it is missing or not valid, the ledger's queue
is read from its beginning.

Invariants:
    1. Every record that it covers was durable before it was written.
On-disk format: a line with the CRC-32 of the rest in hex, then JSON:

    store_id
    queue_offset   the file covers all records of the ledger's queue below this offset
    log_offset     log offset of the last of these records
    sources        states as in ledger_json.py
"""

from typing import NamedTuple

from timerstore._engine.format.json_text import PARSE_ERRORS, as_int, sealed, unsealed
from timerstore._engine.format.ledger_json import SourceState, state_of, state_table


class LedgerCache(NamedTuple):
    """The state of every source, and how much of the ledger's queue it covers."""

    store_id: int
    queue_offset: int
    log_offset: int
    sources: tuple[SourceState, ...]


def write(cache: LedgerCache) -> bytes:
    """Return the file's bytes."""
    return sealed(cache._asdict() | {"sources": [state_table(one) for one in cache.sources]})


def read(data: bytes | None) -> LedgerCache | None:
    """Parse the file; return None if it is absent or not valid."""
    try:
        fields = unsealed(data)
        sources = tuple(state_of(one) for one in fields.pop("sources"))
        numbers = {name: as_int(value, name) for name, value in fields.items()}
        return LedgerCache(**numbers, sources=sources)
    except PARSE_ERRORS:
        return None
