"""The calls of TimerStore that ShardedStore does not have, with reasons and alternatives.

Invariants: every public name of TimerStore is a name of ShardedStore or is listed here; a test
compares them.
"""

from collections.abc import Mapping
from types import MappingProxyType

UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "backup": (
            "a backup is of one store, as shards share no point in time: "
            "`store.stores[k].backup(folder)` for each"
        ),
        "ingested": (
            "a version is complete shard by shard: `store.stores[k].ingested(source)`; it is "
            "complete when all shards have it"
        ),
        "services": "each shard has its own services: `store.stores[k].services()`",
    }
)
"""By name: the reason, and the alternative."""

UNSUPPORTED_ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "ingest source": "it ingests rows that writers have committed for all shards (manifest.py)",
        "ingest version": "as `source`",
        "ingest batches": "as `source`; of one shard: `store.stores[k].ingest(...)`",
    }
)
"""By method and argument that only TimerStore has: the reason, and the alternative."""


NO_QUEUES = "queues: a queue is one of a shard: `store.stores[k].consumer(queues=...)`"
"""The reason why `consumer` rejects `queues`."""


def missing(name: str) -> str:
    """Return the text of the AttributeError for a name that ShardedStore does not have."""
    why = UNSUPPORTED.get(name)
    return f"a ShardedStore has no {name!r}" + (f": {why}" if why else "")
