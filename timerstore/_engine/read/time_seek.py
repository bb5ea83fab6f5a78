"""Find the first queue offset that was stored at or after a time.

Invariants:
    1. The answer is the first message that was stored at the time or later; no message before it
       was. This also holds where the wall clock was set back: store times then do not ascend, and a
       binary search would pass over messages.
    2. On store times that ascend it is the answer of a RocketMQ broker (its lower boundary),
       compared with a 5.3.3 broker on its own store.
Thread safety: any thread; two searches of one queue at once may both read a block.
"""

import numpy as np

from timerstore._engine.queues.routes import Route
from timerstore._engine.read.queue_reader import QueueReader

PAST_END = 2**62
"""An offset without a message: a pull from it returns the bounds of the queue and reads nothing."""

BLOCK_UNITS = 16_384
"""Messages for which one latest store time is kept in memory: 8 bytes for some MB of log."""

_INT64_MAX = 2**63 - 1


def first_stored(reader: QueueReader, route: Route, low: int, high: int, time_ms: int) -> int:
    """Return the first offset in [low, high) stored at `time_ms` or later, or `high`.

    The first search of a queue reads the store time of each message before its answer. The latest
    store time of each block that was read to its end stays in memory, so a later search reads the
    block of its answer, and the messages that no search has read yet.
    """
    wanted_ms = max(-_INT64_MAX, min(time_ms, _INT64_MAX))
    latest_ms = route.queue.latest_store_ms
    first_block = low // BLOCK_UNITS
    for block in [one for one in tuple(latest_ms) if one < first_block]:
        latest_ms.pop(block, None)
    while low < high:
        block = low // BLOCK_UNITS
        block_end = (block + 1) * BLOCK_UNITS
        if latest_ms.get(block, _INT64_MAX) >= wanted_ms:
            end = min(high, block_end)
            times = reader.store_times(route, low, end)
            if end == block_end:
                latest_ms[block] = int(times.max())
            found = np.flatnonzero(times >= wanted_ms)
            if len(found):
                return low + int(found[0])
        low = min(high, block_end)
    return low
