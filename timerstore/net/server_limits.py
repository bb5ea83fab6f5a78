"""The limits of a server: on everything that a client can make grow."""

from dataclasses import dataclass, fields
from typing import Any

from timerstore.errors import ConfigError, quoted
from timerstore.net.frames import FRAME_BYTES_MAX


def check_limits(one: Any) -> None:
    """Raise ConfigError unless each field of a dataclass is a whole number from 1 on."""
    problems = [
        f"{limit.name}: wanted a whole number from 1 on, got {quoted(value)}"
        for limit in fields(one)
        if type(value := getattr(one, limit.name)) is not int or value < 1
    ]
    if problems:
        raise ConfigError(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of `serve`. Each is 1 or more."""

    connections_max: int = 1024
    """Open connections, also those in a handshake of TLS. Another one gets UnavailableError and is
    closed; of many others at a time, some are closed without it. So is one whose descriptor is in
    the last quarter of those that the process may have (RLIMIT_NOFILE): the store needs them."""
    greeting_max: int = 256
    """Of these, connections whose first message was not accepted yet. Another one closes the oldest
    of them. No more than these need no token or accepted user."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    """Bytes of one frame, in both directions."""
    in_flight_max: int = 1024
    """Running calls of one connection, without those that wait for messages. At the limit, the
    server reads nothing more from this connection until one has ended."""
    running_bytes_max: int = 128 << 20
    """Bytes of memory that the decoded arguments of the running calls of one connection take. At
    the limit as for `in_flight_max`. A single call above it gets MessageError, a call that may wait
    gets BusyError."""
    waits_max: int = 16_384
    """Calls of all connections that wait for messages. Another one gets BusyError."""
    connection_waits_max: int = 4096
    """The same, of one connection."""
    unsent_bytes: int = 1 << 20
    """Bytes of answers that a connection has not taken yet. Above this, the server starts no more
    of its calls, and none of those that it started begins in a thread."""
    unsent_bytes_max: int = 128 << 20
    """Above this, the server closes the connection. See `calls_in_threads_max`."""
    targets_max: int = 256
    """Consumers and unfinished lists (`pending`, `dead_letters`) of one connection."""
    leases_max: int = 100_000
    """Leases of one connection that has `return_leases`. Then `receive` raises BusyError."""
    hello_s: int = 10
    """Seconds for the first message of a client, with the handshake of TLS before it. The first
    message has at most 20 KiB."""

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def calls_in_threads_max(self) -> int:
        """Calls of one connection that threads run at a time. Their answers, even the longest, take
        three quarters of `unsent_bytes_max`. The rest is for answers that the loop makes.
        """
        return max(1, self.unsent_bytes_max * 3 // 4 // self.frame_bytes_max)
