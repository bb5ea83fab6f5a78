"""The answers of a connection: those of one turn of the loop are written with one system call.

Thread safety: runs on the server's loop.
Invariants:
    1. At most `unsent_bytes` wait for the end of a turn. The transport has all others, and counts
       those that the client has not taken.
    2. An answer was passed to the system, or waits for that, or its receipts are in `unsent`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from timerstore._engine.base.owner import NotCopyable
from timerstore.net.frames import frame_length
from timerstore.net.server_counters import ServerCounters
from timerstore.net.server_limits import ServerLimits

_log = logging.getLogger(__name__)
_LARGE_BYTES = 64 << 10  # written without another copy


class AnswerQueue(NotCopyable):
    """Answers that were not passed to the transport yet."""

    def __init__(
        self,
        transport: asyncio.Transport,
        limits: ServerLimits,
        counters: ServerCounters,
        overflow: Callable[[], None],
    ) -> None:
        """`overflow`: called when the client left more than `unsent_bytes_max` unread, or if the
        answers cannot be written.
        """
        self._transport = transport
        self._limits = limits
        self._counters = counters
        self._overflow = overflow
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []  # in turn a length and a payload
        self._bytes_sum = 0
        self._receipts: list[str] = []  # of the leased messages in the parts
        self.unsent: list[str] = []
        """The receipts of leased messages in answers that were lost with the connection."""

    def add(self, payload: bytes, receipts: Sequence[str] = ()) -> None:
        """Write an answer at the end of this turn, or now if many bytes wait for it.

        receipts: those of the leased messages in the answer.
        """
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts += (frame_length(payload), payload)
        self._bytes_sum += len(payload)
        self._receipts += receipts
        if self._bytes_sum > self._limits.unsent_bytes:
            self.flush()

    def flush(self) -> None:
        """Write the answers now."""
        parts, self._parts, self._bytes_sum = self._parts, [], 0
        receipts, self._receipts = self._receipts, []
        self._write_all(parts)
        if self._transport.is_closing():  # also because the client was gone
            self.unsent += receipts

    def _write_all(self, parts: list[bytes]) -> None:
        try:
            self._write_each(parts)
        except Exception as error:  # noqa: BLE001 - the client must not wait for these answers
            _log.error("answers could not be written; their connection is closed", exc_info=error)
            self._overflow()
            return
        if self._transport.get_write_buffer_size() > self._limits.unsent_bytes_max:
            self._overflow()

    def _write_each(self, parts: list[bytes]) -> None:
        small: list[bytes] = []
        for one in parts:
            small.append(one)
            if len(one) >= _LARGE_BYTES:
                del small[-1]
                self._write(b"".join(small))
                self._write(one)
                small.clear()
        self._write(b"".join(small))

    def _write(self, data: bytes) -> None:
        if data and not self._transport.is_closing():
            self._counters.net_sent_bytes += len(data)
            self._transport.write(data)
