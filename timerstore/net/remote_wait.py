"""A `receive` or `pull` of a connected store whose answer an event loop waits for.

Thread safety: one thread at a time; other threads may use the same store.
Invariants:
    1. The descriptor is readable when the answer is there. It may be readable without one.
    2. It is open as long as something refers to the object, so an event loop that has it never
        watches another file with the same number.
    3. Messages that were leased for a cancelled `receive` are given back.
Raises: as the call; ConnectionLostError if the connection is lost or no answer comes in time.
See also: docs/several-processes.md.
"""

import os
import select
from typing import Any

from timerstore._engine.base.owner import NotCopyable
from timerstore.errors import ForkedError
from timerstore.net.call_table import CallSpec
from timerstore.net.channel import BegunCall, Channel
from timerstore.net.readable_event import ReadableEvent


class RemoteWait(NotCopyable):
    """A call that has begun. End it by `take`, or by `cancel`.

    No thread waits for it, and none is started: its descriptor waits for the socket of the
    connection, and for an answer that another thread has read.
    """

    def __init__(
        self, channel: Channel, spec: CallSpec, args: list[Any], options: dict[str, Any]
    ) -> None:
        """Send the call. NotSentError if the connection is lost."""
        self._pid = os.getpid()
        event = ReadableEvent()
        self._call: BegunCall = channel.begin(spec, args, options, event)
        self._event = event  # as long as `_readable` needs it
        self._readable = select.epoll()
        self._readable.register(event.fileno(), select.EPOLLIN)
        if (number := self._call.fileno()) >= 0:
            self._readable.register(number, select.EPOLLIN)
        self._has_ended = False

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when `take` may have the answer."""
        return self._readable.fileno()

    def take(self) -> Any:
        """Return the answer, or None as long as there is none. It never waits.

        Call it when the descriptor is readable, and every few seconds: an answer that does not
        come in the time of the call is an error here.

        Raises:
            ConnectionLostError: the connection was lost, or no answer came in time. Begin again.
            ForkedError: the call began in the parent process.
        """
        if os.getpid() != self._pid:
            raise ForkedError("the call began in the parent process; begin one in this process")
        if self._has_ended or not self._call.has_ended():
            return None
        self._has_ended = True
        return self._call.result()

    def cancel(self) -> None:
        """End the call without an answer. A call that has ended, or is the parent's, stays so."""
        if not self._has_ended:
            self._has_ended = True
            if os.getpid() == self._pid:
                self._call.give_up()
