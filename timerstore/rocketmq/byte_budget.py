"""The bytes that calls of clients hold in memory, within a limit.

    requests and their bodies, until the call has ended     sending_bytes_max
    answers with messages, until they are sent              unsent_bytes_max

Thread safety: the server's loop only.
Raises: RejectedError (42900) above the limit.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.leases import LeasedMessage
from timerstore.rocketmq.codes import RejectedError
from timerstore.rocketmq.definitions import Code
from timerstore.types.messages import SYS_FLAG_COMPRESSED

_OBJECT_BYTES = 2048
"""About what a LeasedMessage takes without its texts and its body."""


def message_bytes(one: LeasedMessage) -> int:
    """Return about how many bytes a leased message takes."""
    return one.store_bytes + _OBJECT_BYTES


def answer_bytes(found: Sequence[LeasedMessage]) -> int:
    """Return about how many bytes an answer takes: its messages, and two copies of the largest."""
    largest = max((one.body_bytes_max if one.sys_flag & SYS_FLAG_COMPRESSED else one.store_bytes
                   for one in found), default=0)  # fmt: skip
    return sum(map(message_bytes, found)) + 2 * largest


class ByteBudget(NotCopyable):
    """The bytes that count for one limit."""

    def __init__(self, limit_name: str, bytes_max: int) -> None:
        self._limit_name = limit_name
        self._bytes_max = bytes_max
        self._held_bytes = 0

    @property
    def left_bytes(self) -> int:
        """How many more bytes fit."""
        return self._bytes_max - self._held_bytes

    def check(self) -> None:
        """Raise unless a byte fits."""
        with self.hold(1):
            pass

    def take(self, count: int) -> None:
        """Count bytes until `release`, or raise."""
        if count > self.left_bytes:
            raise RejectedError(
                Code.TOO_MANY_REQUESTS,
                f"wanted at most {self._bytes_max} bytes in calls that run "
                f"({self._limit_name}), got {self._held_bytes} and {count}",
            )
        self._held_bytes += count

    def release(self, count: int) -> None:
        """Count bytes no more."""
        self._held_bytes -= count

    @contextmanager
    def hold(self, count: int) -> Iterator[None]:
        """Count bytes while the block runs."""
        self.take(count)
        try:
            yield
        finally:
            self.release(count)
