"""What a TimerStore has and a ShardedStore has not, each with its reason.

Holds:    every public name of TimerStore is one of ShardedStore or stands here; a test compares.
"""

from collections.abc import Mapping
from types import MappingProxyType

UNLIKE: Mapping[str, str] = MappingProxyType(
    {
        "backup": (
            "shards have no moment in common, so a backup is one of a store: "
            "`store.stores[k].backup(folder)` for each"
        ),
        "ingested": (
            "a version is complete shard by shard: `store.stores[k].ingested(source)`; it is in "
            "when it is in all"
        ),
        "services": "each shard has its own, to be stepped by hand: `store.stores[k].services()`",
    }
)
"""Name: why, and what to call instead."""

OTHERWISE: Mapping[str, str] = MappingProxyType(
    {
        "ingest source": "it takes in what writers have committed for all shards (row_staging.py)",
        "ingest version": "as `source`",
        "ingest batches": "as `source`; of one shard: `store.stores[k].ingest(...)`",
    }
)
"""Method and argument that are of TimerStore alone: why, and what to call instead."""


NO_QUEUES = "queues: a queue is one of a shard: `store.stores[k].consumer(queues=...)`"
"""Why `consumer` refuses `queues`."""


def missing(name: str) -> str:
    """What to say to who asks for it."""
    why = UNLIKE.get(name)
    return f"a ShardedStore has no {name!r}" + (f": {why}" if why else "")
