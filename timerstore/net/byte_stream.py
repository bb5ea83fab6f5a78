"""The bytes of a connection, for threads that a signal handler may interrupt anywhere.

A handler runs between two steps of Python. What a system call has returned would be lost there:
received bytes, or how many bytes were sent. So each system call is made by `map`, which a list or a
deque consumes in C: the result is stored in the same step. An interrupted step can be repeated.

Thread safety: one thread may receive while another sends.
Raises: OSError.
"""

import math
import select
import socket
import struct
import time

from timerstore._engine.base.owner import NotCopyable

READ_BYTES = 64 * 1024  # malloc maps and unmaps each block of 128 KiB or more
_LONGEST_WAIT_S = 3600.0
_SHORTEST_WAIT_S = 0.001
_timeval = struct.Struct("@ll")


class SocketStream(NotCopyable):
    """The bytes of a connected socket.

    The system ends a wait for bytes (SO_RCVTIMEO). Another call for each wait, such as poll, costs
    more than the wait itself.
    """

    def __init__(self, raw: socket.socket) -> None:
        raw.settimeout(None)
        self._raw = raw
        self._recv, self._send_part = raw.recv, raw.send
        self._wait_s = 0.0  # the present limit of the system

    def receive(self, chunks: list[bytes], left_s: float) -> bool:
        """Wait for bytes and add them to `chunks`; an empty string at the end of the connection.

        Return False if none came in `left_s` seconds, or earlier: then the caller may try again.
        """
        if not self._wait_s <= left_s <= 1.1 * self._wait_s:
            self._limit_waits(left_s)
        try:
            chunks.extend(map(self._recv, (READ_BYTES,)))
        except BlockingIOError:
            return False
        return True

    def _limit_waits(self, left_s: float) -> None:
        wait_s = min(max(0.95 * left_s, _SHORTEST_WAIT_S), _LONGEST_WAIT_S)  # fits the next, too
        value = _timeval.pack(int(wait_s), int(wait_s % 1 * 1_000_000))
        self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._wait_s = wait_s

    def send(self, data: bytes, sent: list[int], deadline_s: float) -> bool:
        """Send the part of `data` that follows the `sent` bytes, and add to `sent`.

        Return False if not all was sent until `deadline_s` on the monotonic clock.
        """
        size = len(data)
        part: bytes | memoryview = data
        while True:
            if sent:
                if (at := sum(sent)) == size:
                    return True
                part = memoryview(data)[at:]
            try:
                sent.extend(map(self._send_part, (part,), (socket.MSG_DONTWAIT,)))
            except BlockingIOError:
                if not self._is_writable(deadline_s):
                    return False

    def _is_writable(self, deadline_s: float) -> bool:
        poll = select.poll()
        poll.register(self._raw.fileno(), select.POLLOUT)
        left_s = min(max(deadline_s - time.monotonic(), 0.0), _LONGEST_WAIT_S)
        return bool(poll.poll(math.ceil(left_s * 1000)))

    def has_bytes(self) -> bool:
        """Return whether `receive` would find bytes, or the end of the connection, now."""
        if (number := self._raw.fileno()) < 0:
            return False
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return bool(poll.poll(0))

    def fileno(self) -> int:
        """Return the number of the socket; -1 if it is closed."""
        return self._raw.fileno()

    def shutdown(self) -> None:
        """End the connection, so that a thread that waits for bytes returns."""
        self._raw.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. No thread may use it."""
        self._raw.close()
