"""A ShardedStore under test: each shard beside a model of its own, all on one disk and one clock.

drawing.py   turns the operations of a schedule into such of several shards
facet.py     the whole as one of its shards: what is asked of a shard goes through the whole
shard.py     one shard and its model: all that tests/sim knows of a store
readers.py   a group that reads all shards
cluster.py   the whole: one life, one disk; wide.py    calls that go to several shards
whole.py     what the whole says of all, compared with what each says
"""
