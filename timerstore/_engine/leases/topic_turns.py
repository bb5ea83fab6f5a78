"""Lease messages of several topics in one call; the topics take turns.

    receive(["mail", "sms", "push"], "sender")     each call begins after the topic that the last
                                                   messages of the call before it came from

Thread safety: any thread.
Locking: `_lock` protects the turn. No topic is read while it is held.
Invariants:
    1. No topic starves: a topic that has messages is the first of a call after at most as many
       calls as there are other topics.
    2. Messages that were leased before another topic raised an error are returned. The next call
       begins with that topic and raises its error.
    3. A waiting call is registered in the wait queues of all topics; its message wakes it, and it
       leaves all of them.
Raises: what reading and leasing raise.
See also: docs/decisions/0017-dead-letters-and-priorities.md.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.leases.lease_reader import LeaseReader
from timerstore._engine.leases.leased_message import LeasedMessage
from timerstore._engine.leases.receive_request import ReceiveTerms
from timerstore._engine.read.multi_wait import MultiWait, begin_parts
from timerstore.errors import MessageError, TimerStoreError

_TURNS_MAX = 1024  # that are remembered

Key = TypeVar("Key")
Turn = TypeVar("Turn")


def recalled(turns: dict[Key, Turn], key: Key, first: Turn) -> Turn:
    """Return the turn of a key, which becomes the last in `turns`; a new key gets `first`.

    If there are too many, the one not used for the longest time is forgotten.
    """
    turn = turns.pop(key, first)
    if len(turns) >= _TURNS_MAX:
        del turns[next(iter(turns))]
    turns[key] = turn
    return turn


class TopicTurns(Owner):
    """The readers of several topics for one group."""

    def __init__(self, readers: Sequence[LeaseReader]) -> None:
        self._readers = tuple(readers)
        self._lock = Lock()
        self._first = 0

    def take(self, terms: ReceiveTerms, leased: list[LeasedMessage]) -> None:
        """Lease the messages that there are, as LeaseReader.take of one topic after another."""
        readers = self._readers
        with self._lock:
            first = self._first
        following = first
        try:
            for turn in range(first, first + len(readers)):
                before = len(leased)
                try:
                    readers[turn % len(readers)].take(terms, leased)
                except TimerStoreError as error:
                    following = turn if leased else turn + 1  # the call after it reads the others
                    if not leased or not (error.retryable or isinstance(error, MessageError)):
                        raise
                    break
                if len(leased) > before:
                    following = turn + 1
                if len(leased) == terms.max_count:
                    break
        finally:
            with self._lock:
                self._first = following % len(readers)

    def begin(
        self, terms: ReceiveTerms, take: Callable[[], list[LeasedMessage]]
    ) -> "WaitingTopics":
        """Begin to wait for all topics; `take` leases messages."""
        return WaitingTopics(
            begin_parts(partial(reader.begin, terms, take) for reader in self._readers), take
        )


class WaitingTopics(MultiWait[LeasedMessage]):
    """A `receive` that may wait for several topics."""
