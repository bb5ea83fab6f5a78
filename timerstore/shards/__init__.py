"""Shards: several stores in one directory, opened as one. Each shard has one owner process.

    put -> routing: crc32(key) % n -+-> shard-00000, a TimerStore
                                    +-> shard-00001 ...
    other processes: rows -> staging -> manifest -> ingest by the shard's owner -> its log, once

cluster.py           cluster.json: the number of shards, the key, limits of rows
routing.py           which shard a message belongs to
receipt.py           receipts, handles and messages that name their shard
kinds.py             what a directory is: shards, a store, a backup
sharded.py           ShardedStore: opens and closes the shards
shard_calls.py       calls several shards at once
shard_puts.py        puts into the shards that messages belong to
shard_reads.py       pulls, queries and groups
shard_pending.py     pending messages of all shards
shard_consumer.py    a group that reads all shards
shard_leases.py      a group that leases from all shards
shard_letters.py     dead letters of all shards
shard_recurring.py   recurring messages of all shards
shard_stats.py       statistics of all shards together
rate_share.py        divides a rate among shards
unsupported.py       calls of TimerStore that ShardedStore does not have, with reasons
write_options.py     how rows become messages
row_columns.py       checks which columns a table has
arrow_rows.py        checks rows by columns
row_staging.py       writes rows to files, one for each shard
staged_files.py      these files, and how they are read
manifest.py          manifests of committed rows
committing.py        commits staged rows
staging_area.py      what writers and owners need of the place where rows are staged
folder_staging.py    the directory of shards as that place
bucket_staging.py    a prefix of a bucket as that place
staging_location.py  finds the place of a path or URL
bucket_binding.py    binds a directory of shards to the bucket from which it ingests
bucket_janitor.py    removes objects of a bucket that are no longer needed
background_ingest.py ingest of all shards, on request or periodically
shard_ingest.py      the owner appends committed rows to its shard's log
pending_ingest.py    committed rows that no owner has appended yet
janitor.py           removes staging and manifests that are no longer needed
"""

from timerstore.shards.committing import Committed, abort, commit
from timerstore.shards.janitor import clean, prune
from timerstore.shards.manifest import Manifest
from timerstore.shards.receipt import (
    ShardBatch,
    ShardDeadLetter,
    ShardLeasedMessage,
    ShardMessage,
    ShardReceipt,
    ShardRecurring,
)
from timerstore.shards.row_staging import Stager, stage
from timerstore.shards.shard_consumer import ShardConsumer
from timerstore.shards.shard_ingest import Ingested, IngestReport, ingest
from timerstore.shards.sharded import ShardedStore, open_shards
from timerstore.shards.staged_files import Staged, StagedFile
from timerstore.shards.write_options import WriteOptions, parse_options

__all__ = [
    "Committed",
    "IngestReport",
    "Ingested",
    "Manifest",
    "ShardBatch",
    "ShardConsumer",
    "ShardDeadLetter",
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
