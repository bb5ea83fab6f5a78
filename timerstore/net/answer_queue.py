"""The answers of a connection: those of one turn of the loop are written with one system call.

Thread safety: runs on the server's loop.
"""

import asyncio
from collections.abc import Callable

from timerstore._engine.base.owner import Owner
from timerstore.net.frames import frame
from timerstore.net.server_counters import ServerCounters


class AnswerQueue(Owner):
    """Answers that were not passed to the transport yet."""

    def __init__(
        self,
        transport: asyncio.Transport,
        unsent_bytes_max: int,
        counters: ServerCounters,
        overflow: Callable[[], None],
    ) -> None:
        """`overflow`: called when the client left more than `unsent_bytes_max` unread."""
        self._transport = transport
        self._unsent_bytes_max = unsent_bytes_max
        self._counters = counters
        self._overflow = overflow
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []

    def add(self, payload: bytes) -> None:
        """Write an answer at the end of this turn."""
        if not self._frames:
            self._loop.call_soon(self.flush)
        self._frames.append(frame(payload))

    def flush(self) -> None:
        """Write the answers now."""
        data = b"".join(self._frames)
        self._frames.clear()
        if not data or self._transport.is_closing():
            return
        self._counters.net_sent_bytes += len(data)
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > self._unsent_bytes_max:
            self._overflow()
