"""The room above the store: many stores in one directory, one owner each.

    put ─► routing: crc32(key) mod n ─┬─► shard-00000, a TimerStore
                                      ├─► shard-00001 ...
    elsewhere: rows ─► staging ─► manifest ─► ingest (the owner) ─┴─► its shard's log, once

cluster.py    cluster.json: how many, which key, what a row may be
routing.py    which shard; receipt.py    what comes out, and names its shard
kinds.py      what a folder is: shards, a store, a backup
sharded.py    ShardedStore: the stores as one; consumer.py    a group that reads them all
leases.py     a group that leases from them all; pacing.py    a rate shared out
unlike.py     what one store has and many have not, and why
options.py    how rows become messages; rows.py    checks them, by columns
staging.py    writes them, a file a shard; manifest.py    commits them; ingest.py    the owner takes
              them; janitor.py    what nobody wants any more; untaken.py    what no owner took yet
"""

from timerstore.shards.consumer import ShardConsumer
from timerstore.shards.ingest import Ingested, IngestReport, ingest
from timerstore.shards.janitor import clean, prune
from timerstore.shards.manifest import Committed, Manifest, abort, commit
from timerstore.shards.options import WriteOptions, parse_options
from timerstore.shards.receipt import (
    ShardBatch,
    ShardLeasedMessage,
    ShardMessage,
    ShardReceipt,
    ShardRecurring,
)
from timerstore.shards.sharded import ShardedStore, open_shards
from timerstore.shards.staging import Staged, StagedFile, Stager, stage

__all__ = [
    "Committed",
    "IngestReport",
    "Ingested",
    "Manifest",
    "ShardBatch",
    "ShardConsumer",
    "ShardLeasedMessage",
    "ShardMessage",
    "ShardReceipt",
    "ShardRecurring",
    "ShardedStore",
    "Staged",
    "StagedFile",
    "Stager",
    "WriteOptions",
    "abort",
    "clean",
    "commit",
    "ingest",
    "open_shards",
    "parse_options",
    "prune",
    "stage",
]
