"""The systems that timerstore is compared with, one file for each, driven by contract.py.

`PEERS` lists every peer and variant with its durability and tuning, timerstore first. `missing`
returns why a peer cannot run, so that the benchmarks report it instead of measuring nothing.
"""

from __future__ import annotations

from benchmarks.peers import (
    by_beanstalkd,
    by_heapq,
    by_lmdb,
    by_redis,
    by_rocketmq,
    by_rocksdb,
    by_sqlite,
    ours,
)
from benchmarks.peers.contract import Peer

PEERS: tuple[Peer, ...] = (
    *ours.PEERS,
    *by_rocketmq.PEERS,
    *by_lmdb.PEERS,
    *by_rocksdb.PEERS,
    *by_redis.PEERS,
    *by_sqlite.PEERS,
    *by_beanstalkd.PEERS,
    *by_heapq.PEERS,
)


def named(keys: str) -> list[Peer]:
    """Peers by their keys, as in "timerstore,redis", or "all". ValueError names unknown keys."""
    if keys == "all":
        return list(PEERS)
    known = {peer.key: peer for peer in PEERS}
    unknown = [key for key in keys.split(",") if key not in known]
    if unknown:
        raise ValueError(f"no such peer: {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[key] for key in keys.split(",")]
