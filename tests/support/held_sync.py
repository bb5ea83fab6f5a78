"""A replacement of the sync of a log, which waits, fails, and notes the calling threads."""

import asyncio
import threading
from typing import Any

from timerstore.errors import FailedError

PATIENCE_S = 30.0


class HeldSync:
    """Replaces `segments.sync`: each sync waits until `is_released` is set, or fails."""

    def __init__(self, segments: Any) -> None:
        self._sync = segments.sync
        segments.sync = self._held
        self.threads: list[str] = []
        """The names of the threads that synced."""
        self.is_reached, self.is_released = threading.Event(), threading.Event()
        self.error: FailedError | None = None

    @property
    def count(self) -> int:
        return len(self.threads)

    def _held(self) -> None:
        self.threads.append(threading.current_thread().name)
        self.is_reached.set()
        assert self.is_released.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        self._sync()

    async def reached(self) -> None:
        """Wait until a sync has begun."""
        assert await asyncio.to_thread(self.is_reached.wait, PATIENCE_S)
