"""A TLS connection that one thread may read while another writes.

`ssl.SSLSocket` does not permit that: its OpenSSL object is not protected. Here it works on memory,
under a lock, and the socket itself is read and written without that lock.

Locking: `_send_lock` before `_lock`. The socket is written under `_send_lock` alone, so a peer that
    reads nothing does not stop the reader of this side.
Raises: OSError (ssl.SSLError is one).
"""

import socket
import ssl
import threading

from timerstore._engine.base.owner import Owner

_READ_BYTES = 64 * 1024


class TlsStream(Owner):
    """The plain bytes of a TLS connection, with the methods of a socket that a client uses."""

    def __init__(self, raw: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._raw = raw
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        while True:
            try:
                self._tls.do_handshake()
                self._send_outgoing()
                return
            except ssl.SSLWantReadError:
                self._send_outgoing()
                if not self._receive():
                    raise ConnectionResetError(
                        "the connection ended in the TLS handshake"
                    ) from None

    def recv(self, size: int) -> bytes:
        """Return received bytes, at most `size`; none at the end."""
        while True:
            try:
                with self._lock:
                    return self._tls.read(size)
            except ssl.SSLWantReadError:
                if self._outgoing.pending:
                    self._send_outgoing()
                if not self._receive():
                    return b""
            except ssl.SSLZeroReturnError:
                return b""

    def sendall(self, data: bytes) -> None:
        """Send all bytes."""
        with self._send_lock:
            with self._lock:
                self._tls.write(data)
                out = self._outgoing.read()
            self._raw.sendall(out)

    def _send_outgoing(self) -> None:
        with self._send_lock:
            with self._lock:
                out = self._outgoing.read()
            self._raw.sendall(out)

    def _receive(self) -> bool:
        data = self._raw.recv(_READ_BYTES)
        with self._lock:
            self._incoming.write(data)
        return bool(data)

    def fileno(self) -> int:
        """Return the number of the socket."""
        return self._raw.fileno()

    def shutdown(self, how: int) -> None:
        """Shut the socket down, so that a thread that reads it returns."""
        self._raw.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._raw.close()
