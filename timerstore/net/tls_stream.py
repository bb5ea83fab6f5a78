"""A TLS connection that one thread may read while another writes, as SocketStream.

No signal handler may interrupt the reader: OpenSSL's call loses decrypted bytes then. A thread of
its own reads (channel.py).

`ssl.SSLSocket` does not permit that: its OpenSSL object is not protected. Here it works on memory,
under a lock, and the socket itself is read and written without that lock.

Locking: `_lock` for a step of OpenSSL. A peer that reads nothing does not stop the reader of this
    side.
Raises: OSError (ssl.SSLError is one).
"""

import socket
import ssl
import time
from collections import deque
from functools import partial
from typing import Any

from timerstore.net.byte_stream import READ_BYTES, SocketStream
from timerstore.net.surviving_lock import SurvivingLock

_WRITE_BYTES = 1 << 20  # encrypted in one step


class TlsStream(SocketStream):
    """The plain bytes of a TLS connection."""

    def __init__(
        self, raw: socket.socket, context: ssl.SSLContext, host: str, deadline_s: float
    ) -> None:
        """Make the handshake. TimeoutError if it did not end until `deadline_s`."""
        super().__init__(raw)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        # The methods of the public object are written in Python, so an exception could come between
        # the step of OpenSSL and the step that stores its result.
        self._tls: Any = getattr(tls, "_sslobj", tls)
        self._lock = SurvivingLock()
        self._received: list[bytes] = []  # and not given to OpenSSL yet
        self._encrypted: deque[tuple[bytes, list[int]]] = deque()  # with the sent bytes of each
        while not self._is_shaken(tls):
            left_s = deadline_s - time.monotonic()
            if not self._flush(deadline_s) or left_s <= 0:
                raise TimeoutError("the TLS handshake did not end in time")
            self._receive_encrypted(left_s)
        self._flush(deadline_s)

    @staticmethod
    def _is_shaken(tls: ssl.SSLObject) -> bool:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLEOFError as error:
            raise ConnectionResetError("the connection ended in the TLS handshake") from error
        return True

    def receive(self, chunks: list[bytes], left_s: float) -> bool:
        """Wait for bytes and add them to `chunks`, as SocketStream.receive."""

        def decrypt() -> None:
            chunks.extend(map(self._tls.read, (READ_BYTES,)))

        try:
            self._lock.run(decrypt)
        except ssl.SSLWantReadError:
            self._receive_encrypted(left_s)
            return False
        except ssl.SSLZeroReturnError:
            chunks.append(b"")
        return True

    def _receive_encrypted(self, left_s: float) -> None:
        if self._received or super().receive(self._received, left_s):
            self._lock.run(self._take_received)

    def _take_received(self) -> None:
        """Give the received bytes to OpenSSL, each chunk once."""
        is_end = not self._received[-1]
        deque(map(self._incoming.write, map(self._received.pop, (0,) * len(self._received))), 0)
        if is_end:
            self._incoming.write_eof()

    def send(self, data: bytes, sent: list[int], deadline_s: float) -> bool:
        """Send the part of `data` that follows the `sent` bytes, as SocketStream.send."""
        plain = memoryview(data)
        while self._flush(deadline_s):
            at = sum(sent)
            if at == len(data):
                return True
            self._lock.run(partial(self._encrypt, plain[at : at + _WRITE_BYTES], sent, at))
        return False

    def _encrypt(self, part: memoryview, sent: list[int], at: int) -> None:
        """Encrypt a part and count it. A signal handler may raise after the step of OpenSSL, and
        inside its call: then the encrypted bytes show that the part was taken.
        """
        if self._unsent_bytes():
            return  # of the reader: the caller sends them first
        try:
            self._tls.write(part)
            sent.append(len(part))
        except BaseException:
            if self._unsent_bytes() and sum(sent) == at:
                sent.append(len(part))
            raise

    def _unsent_bytes(self) -> int:
        return self._outgoing.pending

    def _flush(self, deadline_s: float) -> bool:
        """Send the encrypted bytes. Return False if not all was sent in time."""
        while self._outgoing.pending or self._encrypted:
            if not self._encrypted:
                self._lock.run(self._take_encrypted)
            data, sent = self._encrypted[0]
            if not super().send(data, sent, deadline_s):
                return False
            self._encrypted.popleft()
        return True

    def _take_encrypted(self) -> None:
        self._encrypted.extend(zip(map(self._outgoing.read, (-1,)), ([],), strict=False))
