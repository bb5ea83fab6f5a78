"""What a server counts. `stats` of a connected store contains it.

Thread safety: only the server's loop writes; any thread may read.
"""

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class ServerCounters:
    """Counters since the start of the server, and gauges."""

    net_connections: int = 0
    """Open connections."""
    net_accepted_connections: int = 0
    net_rejected_connections: int = 0
    """Connections that were over the limit, or whose user or token was wrong."""
    net_broken_connections: int = 0
    """Connections that the server closed because they violated the protocol or a limit."""
    net_requests: int = 0
    net_failed_requests: int = 0
    """Calls whose answer was an error."""
    net_running_requests: int = 0
    net_waiting_requests: int = 0
    """Running calls that may wait for messages."""
    net_received_bytes: int = 0
    net_sent_bytes: int = 0
    net_returned_leases: int = 0
    """Leases given back because their connection had ended."""

    def values(self) -> dict[str, int]:
        """Return all, by name."""
        return asdict(self)
