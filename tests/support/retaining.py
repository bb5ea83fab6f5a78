"""Small stores whose retention drops files of their log."""

from dataclasses import replace
from typing import Any

from tests.support.bench import Bench, small
from timerstore import StoreConfig

KIB = 1024
HOUR_MS = 3_600_000
SIZES = small(
    commit_log_segment_bytes=16 * KIB, retention_log_bytes=20 * KIB, queue_segment_bytes=200
)

"""A file of the log goes as soon as there is another."""


def config(**changes: Any) -> StoreConfig:
    """Files of a dozen records; nothing rolls within days."""
    base = StoreConfig(
        commit_log_segment_bytes=16 * KIB,
        queue_segment_bytes=200,
        timer_log_segment_bytes=2048,
        wheel_slot_count=2048,
        precision_ms=60_000,
        index_slot_count=5,
        index_entry_count=40,
        staging_bytes=4 * KIB,
        reserve_bytes=0,
        retention_ms=HOUR_MS,
        level_delays="1s 2h",
    )
    return replace(base, **changes)


def begin_of(bench: Bench) -> int:
    """Where the log begins."""
    return int(bench.store.stats()["log_begin_bytes"])


def fill(bench: Bench, begin: int) -> None:
    """Put what is delivered at once, until the log begins beyond that."""
    while begin_of(bench) <= begin:
        for _ in range(13):
            bench.store.put("other", bytes(1200))
        bench.turn()
