"""The counters and gauges of a server. `stats` of its store contains them.

base/metrics.py describes each.

Thread safety: only the server's loop writes; any thread may read.
"""

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class ServerCounters:
    """Counters since the start of the server, and gauges."""

    net_connections: int = 0
    net_accepted_connections: int = 0
    net_rejected_connections: int = 0
    net_broken_connections: int = 0
    net_requests: int = 0
    net_failed_requests: int = 0
    net_running_requests: int = 0
    net_waiting_requests: int = 0
    net_received_bytes: int = 0
    net_sent_bytes: int = 0
    net_returned_leases: int = 0

    def values(self) -> dict[str, int]:
        """Return all, by name."""
        return asdict(self)
