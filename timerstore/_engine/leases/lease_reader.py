"""Reader: what a group reads of one topic to lease it: the topic, and what comes again.

Threads:  any; one at a time takes, any number wait.
Locks:    `_lock` over reading and leasing, never over a sync or a wait.
Holds:    (1) a message is leased to one caller; one whose caller was cancelled before it got the
          message (`give_back`) is the next caller's, with the same attempt; (2) neither what comes
          again nor the topic keeps the other waiting: they take turns; (3) what was leased is not
          read again, what was not is next, whatever was raised; (4) all who wait read with one
          filter, and no other caller's ends their wait.
Fails:    MessageError where the group is read by a consumer, or waits with another filter; what
          reading and leasing raise.
Source:   docs/decisions/0009-leases-replace-and-recurring.md.
"""

from collections.abc import Callable, Sequence
from weakref import WeakSet

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.leases.lease_request import Request
from timerstore._engine.leases.leased_message import LeasedMessage
from timerstore._engine.leases.leasing import Leasing, Reads
from timerstore._engine.read.consumer import Consumer
from timerstore._engine.read.groups import Filters
from timerstore._engine.read.multi_wait import MultiWait
from timerstore._engine.read.waiting_poll import WaitingPoll
from timerstore.errors import MessageError, TimerStoreError

_NO_FILTERS = Filters(None, None)
MakeConsumer = Callable[[str, str, Filters], Consumer]


class Reader(Owner):
    """Of one topic and group."""

    def __init__(
        self,
        topic: str,
        group: str,
        leasing: Leasing,
        make_consumer: MakeConsumer,
        commit: Callable[[], None],
    ) -> None:
        self._sides = [Reads(topic, group, is_retry=True), Reads(topic, group, is_retry=False)]
        self._leasing = leasing
        self._make_consumer = make_consumer
        self._commit = commit
        self._lock = Lock()
        self._filters: Filters | None = None
        self._consumers: list[Consumer] = []
        self._waiting: WeakSet[WaitingReceive] = WeakSet()  # who is dropped waits no more
        self._unseen: list[tuple[Filters, LeasedMessage]] = []  # leased, and seen by no caller
        self._turn = 0

    def take(self, request: Request) -> list[LeasedMessage]:
        """Lease what there is, at most so many; in the log on return."""
        with self._lock:
            self._read_with(request.filters)
            self._turn ^= 1
            leased: list[LeasedMessage] = []
            for side in (self._turn, 1 - self._turn):
                if len(leased) == request.max_count:
                    break
                try:
                    self._take_from(side, request, leased)
                except TimerStoreError as error:
                    if not leased or not (error.retryable or isinstance(error, MessageError)):
                        raise
                    break  # whoever asks next hears it
            return leased

    def _take_from(self, side: int, request: Request, leased: list[LeasedMessage]) -> None:
        consumer, count = self._consumers[side], request.max_count - len(leased)
        queues = consumer.fetch(count)
        messages = consumer.peek(queues, count)
        if not messages:
            return
        before = len(leased)
        try:
            self._leasing.lease(self._sides[side], messages, request, leased)
        finally:
            if len(leased) > before:
                consumer.hand_out(queues, len(leased) - before)

    # --- what no caller has seen ---

    def give_back(self, filters: Filters, messages: Sequence[LeasedMessage]) -> None:
        """Keep leased messages, read with these filters, for the next caller; wake all who wait."""
        with self._lock:
            self._unseen += [(filters, one) for one in messages]
            consumers = list(self._consumers)
        for one in consumers:
            one.wake()

    def has_unseen(self, filters: Filters) -> bool:
        """Whether there are any for a caller with these filters."""
        return any(known == filters for known, _ in self._unseen)

    def next_unseen(self, filters: Filters | None) -> LeasedMessage | None:
        """Take one for a caller with these filters; None: whatever its filters were."""
        with self._lock:
            for at, (known, one) in enumerate(self._unseen):
                if filters is None or known == filters:
                    del self._unseen[at]
                    return one
            return None

    # --- waiting ---

    def begin(self, request: Request, take: Callable[[], list[LeasedMessage]]) -> "WaitingReceive":
        """Begin to wait at both; `take` looks."""
        with self._lock:
            self._read_with(request.filters)
            polls = [one.begin_poll(request.max_count, request.wait_s) for one in self._consumers]
            waiting = WaitingReceive(polls, take, self, request.filters, self._waiting)
            if request.wait_s > 0:
                self._waiting.add(waiting)
            return waiting

    def _read_with(self, filters: Filters) -> None:
        if filters == self._filters:
            return
        retry, topic = self._sides
        if self._waiting:  # with what is closed now: each would end the other's wait, on and on
            raise MessageError(
                f"group {topic.group!r} waits for {topic.topic!r} with {self._filters}, and what "
                f"does not match is passed over for good; got {filters}"
            )
        if self._consumers:
            self._commit()  # the next ones begin where the group committed
            for one in self._consumers:
                one.close()
            self._filters, self._consumers = None, []
        # The one that may be refused first: else the other would keep its queues with the error.
        mine = self._make_consumer(topic.source, topic.group, filters)
        again = self._make_consumer(retry.source, retry.group, _NO_FILTERS)
        self._filters, self._consumers = filters, [again, mine]


class WaitingReceive(MultiWait[LeasedMessage]):
    """A `receive` that may wait, without the waiting: for what comes again, and for the topic."""

    def __init__(
        self,
        polls: Sequence[WaitingPoll],
        take: Callable[[], list[LeasedMessage]],
        reader: Reader,
        filters: Filters,
        waiting: "WeakSet[WaitingReceive]",
    ) -> None:
        super().__init__(polls, take)
        self._reader = reader
        self._filters = filters
        self._waiting = waiting

    def enter(self, ring: Callable[[], None]) -> bool:
        """Begin to wait; False where there is something to look at, or no time left."""
        if not super().enter(ring):
            return False
        if self._reader.has_unseen(self._filters):  # given back before this could be rung for it
            self.leave()
            return False
        return True

    def give_back(self, messages: Sequence[LeasedMessage]) -> None:
        """Have what this leased, and its caller did not get, be the next caller's."""
        if messages:
            self._reader.give_back(self._filters, messages)

    def end(self) -> None:
        """Leave the lines; whoever began comes here at last, or drops it."""
        super().end()
        self._waiting.discard(self)
