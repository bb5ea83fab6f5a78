"""A small store whose retention drops a file of its log as soon as there is another."""

from tests.support.bench import Bench, small

KIB = 1024
SIZES = small(
    commit_log_segment_bytes=16 * KIB, retention_log_bytes=20 * KIB, queue_segment_bytes=200
)


def begin_of(bench: Bench) -> int:
    """Where the log begins."""
    return int(bench.store.stats()["log_begin_bytes"])


def fill(bench: Bench, begin: int) -> None:
    """Put what is delivered at once, until the log begins beyond that."""
    while begin_of(bench) <= begin:
        for _ in range(13):
            bench.store.put("other", bytes(1200))
        bench.turn()
