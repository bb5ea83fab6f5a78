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
from timerstore._engine.leases.lease_reader import LeaseReader, WaitingReceive
from timerstore._engine.leases.leased_message import LeasedMessage
from timerstore._engine.leases.receive_request import ReceiveTerms
from timerstore._engine.read.groups import Filters
from timerstore._engine.read.multi_wait import MultiWait, begin_parts
from timerstore.errors import MessageError, TimerStoreError

_TURNS_MAX = 1024  # that are remembered

Key = TypeVar("Key")
Turn = TypeVar("Turn")

LeaseFrom = Callable[[LeaseReader, ReceiveTerms], list[LeasedMessage]]


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

    def lease(self, terms: ReceiveTerms, lease_from: LeaseFrom) -> list[LeasedMessage]:
        """Lease the messages that there are, at most `max_count`, with `lease_from` each topic."""
        readers, found = self._readers, list[LeasedMessage]()
        with self._lock:
            first = self._first
        following = first
        try:
            for turn in range(first, first + len(readers)):
                reader = readers[turn % len(readers)]
                left = terms._replace(max_count=terms.max_count - len(found))
                try:
                    got = lease_from(reader, left)
                except TimerStoreError as error:
                    following = turn if found else turn + 1  # the call after it reads the others
                    if not found:
                        raise
                    if not (error.retryable or isinstance(error, MessageError)):
                        self.give_back(terms.filters, found)
                        raise
                    break
                if got:
                    found += got
                    following = turn + 1
                if len(found) == terms.max_count:
                    break
        finally:
            with self._lock:
                self._first = following % len(readers)
        return found

    def give_back(self, filters: Filters, messages: Sequence[LeasedMessage]) -> None:
        """Keep leased messages for the next callers, each in the reader of its topic."""
        for reader in self._readers:
            mine = [one for one in messages if one.topic == reader.topic]
            reader.give_back(filters, mine)

    def begin(
        self, terms: ReceiveTerms, take: Callable[[], list[LeasedMessage]]
    ) -> "WaitingTopics":
        """Begin to wait for all topics; `take` leases messages."""
        begun = begin_parts(partial(reader.begin, terms, take) for reader in self._readers)
        topics = (reader.topic for reader in self._readers)
        return WaitingTopics(dict(zip(topics, begun, strict=True)), take)


class WaitingTopics(MultiWait[LeasedMessage]):
    """A `receive` that may wait for several topics."""

    def __init__(
        self, by_topic: dict[str, WaitingReceive], take: Callable[[], list[LeasedMessage]]
    ) -> None:
        super().__init__(tuple(by_topic.values()), take)
        self._by_topic = by_topic

    def give_back(self, messages: Sequence[LeasedMessage]) -> None:
        """Pass messages that a cancelled caller did not get to the next callers of their topics."""
        for topic, one in self._by_topic.items():
            one.give_back([message for message in messages if message.topic == topic])
