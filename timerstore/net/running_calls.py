"""The running calls of a connection: their ids, their number and bytes, and those that wait.

Thread safety: runs on the server's loop.
Raises: ProtocolError for an id that cannot be used, BusyError for too many waiting calls.
"""

import asyncio

from timerstore._engine.base.owner import NotCopyable
from timerstore.errors import BusyError, ProtocolError
from timerstore.net.server_counters import ServerCounters
from timerstore.net.server_limits import ServerLimits
from timerstore.net.wire_messages import NO_CALL


class RunningCalls(NotCopyable):
    """The calls that were started and have not ended."""

    def __init__(self, limits: ServerLimits, counters: ServerCounters) -> None:
        self._limits = limits
        self._counters = counters
        self._ends: dict[int, asyncio.Future[None]] = {}  # by id; done when the call has ended
        self._bytes: dict[int, int] = {}  # memory of the arguments, by id
        self._bytes_sum = 0
        self._waiting: set[int] = set()  # ids of calls that may wait for messages

    def has_room(self, memory_bytes: int) -> bool:
        """Return whether a call that takes this memory may start.

        Calls that may wait for messages do not count, so a call always starts if no other runs.
        """
        count = len(self._ends) - len(self._waiting)
        if not count:
            return True
        limits = self._limits
        is_within = self._bytes_sum + memory_bytes <= limits.running_bytes_max
        return count < limits.in_flight_max and is_within

    def check_id(self, call_id: int) -> None:
        """Check the id of a new call."""
        if call_id <= NO_CALL or call_id in self._ends:
            raise ProtocolError("the id of a call is not above 0, or in use", got=call_id)

    def add_wait(self, call_id: int, memory_bytes: int) -> None:
        """Count a new call among those that may wait for messages."""
        limits = self._limits
        if (
            self._counters.net_waiting_requests >= limits.waits_max
            or len(self._waiting) >= limits.connection_waits_max
            or self._bytes_sum + memory_bytes > limits.running_bytes_max
        ):
            raise BusyError(
                "too many calls wait for messages",
                wanted=f"at most {limits.waits_max}, {limits.connection_waits_max} of a connection "
                f"and {limits.running_bytes_max} bytes of its arguments",
            )
        self._waiting.add(call_id)
        self._counters.net_waiting_requests += 1

    def add(self, call_id: int, memory_bytes: int, end: "asyncio.Future[None]") -> None:
        """Add a call that was started. `end` is done when the call has ended."""
        self._ends[call_id] = end
        self._bytes[call_id] = memory_bytes
        self._bytes_sum += memory_bytes
        self._counters.net_running_requests += 1

    def replace(self, call_id: int, end: "asyncio.Future[None]") -> None:
        """Let another future be done when the call has ended."""
        self._ends[call_id] = end

    def has(self, call_id: int, end: "asyncio.Future[None]") -> bool:
        """Return whether a call runs; a later one may have its id."""
        return self._ends.get(call_id) is end

    def remove(self, call_id: int) -> None:
        """Remove a call that has ended."""
        del self._ends[call_id]
        self._bytes_sum -= self._bytes.pop(call_id)
        self._counters.net_running_requests -= 1
        self.end_wait(call_id)

    def end_wait(self, call_id: int) -> None:
        """Count a call no more among those that may wait. It cannot be cancelled any more."""
        if call_id in self._waiting:
            self._waiting.discard(call_id)
            self._counters.net_waiting_requests -= 1

    def cancel_wait(self, call_id: int) -> None:
        """Cancel a call, if it may wait for messages."""
        if call_id in self._waiting:
            self._ends[call_id].cancel()

    def cancel_waits(self) -> None:
        """Cancel all calls that may wait for messages."""
        for call_id in self._waiting:
            self._ends[call_id].cancel()

    async def ended(self, timeout_s: float | None = None) -> None:
        """Return when the present calls have ended, or after a time."""
        if self._ends:
            await asyncio.wait(list(self._ends.values()), timeout=timeout_s)
