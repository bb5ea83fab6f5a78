"""Leased messages that an awaited `receive` has not returned to its caller yet.

    leased in a call of the store -> add -> claim by the task        it returns the messages
                                         -> claim by the give-back   the task was cancelled
                                         -> take_all                 the store is being closed

Thread safety: any thread; one of several claims gets a message.
"""

from collections.abc import Iterable, Sequence

from timerstore._engine.base.owner import Owner
from timerstore._engine.leases.leased_message import LeasedMessage


class UnclaimedLeases(Owner):
    """The unclaimed messages of one store, by receipt."""

    def __init__(self) -> None:
        self._messages: dict[str, LeasedMessage] = {}

    def add(self, messages: Sequence[LeasedMessage]) -> None:
        """Add messages, in the call of the store that leases them."""
        self._messages.update((one.receipt, one) for one in messages)

    def claim(self, messages: Iterable[LeasedMessage]) -> list[LeasedMessage]:
        """Return those of the messages that no other claim got."""
        take = self._messages.pop  # a single step
        return [one for one in messages if take(one.receipt, None) is not None]

    def take_all(self) -> list[LeasedMessage]:
        """Claim all messages."""
        return self.claim(list(self._messages.values()))
