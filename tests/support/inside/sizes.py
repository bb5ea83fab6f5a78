"""The engine's batch sizes, which are constants of its modules, and other values for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from timerstore._engine.introspection import calendar
from timerstore._engine.log import commit_log
from timerstore._engine.queues import (
    dispatch,
    index_file,
    key_index,
    message_ids,
    record_lookup,
)
from timerstore._engine.read import consumer, queue_reader
from timerstore._engine.storage import segment_files, segments
from timerstore._engine.timer import (
    delay_queue,
    dequeue_get,
    dequeue_put,
    enqueue_get,
    fair_queue,
    far_wheel,
    level_delivery,
    level_pending,
    linker,
    open_slot,
    pending,
)
from timerstore._engine.write import append, ingester, ledger

Sizes = dict[ModuleType, dict[str, int]]

SMALL: Sizes = {
    dequeue_get: {
        "_BATCH": 5,
        "_SLOTS": 2,
        "_CONCURRENT_UNITS_MAX": 6,
        "_LOADED_MAX": 8,
        "_BURST_UNITS": 3,
    },
    dequeue_put: {"_BATCH": 7, "_CHUNK": 4, "_SCRATCH_BYTES": 700, "_SORTED": 9},
    enqueue_get: {"_BATCH": 6},
    linker: {"_BATCH": 4},
    far_wheel: {"_BATCH": 3, "SLOTS_MAX": 40},
    dispatch: {"_BATCH": 5},
    key_index: {"_BATCH": 3},
    index_file: {"_READ_BYTES": 60, "_RESERVE_BYTES": 30, "_FOUND": 20},
    pending: {"_BATCH": 5, "_FEW": 2},
    fair_queue: {"BURST_MESSAGES": 3, "_LOOK": 2},
    calendar: {"_FILL_BATCH": 2},
    record_lookup: {"_SCAN_BATCH": 9},
    segment_files: {"_REWRITE_BYTES": 500},
    segments: {"_MAPS_MAX": 2},
    append: {"_BATCH": 3},
    message_ids: {"_CAPACITY_MIN": 2, "_SCAN_COUNT": 3, "_FILE_BYTES_MIN": 100},
    ingester: {"_CHUNK_ROWS": 2},
    ledger: {"_READ_COUNT": 3, "_LAG_MAX": 1},
    queue_reader: {"_BUFFER_BYTES_MAX": 2000, "_STEP_UNITS_MAX": 3},
    consumer: {"_PREFETCH_COUNT": 3},
    level_delivery: {"_BATCH": 5, "_HOLD": 2, "_SCRATCH_BYTES": 700},
    level_pending: {"_UNITS": 3},
    open_slot: {"BURST_MESSAGES": 4, "RUN_MIN": 2, "_SIZE_MIN": 2, "_FAN": 3},
}
"""Every batch of a store is full after a few messages."""

USUAL: Sizes = {
    dequeue_get: {"_BATCH": 512},
    dequeue_put: {"_BATCH": 512, "_CHUNK": 256},
    enqueue_get: {"_BATCH": 256},
    linker: {"_BATCH": 256},
    far_wheel: {"_BATCH": 256},
    dispatch: {"_BATCH": 512},
}
"""No batch of a schedule of the simulator fills these; the real ones would only be allocated."""

LEAST_HANDED_ON: Sizes = {commit_log: {"_HINTS_MAX": 1}, enqueue_get: {"_HANDED_MAX": 0}}
LITTLE_HANDED_ON: Sizes = {commit_log: {"_HINTS_MAX": 8}, enqueue_get: {"_HANDED_MAX": 1}}
"""The appended messages kept in memory for dispatch and enqueue-get are few; they read the rest."""

SMALL_CHUNKS: Sizes = {ingester: {"_CHUNK_ROWS": 16}, ledger: {"_LAG_MAX": 2}}
"""A version of a source has many chunks."""

SMALL_DELAY_QUEUE: Sizes = {
    delay_queue: {"_SPARE_BUCKETS": 1, "_SPARE_REMOVED": 2, "_FEW": 2, "_GOOD": 3, "_MANY": 5}
}
"""A DelayQueue makes its buckets again, wider or finer, all the time."""


def replace(values: Sizes) -> None:
    """Replace constants of modules from now on."""
    for module, names in values.items():
        for name, value in names.items():
            assert hasattr(module, name), f"{module.__name__} has no {name}"
            setattr(module, name, value)


@contextmanager
def replaced(values: Sizes) -> Iterator[None]:
    """Replace constants of modules inside the context."""
    saved = {m: {name: getattr(m, name) for name in names} for m, names in values.items()}
    try:
        replace(values)
        yield
    finally:
        replace(saved)
