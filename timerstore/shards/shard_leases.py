"""Lease messages from all shards. Each lease belongs to one shard, and its receipt names the shard.

    receive    calls shard after shard, beginning after the last one that returned messages
    receipt    s00002.<the shard's receipt>: `ack`, `nack`, `bury` and `extend` go to shard 2, also
               after a restart, because the number of shards never changes

Thread safety: any thread.
Locking: `_lock` protects the turns. No call is made while it is held.
Invariants:
    1. No shard starves: for each topic or list of topics, and group, a call begins where the last
       one ended.
    2. Messages that one shard leased are returned even if another shard raises an error. The next
       call begins with that shard and raises its error.
    3. A waiting `receive` is registered in the wait queue of each shard.
Raises: as TimerStore; errors name the shard.
See also: docs/decisions/0010-shards-and-spark.md and
docs/decisions/0009-leases-replace-and-recurring.md.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import Any, Protocol

from timerstore._engine.base import argument_types
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format.lease import read_receipt
from timerstore._engine.leases import AckResult, LeasedMessage, WaitingReceive
from timerstore._engine.leases.lease_reader import recalled
from timerstore._engine.leases.receive_request import (
    ReceiveChecks,
    ReceiveRequest,
    Topics,
    check_topics,
)
from timerstore._engine.read.waiting import MultiWait, begin_parts, wait_in_thread
from timerstore.errors import TimerStoreError
from timerstore.shards.receipt import ShardLeasedMessage, join_handle, leased_in, split_receipt
from timerstore.store import TimerStore
from timerstore.types.config import StoreConfig

Call = Callable[[TimerStore], Any]


class CallSome(Protocol):
    """Calls some shards at once. Returns the results in the given order."""

    def __call__(self, calls: Mapping[int, Call]) -> list[Any]: ...  # noqa: D102


class ShardLeases(NotCopyable):
    """The leases of one directory of shards."""

    def __init__(
        self,
        config: StoreConfig,
        stores: Sequence[TimerStore],
        call: Callable[[int, Call], Any],
        call_some: CallSome,
    ) -> None:
        self._config = config
        self._checks = ReceiveChecks(config)
        self._stores = stores
        self._call = call
        self._call_some = call_some
        self._lock = Lock()
        self._turns: dict[tuple[Topics, str], int] = {}

    # --- receiving ---

    def receive(self, request: ReceiveRequest) -> list[ShardLeasedMessage]:
        """As ShardedStore.receive."""
        request = self._checked(request)
        found = self._take(request)
        if found or request.wait == 0:
            return found
        return wait_in_thread(self._begin(request), found)

    def begin(self, request: ReceiveRequest) -> MultiWait[ShardLeasedMessage]:
        """Begin a `receive` during which the caller waits."""
        return self._begin(self._checked(request))

    def _checked(self, request: ReceiveRequest) -> ReceiveRequest:
        """Check a request before any shard leases a message, and make its acks."""
        topics = check_topics(request.topic, request.group)
        terms = self._checks.terms(request)
        topic = topics if len(topics) > 1 else topics[0]
        if request.ack:
            self.ack(request.ack, "ack")
        return replace(request, topic=topic, max_count=terms.max_count, wait=terms.wait_s, ack=())

    def _begin(self, request: ReceiveRequest) -> MultiWait[ShardLeasedMessage]:
        begin = methodcaller("begin_receive", request.topic, request.group, **request.options())
        shards = range(len(self._stores))
        begun: list[WaitingReceive] = begin_parts(
            partial(self._call, shard, begin) for shard in shards
        )
        return MultiWait(begun, lambda: self._take(request))

    def _take(self, request: ReceiveRequest) -> list[ShardLeasedMessage]:
        """Lease what there is now, at most so many, from shard after shard."""
        topic, group = request.topic, request.group
        count, most = len(self._stores), request.max_count
        key = topic if isinstance(topic, str) else tuple(sorted(topic)), group
        with self._lock:
            begin = recalled(self._turns, key, 0)
            self._turns[key] = begin + 1
        found: list[ShardLeasedMessage] = []
        asked = 1  # shards, those that the next call need not begin with
        try:
            for step in range(count):
                shard = (begin + step) % count
                now = replace(request, max_count=most - len(found), wait=0.0).options()
                try:
                    got = self._call(shard, methodcaller("receive", topic, group, **now))
                except TimerStoreError:
                    if not found:
                        asked = step + 1  # the next call begins with the others
                        raise
                    asked = step
                    break
                found += [leased_in(shard, one) for one in got]
                if got:
                    asked = step + 1
                if len(found) == most:
                    break
        finally:
            with self._lock:
                if self._turns.get(key) == begin + 1:  # no other call has begun since
                    self._turns[key] = begin + asked
        return found

    # --- what becomes of a lease ---

    def ack(self, given: Iterable[str | LeasedMessage], name: str = "receipts") -> list[AckResult]:
        """Implement ShardedStore.ack_many. `name`: of the argument, for errors."""
        places = argument_types.each_of(name, given, self._place_of)
        by_shard: dict[int, list[int]] = {}
        for at, (shard, _) in enumerate(places):
            by_shard.setdefault(shard, []).append(at)
        if not places:
            return []
        found = self._call_some(
            {
                shard: methodcaller("ack_many", [places[at][1] for at in which])
                for shard, which in by_shard.items()
            }
        )
        answers = {
            at: answer
            for which, part in zip(by_shard.values(), found, strict=True)
            for at, answer in zip(which, part, strict=True)
        }
        return [answers[at] for at in range(len(places))]

    def ack_one(self, given: str | LeasedMessage) -> AckResult:
        """Implement ShardedStore.ack."""
        shard, receipt = self._place_of(given)
        answer: AckResult = self._call(shard, methodcaller("ack", receipt))
        return answer

    def nack(self, given: str | LeasedMessage, delay: Any, error: Any) -> AckResult:
        """Implement ShardedStore.nack."""
        shard, receipt = self._place_of(given)
        answer: AckResult = self._call(
            shard, methodcaller("nack", receipt, delay=delay, error=error)
        )
        return answer

    def bury(self, given: str | LeasedMessage, error: Any) -> AckResult:
        """Implement ShardedStore.bury."""
        shard, receipt = self._place_of(given)
        answer: AckResult = self._call(shard, methodcaller("bury", receipt, error=error))
        return answer

    def extend(self, given: str | LeasedMessage, lease: Any) -> str:
        """Implement ShardedStore.extend."""
        shard, receipt = self._place_of(given)
        return join_handle(shard, self._call(shard, methodcaller("extend", receipt, lease=lease)))

    def renew(self, given: str | LeasedMessage, lease: Any) -> int:
        """Implement ShardedStore.renew."""
        shard, receipt = self._place_of(given)
        until_ms: int = self._call(shard, methodcaller("renew", receipt, lease=lease))
        return until_ms

    def _place_of(self, given: object) -> tuple[int, str]:
        """Return the shard and the receipt in that shard, checked."""
        text = given.receipt if isinstance(given, LeasedMessage) else given
        shard, receipt = split_receipt(text, len(self._stores))
        read_receipt(receipt)
        return shard, receipt
