"""How long a client goes on after a lost connection or without a server, and its pauses.

Thread safety: an object belongs to one caller.
Raises: UnavailableError when the time is over, or if no waiting can help.
"""

import errno
import random
import ssl
import stat
import time
from pathlib import Path
from typing import NamedTuple

from timerstore._engine.base.owner import NotCopyable
from timerstore.errors import UnavailableError
from timerstore.net.endpoints import Endpoint, connected_socket

_PAUSE_S = 0.01
_SHORTEST_ATTEMPT_S = 1.0
LONGEST_PAUSE_S = 0.5
"""Seconds between two attempts, at most."""

_PASSING_TLS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_LASTING = frozenset(
    {errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.EPROTOTYPE, errno.ENOTDIR}
)


class ClientTimes(NamedTuple):
    """The time limits of a client, in seconds."""

    retry_for_s: float
    """For finding a server after the connection was lost."""
    connect_timeout_s: float
    """For finding a server at the beginning."""
    call_timeout_s: float
    """For the answer to one call, without its `wait`, and for one attempt to connect."""


class _GrowingPause:
    """Random pauses between attempts, each about twice as long as the one before."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._pause_s = first_s
        self._longest_s = longest_s

    def next_s(self, left_s: float) -> float:
        """Return the next pause, at most `left_s`."""
        pause_s = min(self._pause_s * random.uniform(0.5, 1.0), left_s)  # noqa: S311 - no secret
        self._pause_s = min(max(self._pause_s * 2, _PAUSE_S), self._longest_s)
        return pause_s


class ConnectLimit(NotCopyable):
    """The time for the attempts to connect, and the pauses between them."""

    def __init__(
        self, deadline_s: float, longest_pause_s: float, attempt_s: float, where: Endpoint
    ) -> None:
        """`deadline_s`: the end of the attempts on the monotonic clock.

        `attempt_s`: the limit of one attempt.
        """
        self._where = where
        self._pause = _GrowingPause(_PAUSE_S, longest_pause_s)
        self._begin_s = time.monotonic()
        self._deadline_s = deadline_s
        self._longest_attempt_s = attempt_s
        self._has_tried_tls = False

    @property
    def left_s(self) -> float:
        """Seconds until the end; 0 or less when it is over."""
        return self._deadline_s - time.monotonic()

    @property
    def attempt_s(self) -> float:
        """The limit of the next attempt. A single attempt has all of its time."""
        left_s = self.left_s
        if left_s <= 0:
            return self._longest_attempt_s
        return min(self._longest_attempt_s, max(left_s, _SHORTEST_ATTEMPT_S))

    def may_need_tls(self, error: Exception) -> bool:
        """Return, once, whether the error may be that of a port with TLS: it closes a connection
        that does not begin a handshake.
        """
        is_plain = self._where.path is None and not self._where.is_tls
        if self._has_tried_tls or not is_plain or not isinstance(error, ConnectionResetError):
            return False
        self._has_tried_tls = True
        return True

    def pause_s(self, error: Exception) -> float:
        """Return the seconds to wait after an attempt that failed.

        Raises:
            UnavailableError: the time is over, or the error cannot pass.
        """
        if isinstance(error, UnavailableError) and not error.retryable:
            raise error
        if (reason := lasting_reason(error, self._where)) is not None:
            raise UnavailableError(reason, where=self._where, retryable=False) from error
        left_s = self.left_s
        if left_s <= 0:
            raise self.unavailable(error) from error
        return self._pause.next_s(left_s)

    def unavailable(self, why: object) -> UnavailableError:
        """Return the error for a server that was not found."""
        passed_s = round(time.monotonic() - self._begin_s, 1)
        return UnavailableError(f"no server was found in {passed_s:g} s ({why})", where=self._where)


def check_without_tls(where: Endpoint, timeout_s: float) -> None:
    """Raise UnavailableError if the port of an address without TLS answers a handshake of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent through it
    try:
        with connected_socket(where, timeout_s) as raw, context.wrap_socket(raw):
            pass
    except OSError:
        return
    raise UnavailableError(
        "the server speaks TLS", where=where, wanted="tls:// in place of tcp://", retryable=False
    )


def lasting_reason(error: Exception, where: Endpoint) -> str | None:
    """Return the reason of an error that cannot pass without a change; None if waiting may help. A
    path that is missing, or a refused connection, may be there later.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError) and not isinstance(error, _PASSING_TLS):
        return f"the server does not speak TLS, or no version of it that both know ({error})"
    if isinstance(error, OSError) and error.errno in _LASTING:
        return f"the server cannot be reached: {error.strerror}"
    if isinstance(error, ConnectionRefusedError) and where.path is not None:
        return _reason_of_path(where.path)
    return None


def _reason_of_path(path: Path) -> str | None:
    """Return the reason why a path that exists is no socket."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None  # it has just gone
    if stat.S_ISSOCK(mode):
        return None  # of a server that has ended
    return f"the path is no socket, but a {'folder' if stat.S_ISDIR(mode) else 'file'}"


class RetryLimit(NotCopyable):
    """The time for the attempts of one call, and the pauses between them."""

    def __init__(
        self, retry_for_s: float, longest_pause_s: float, where: object, wait_s: float = 0.0
    ) -> None:
        """`wait_s`: the time that the call may wait for messages. A connection that is lost in it
        begins the time for the attempts again.
        """
        self._retry_for_s = retry_for_s
        self._where = where
        self._pause = _GrowingPause(0.0, longest_pause_s)  # the first repetition is immediate
        self._waits_until_s = time.monotonic() + wait_s
        self.deadline_s: float | None = None
        """The end of the last attempt, on the monotonic clock; None until a connection is lost."""

    @property
    def is_none(self) -> bool:
        """Whether calls are not repeated."""
        return self._retry_for_s == 0

    def pause_s(self, error: BaseException) -> float:
        """Return the seconds to wait after a lost connection, before the call is sent again.

        Raises:
            UnavailableError: the time is over.
        """
        now = time.monotonic()
        if self.deadline_s is None or now < self._waits_until_s:
            self.deadline_s = now + self._retry_for_s
        left = self.deadline_s - now
        if left <= 0:
            raise UnavailableError(
                f"further attempts did not succeed in {self._retry_for_s:g} s ({error})",
                where=self._where,
            ) from error
        return self._pause.next_s(left)
