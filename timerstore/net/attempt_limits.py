"""How long a client goes on after a lost connection or without a server, and its pauses.

Thread safety: an object belongs to one caller.
Raises: UnavailableError when the time is over.
"""

import random
import ssl
import time

from timerstore._engine.base.owner import Owner
from timerstore.errors import UnavailableError

_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.5
"""Seconds between two attempts, at most."""


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


class ConnectLimit(Owner):
    """The time for the attempts to connect, and the pauses between them."""

    def __init__(
        self,
        retry_for_s: float,
        longest_pause_s: float,
        where: object,
        deadline_s: float | None,
    ) -> None:
        """`deadline_s`: the end of the attempts on the monotonic clock; None: `retry_for_s` from
        now.
        """
        self._retry_for_s = retry_for_s
        self._where = where
        self._pause = _GrowingPause(_PAUSE_S, longest_pause_s)
        self._deadline_s = time.monotonic() + retry_for_s if deadline_s is None else deadline_s

    @property
    def left_s(self) -> float:
        """Seconds until the end; 0 or less when it is over."""
        return self._deadline_s - time.monotonic()

    def pause_s(self, error: Exception) -> float:
        """Return the seconds to wait after an attempt that failed.

        Raises:
            UnavailableError: the time is over, or the server's certificate is not trusted.
        """
        left_s = self.left_s
        if left_s <= 0 or isinstance(error, ssl.SSLCertVerificationError):
            raise self.unavailable(error) from error
        return self._pause.next_s(left_s)

    def unavailable(self, why: object) -> UnavailableError:
        """Return the error for a server that was not found."""
        return UnavailableError(
            f"no server was found in {self._retry_for_s:g} s ({why})", where=self._where
        )


class RetryLimit(Owner):
    """The time for the attempts of one call, and the pauses between them."""

    def __init__(self, retry_for_s: float, longest_pause_s: float, where: object) -> None:
        self._retry_for_s = retry_for_s
        self._where = where
        self._pause = _GrowingPause(0.0, longest_pause_s)  # the first repetition is immediate
        self._lost_s = 0.0
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
        if self.deadline_s is None or now - self._lost_s > self._retry_for_s:
            self.deadline_s = now + self._retry_for_s  # a call that waited for long begins again
        self._lost_s = now
        left = self.deadline_s - now
        if left <= 0:
            raise UnavailableError(
                f"further attempts did not succeed in {self._retry_for_s:g} s ({error})",
                where=self._where,
            ) from error
        return self._pause.next_s(left)
