"""Draw due times from a window, so that messages put together are not delivered together.

    put(delay=60, spread=30)              due at a random time from 60 s to 90 s from now
    put_many(1000 bodies, spread=10)      one message every 10 ms from now on, in their order

The numbers are random, or determined by `spread_seed` if it is set.

Thread safety: any thread.
Locking: `_lock`, for one draw.
Invariants:
    1. No message is due before the time that the caller gave. The receipt has the drawn time.
Raises: MessageError for invalid arguments, and if the window ends more than `delay_ms_max` ahead.
"""

import random
from dataclasses import replace

import numpy as np

from timerstore._engine.base import due_times
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.write.put_requests import BatchRequest, PutRequest
from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import MessageError, quoted


class Spreader(Owner):
    """Draws due times for one store."""

    def __init__(self, config: StoreConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._random = random.Random(config.spread_seed or None)  # noqa: S311 - no secret
        self._lock = Lock()

    def one(self, request: PutRequest) -> PutRequest:
        """Return the request with a due time drawn from the window of its `spread`."""
        now_ms = self._clock.now_ms
        window_ms = self._window_ms(request.spread, request.level)
        due_ms = due_times.due_ms_of(
            now_ms, request.delay, request.deliver_at, request.deliver_ms, self._config
        )
        begin_ms = due_ms or now_ms
        self._check_end(now_ms, begin_ms + window_ms)
        drawn_ms = begin_ms + int(self._draw() * window_ms)
        return replace(
            request, deliver_ms=drawn_ms, delay=None, deliver_at=None, spread=None, is_derived=True
        )

    def many(self, request: BatchRequest, count: int) -> BatchRequest:
        """Return the request with due times at equal distances, from a random first one."""
        now_ms = self._clock.now_ms
        window_ms = self._window_ms(request.spread, request.level)
        due_ms = due_times.resolve_due_array(
            now_ms, count, request.delay, request.deliver_ms, self._config.delay_ms_max
        )
        begin_ms = np.where(due_ms > 0, due_ms, now_ms)
        self._check_end(now_ms, int(begin_ms.max(initial=now_ms)) + window_ms)
        places = (np.arange(count) + self._draw()) / max(1, count)
        spread_ms = begin_ms + (places * window_ms).astype(np.int64)
        return replace(request, deliver_ms=spread_ms, delay=None, spread=None, is_derived=True)

    def _draw(self) -> float:
        with self._lock:
            return self._random.random()

    def _window_ms(self, spread: object, level: object) -> int:
        if level is not None:
            raise MessageError("spread: a fixed level has its own time; wanted either of them")
        return due_times.check_spread(spread)

    def _check_end(self, now_ms: int, end_ms: int) -> None:
        if not self._config.timer_enabled and end_ms > now_ms:
            raise due_times.timers_off()
        if end_ms - now_ms > self._config.delay_ms_max:
            raise MessageError(
                f"spread: wanted an end at most {self._config.delay_ms_max} ms from now "
                f"(delay_ms_max), got {quoted(end_ms - now_ms)}"
            )
