"""Test a ShardedStore, with one model per shard and a common disk and clock.

drawing.py   converts the operations of a schedule for several shards
facet.py     shows the ShardedStore as one of its shards: each call to a shard goes through it
shard.py     one shard and its model, with all checks for a single store
readers.py   a group that reads all shards
cluster.py   the ShardedStore: one life, one disk
wide.py      calls that go to several shards
whole.py     compares the results of the ShardedStore with those of its shards
"""
