"""The room above the store: many stores in one directory, one owner each.

    put ─► routing: crc32(key) mod n ─┬─► shard-00000, a TimerStore
                                      ├─► shard-00001 ...
    elsewhere: rows ─► staging ─► manifest ─► ingest (the owner) ─┴─► its shard's log, once

cluster.py    cluster.json: how many, which key, what a row may be
routing.py    which shard; receipt.py    what comes out, and names its shard
sharded.py    ShardedStore: the stores as one; consumer.py    a group that reads them all
"""

from timerstore.shards.consumer import ShardConsumer
from timerstore.shards.receipt import ShardBatch, ShardMessage, ShardReceipt
from timerstore.shards.sharded import ShardedStore, open_shards

__all__ = [
    "ShardBatch",
    "ShardConsumer",
    "ShardMessage",
    "ShardReceipt",
    "ShardedStore",
    "open_shards",
]
