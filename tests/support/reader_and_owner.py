"""A read-only store next to its owner: puts, comparisons of both, and traces of a reader."""

import hashlib
from pathlib import Path
from typing import Any

from tests.support.bench import DAY, NOW, Bench
from timerstore import (
    ReadOnlyStore,
    TimerStore,
)

Trace = dict[str, tuple[int, int, int, str]]


def trace(root: Path) -> Trace:
    """Return the kind, size, change time and hash of everything in a directory."""
    found = {}
    for path in [root, *root.rglob("*")]:
        status = path.lstat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(root))] = (
            status.st_mode, status.st_size, status.st_mtime_ns, digest,
        )  # fmt: skip
    return found


def fill(bench: Bench) -> dict[str, Any]:
    """Put messages of every kind, and return their receipts and names."""
    store = bench.store
    known: dict[str, Any] = {
        "now": [store.put("t", b"now %d" % k, tags=f"g{k % 2}", keys=(f"k{k}",)) for k in range(4)],
        "waits": [store.put("t", b"w%d" % k, delay=60 + k, keys=(f"w{k}",)) for k in range(5)],
        "far": store.put("u", b"far", delay=9 * 60, keys=("far",)),
        "level": store.put("u", b"on a level", level=3, keys=("lev",)),
    }
    store.cancel(known["waits"][0])
    known["moved"] = store.reschedule(known["waits"][1], delay=90)
    known["short"] = store.put("u", b"short", delay=1, keys=("short",))
    bench.turn()
    bench.turn(2000)
    with store.consumer("t", "g", wait=0) as consumer:
        for message in consumer:
            consumer.commit()
            if message.body == b"now 1":
                break
    store.put_every("r", b"again", every=60, name="each")
    bench.turn()
    store.flush()
    return known


def same(one: ReadOnlyStore, other: TimerStore) -> None:
    """Check that both return the same results."""
    assert one.topics() == other.topics()
    for topic, count in other.topics().items():
        for queue_id in range(count):
            for offset in (0, 1, 3, 100):
                assert one.pull(topic, queue_id, offset) == other.pull(topic, queue_id, offset)
            tagged = [each.pull(topic, queue_id, 0, tags="g1") for each in (one, other)]
            assert tagged[0] == tagged[1]
            batches = [each.pull_batch(topic, queue_id, 0) for each in (one, other)]
            assert [list(batch) for batch in batches[:1]] == [list(batch) for batch in batches[1:]]
            assert one.offset_at(topic, queue_id, NOW + 1) == other.offset_at(
                topic, queue_id, NOW + 1
            )
    assert list(one.pending()) == list(other.pending())
    assert list(one.pending(topic="u")) == list(other.pending(topic="u"))
    span = {"begin_ms": NOW + 62_000, "end_ms": NOW + 200_000}
    assert list(one.pending(**span)) == list(other.pending(**span))
    for topic in ("t", "u", "r"):
        for key in ("k1", "w0", "w1", "w2", "far", "lev", "short", "none"):
            assert one.query(topic, key) == other.query(topic, key), key
    for by, name in (("minute", None), ("hour", "t"), ("second", "u")):
        counted = [each.histogram(NOW, NOW + DAY // 24, by, name) for each in (one, other)]
        assert [list(each.edges) for each in counted[:1]] == [list(counted[1].edges)]
        assert [list(each.counts) for each in counted[:1]] == [list(counted[1].counts)]
    assert one.committed("t", "g") == other.committed("t", "g") != {}
    assert one.timing_distribution() == other.timing_distribution()
    assert one.congestion() == other.congestion()
    assert one.recurring() == other.recurring() != []
    mine, theirs = one.stats(), other.stats()
    for name in mine.keys() & theirs.keys():
        assert mine[name] == theirs[name], name
    assert {"pending_messages", "pending_by_topic", "log_end_bytes"} <= mine.keys()
