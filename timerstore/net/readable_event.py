"""An event that an event loop can wait for: a descriptor that becomes readable.

Thread safety: any thread.
Invariants: the descriptor is closed when nothing refers to the event any more, and not before. So a
    thread that sets a late event never writes to another file with the same number.
"""

import os

from timerstore._engine.base.owner import NotCopyable


class ReadableEvent(NotCopyable):
    """Becomes readable once and stays so."""

    def __init__(self) -> None:
        self._number = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._number

    def set(self) -> None:
        """Make it readable. It may be set several times."""
        os.eventfd_write(self._number, 1)

    def __del__(self) -> None:
        if (number := self.__dict__.get("_number")) is not None:
            os.close(number)
