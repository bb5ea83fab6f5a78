"""The limits of a server: on everything that a client can make grow."""

from dataclasses import dataclass, fields

from timerstore.errors import ConfigError, quoted
from timerstore.net.frames import FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of `serve`. Each is 1 or more."""

    connections_max: int = 1024
    """Open connections, also those in a handshake of TLS. Another one gets UnavailableError and is
    closed; of many others at a time, some are closed without it."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    """Bytes of one frame, in both directions."""
    in_flight_max: int = 1024
    """Running calls of one connection, without those that wait for messages. At the limit, the
    server reads nothing more from this connection until one has ended."""
    running_bytes_max: int = 128 << 20
    """Bytes of the running calls of one connection. At the limit as for `in_flight_max`."""
    waits_max: int = 16_384
    """Calls of all connections that wait for messages. Another one gets BusyError."""
    connection_waits_max: int = 4096
    """The same, of one connection."""
    unsent_bytes: int = 1 << 20
    """Bytes of answers that a connection has not taken yet. Above this, the server starts no more
    of its calls; above `unsent_bytes_max` it closes the connection."""
    unsent_bytes_max: int = 128 << 20
    targets_max: int = 256
    """Consumers and unfinished lists (`pending`, `dead_letters`) of one connection."""
    leases_max: int = 100_000
    """Leases of one connection that has `return_leases`. Then `receive` raises BusyError."""
    hello_s: int = 10
    """Seconds for the first message of a client, and for a handshake of TLS before it. The first
    message has at most 20 KiB."""

    def __post_init__(self) -> None:
        problems = [
            f"{one.name}: wanted a whole number from 1 on, got {quoted(value)}"
            for one in fields(self)
            if type(value := getattr(self, one.name)) is not int or value < 1
        ]
        if problems:
            raise ConfigError(problems)
