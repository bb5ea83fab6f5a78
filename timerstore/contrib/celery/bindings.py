"""Exchanges and the queues that are bound to them, as messages of a topic.

Each process reads the topic, so it routes also to queues that it did not declare. A binding to the
queue "" says that broadcast queues read the exchange's own topic: there is one for an exchange,
however many workers and callers come and go.

Thread safety: any thread.
Locking: `_lock` while the topic is read.
"""

import json
import threading
import time
from typing import Any, NamedTuple

from timerstore.contrib.celery.address import Store
from timerstore.contrib.celery.wire import BINDINGS_TOPIC

BROADCAST = ""
"""In place of a queue: broadcast queues read the exchange's topic."""
_FRESH_S = 1.0
_PAGE = 1000


class Binding(NamedTuple):
    """A queue that gets messages of an exchange."""

    exchange: str
    type: str
    routing_key: str
    queue: str


class Bindings:
    """The bindings in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._found: dict[Binding, None] = {}
        self._is_there = False  # the topic
        self._offset = 0
        self._read_s = 0.0

    def of(self, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange. Those that other processes added in the last second
        may be missing if there are others.
        """
        if time.monotonic() - self._read_s > _FRESH_S:
            self.refresh()
        found = [one for one in list(self._found) if one.exchange == exchange]
        if not found:
            self.refresh()
            found = [one for one in list(self._found) if one.exchange == exchange]
        return found

    def of_queue(self, queue: str) -> list[Binding]:
        """Return the bindings of a queue."""
        self.refresh()
        return [one for one in list(self._found) if one.queue == queue]

    def add(self, binding: Binding) -> None:
        """Add a binding, if it is not there."""
        self._change("+", binding, is_wanted=True)

    def remove(self, binding: Binding) -> None:
        """Remove a binding, if it is there."""
        self._change("-", binding, is_wanted=False)

    def _change(self, sign: str, binding: Binding, *, is_wanted: bool) -> None:
        self.refresh()
        if (binding in self._found) is not is_wanted:
            self._store.put(BINDINGS_TOPIC, json.dumps([sign, *binding]).encode(), queue_id=0)
            self.refresh()

    def refresh(self) -> None:
        """Read the newer messages of the topic."""
        with self._lock:
            if not self._is_there:
                self._is_there = BINDINGS_TOPIC in self._store.topics()
            while self._is_there:
                result = self._store.pull(BINDINGS_TOPIC, 0, self._offset, max_count=_PAGE)
                for one in result.messages:
                    self._apply(*json.loads(one.body))
                if result.next_offset == self._offset:
                    break
                self._offset = result.next_offset
            self._read_s = time.monotonic()

    def _apply(self, sign: str, *fields: Any) -> None:
        binding = Binding(*fields)
        if sign == "+":
            self._found[binding] = None
        else:
            self._found.pop(binding, None)
