"""Sort due messages by topic, give each topic a share of each batch, and apply rate limits.

    open slot ─► a: ▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪ 100 a second    two of a, all of b, a part of c: one batch
                 b: ▪▪
                 c: ▪▪▪▪▪▪▪▪▪▪

The fair queue is used if a topic has a rate limit, or if many small topics are due at once and
would delay all messages after them. (A burst of one topic has its own queue in the open slot.)
Otherwise all messages are delivered in one order, whatever their topic. A message in the fair queue
takes 64 bytes of memory.

Thread safety: dequeue-put adds and takes; any thread may set a rate, count, or look up a message.
Locking: `_lock`; no other lock is taken under it.
Invariants:
    1. Within a topic the order is (due time, put), with or without a rate limit.
    2. No message leaves before it is due, or faster than its topic's rate: at most `rate` a second,
       and at most a tenth of a second's worth at once.
    3. A cancelled message takes no token. A message that was read twice, or whose first
       delivery failed, takes only one.
    4. A message in the fair queue still counts as undelivered in its slot, so a checkpoint keeps it
       and recovery reads it again.
See also: docs/decisions/0004-fair-delivery.md
"""

from collections import deque
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import Lock, lib
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.log.timer_states import which_wait
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.record_lookup import real_routes
from timerstore._engine.timer.timer_arrays import Records
from timerstore.errors import GoneError

BURST_MESSAGES = 65_536
"""Loaded messages from which on topics take turns."""
_BURST_S = 0.1  # seconds of a rate that may leave at once
_LOOK = 4096  # entries that are checked for cancelled ones at a time
_NS = 1_000_000_000


Taken = tuple[str, Records]
"""A topic, and entries of it that may be delivered."""


class _TopicQueue:
    """The entries of one topic, in order."""

    __slots__ = ("at_ns", "count", "parts", "tokens")

    def __init__(self, now_ns: int) -> None:
        self.parts: deque[Records] = deque()
        self.count = 0
        self.tokens = 1.0
        self.at_ns = now_ns

    def add(self, part: Records) -> None:
        """Add ordered entries. In most cases they come after all others."""
        self.count += len(part)
        if not self.parts or not _is_before(part[0], self.parts[-1][-1]):
            self.parts.append(part)
        elif not _is_before(self.parts[0][0], part[-1]):
            self.parts.appendleft(part)
        else:
            rest = np.concatenate([*self.parts, part])
            self.parts = deque([rest[np.lexsort((rest["id"], rest["due_ms"]))]])

    def take(self, count: int) -> list[Records]:
        """Remove and return the first entries."""
        taken = []
        while count and self.parts:
            part = self.parts.popleft()
            if len(part) > count:
                self.parts.appendleft(part[count:])
                part = part[:count]
            taken.append(part)
            count -= len(part)
            self.count -= len(part)
        return taken


class FairQueue(NotCopyable):
    """The fair queue of one store."""

    def __init__(self, core: Core, rates: Mapping[str, float], on_rate: Callable[[], None]) -> None:
        """Create an empty queue. `on_rate` is called after a rate was changed."""
        self._clock = core.clock
        self._log = core.log
        self._routes = core.routes
        self._lock = Lock()
        self._rates = dict(rates)  # by topic, messages a second
        self._queues: dict[str, _TopicQueue] = {}
        self._turn = 0
        self._last_taken: list[Taken] = []
        self._on_rate = on_rate

    def __len__(self) -> int:
        with self._lock:
            return sum(queue.count for queue in self._queues.values())

    @property
    def rates(self) -> dict[str, float]:
        """The rate of each limited topic, in messages a second."""
        with self._lock:
            return dict(self._rates)

    def set_rate(self, topic: str, per_second: float | None) -> None:
        """Set a topic's rate in messages a second, or remove its limit."""
        with self._lock:
            if per_second is None:
                self._rates.pop(topic, None)
            else:
                self._rates[topic] = per_second
        self._on_rate()

    def is_needed(self, loaded: int) -> bool:
        """Return whether due messages must be sorted by topic.

        loaded: the number of loaded messages, except those of bursts with a queue of their own.
        """
        if self._rates or self._queues:
            return True
        return loaded > BURST_MESSAGES and self._routes.are_mixed()

    # --- adding ---

    def sort_in(self, due: Records) -> Records:
        """Add due entries, which are in order.

        Return those whose record retention has moved; a newer copy replaces them.
        """
        gone = due["log_offset"] < self._log.segments.begin
        here = due[~gone] if gone.any() else due
        if not len(here):
            return due
        try:
            found = real_routes(
                self._log, self._routes, here["log_offset"], here["size"], is_level=False
            )
        except GoneError:
            return self.sort_in(due)  # retention has removed the log's first file since
        here["flags"] &= ~lib.TS_FLAG_ROLL
        known = self._routes.by_index
        numbers = np.array([int(route.native.topic_number) for route in known])[found]
        with self._lock:
            is_one = bool((numbers == numbers[0]).all())  # frequent with bursts
            for number in numbers[:1].tolist() if is_one else np.unique(numbers).tolist():
                part = here if is_one else here[numbers == number]
                topic = known[int(found[np.argmax(numbers == number)])].topic
                queue = self._queues.get(topic)
                if queue is None:
                    queue = self._queues[topic] = _TopicQueue(self._clock.monotonic_ns)
                queue.add(part)
        return due[gone]

    # --- taking ---

    def take(self, now_ms: int, capacity: int) -> list[Taken]:
        """Remove and return up to `capacity` entries that may be delivered now.

        Each topic gets a share. Each call begins with another topic.
        """
        taken: list[Taken] = []
        with self._lock:
            topics = [topic for topic, queue in self._queues.items() if queue.count]
            self._turn += 1
            for k in range(len(topics)):
                topic = topics[(k + self._turn) % len(topics)]
                share = -(-capacity // (len(topics) - k))
                for part in self._take_of(topic, now_ms, share):
                    taken.append((topic, part))
                    capacity -= len(part)
            for topic, queue in list(self._queues.items()):
                if not queue.count and topic not in self._rates:
                    del self._queues[topic]
            self._last_taken = taken
        return taken

    def give_back(self, taken: list[Taken], undone: int) -> None:
        """Return the tokens of the last `undone` entries taken, which were not delivered."""
        with self._lock:
            for topic, part in reversed(taken):
                rest = part[max(0, len(part) - undone) :]
                undone -= len(rest)
                queue = self._queues.get(topic)
                if len(rest) and queue is not None and topic in self._rates:
                    queue.tokens += int(self._needs_token(rest, -1).sum())

    def _take_of(self, topic: str, now_ms: int, share: int) -> list[Records]:
        queue, rate = self._queues[topic], self._rates.get(topic)
        due = 0
        for part in queue.parts:  # all entries are due, unless the clock was set back
            some = int(np.searchsorted(part["due_ms"], now_ms, side="right"))
            due += some
            if some < len(part) or due >= share:
                break
        count = min(share, due)
        if rate is not None:
            count = self._take_tokens(queue, rate, count)
        return queue.take(count)

    def _take_tokens(self, queue: _TopicQueue, rate: float, count: int) -> int:
        """Take tokens for pending entries; return how many of the first `count` may leave."""
        now_ns = self._clock.monotonic_ns
        most = max(1.0, rate * _BURST_S)
        queue.tokens = min(most, queue.tokens + (now_ns - queue.at_ns) / _NS * rate)
        queue.at_ns = now_ns
        may_go, seen, last = int(queue.tokens + 1e-9), 0, -1
        for part in queue.parts:
            for at in range(0, len(part), _LOOK):
                some = part[at : min(at + _LOOK, len(part))]
                waits = np.cumsum(self._needs_token(some, last))
                last = int(some["id"][-1])
                fit = int(np.searchsorted(waits, may_go, side="right"))
                fit = min(fit, count - seen)
                used = int(waits[fit - 1]) if fit else 0
                queue.tokens -= used
                may_go -= used
                seen += fit
                if fit < len(waits):
                    return seen
        return seen

    def _needs_token(self, part: Records, before: int) -> npt.NDArray[np.bool_]:
        """Return which entries take a token.

        Entries that were read twice, as after the clock was set back, are adjacent. `before` is the
        id of the entry before this part.
        """
        is_first: npt.NDArray[np.bool_] = np.diff(part["id"], prepend=before) != 0
        needs_token: npt.NDArray[np.bool_] = is_first & which_wait(
            self._log.native.states, part["id"]
        )
        return needs_token

    def next_s(self) -> float | None:
        """Return the seconds until an entry may leave, or None if the queue is empty."""
        with self._lock:
            waits = [
                self._wait_of(topic, queue) for topic, queue in self._queues.items() if queue.count
            ]
        return min(waits, default=None)

    def _wait_of(self, topic: str, queue: _TopicQueue) -> float:
        early_s = self._clock.seconds_until(int(queue.parts[0]["due_ms"][0]))
        rate = self._rates.get(topic)
        if rate is None:
            return max(0.0, early_s)
        since_s = (self._clock.monotonic_ns - queue.at_ns) / _NS
        return max(0.0, early_s, (1.0 - queue.tokens) / rate - since_s)

    # --- looking up ---

    def held(self) -> list[Records]:
        """Return the queue's entries, in parts, and those taken last.

        The latter may not be in the log yet.
        """
        with self._lock:
            parts = [part for _, part in self._last_taken]
            for queue in self._queues.values():
                parts += queue.parts
        return parts

    def place(self, topic: str, timer_id: int) -> tuple[int, float | None] | None:
        """Return how many entries of the topic precede this one, and the topic's rate.

        Return None if the timer is not in the queue.
        """
        with self._lock:
            queue = self._queues.get(topic)
            parts = list(queue.parts) if queue is not None else []
            rate = self._rates.get(topic)
        before = 0
        for part in parts:
            at = np.flatnonzero(part["id"] == timer_id)
            if len(at):
                return before + int(at[0]), rate
            before += len(part)
        return None


def _is_before(one: Records, other: Records) -> bool:
    return bool((one["due_ms"], one["id"]) < (other["due_ms"], other["id"]))
