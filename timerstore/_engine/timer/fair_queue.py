"""Fair queue: due messages by topic. Topics take turns, and some have a rate limit.

    open slot ─► a: ▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪ 100 a second    two of a, all of b, a part of c: one batch
                 b: ▪▪
                 c: ▪▪▪▪▪▪▪▪▪▪

Used where a topic has a rate, or where so many small topics are due at once that what is due after
them would wait for all (a topic's crowd has a queue of its own in the open slot); otherwise
everything goes in one order, without a look at its topic.

Threads:  dequeue-put sorts in and takes; anyone sets a rate, counts, or asks where one is.
Locks:    _lock, then nothing.
Holds:    (1) of a topic the order is (due, put), paced or not; (2) nothing leaves before it is due,
          nor beyond its rate: at most `rate` a second and a tenth of a second's worth at once; (3)
          what was cancelled takes no turn, what was read twice, or tried in vain, takes one; (4)
          what is in here still counts as outstanding in its slot: a checkpoint keeps it, a restart
          reads it again.
Cost:     64 bytes of memory for each message held.
Source:   docs/decisions/0004-fair-delivery.md.
"""

from collections import deque
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.native import Lock, lib
from timerstore._engine.base.owner import Owner
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.record_lookup import real_routes
from timerstore._engine.queues.routes import Routes
from timerstore._engine.timer.timer_arrays import Records
from timerstore._engine.timer.timer_states import which_wait
from timerstore.clock import Clock
from timerstore.errors import GoneError

BURST_MESSAGES = 65_536
"""Messages that are read from their slots, and wait: from here on topics take turns."""
_BURST_S = 0.1  # of a rate that may go at once
_LOOK = 4096  # entries that are looked at for cancelled ones at a time
_NS = 1_000_000_000


Taken = tuple[str, Records]
"""A topic, and entries of it that may go."""


class _TopicQueue:
    """What is held of one topic, in order."""

    __slots__ = ("at_ns", "count", "parts", "tokens")

    def __init__(self, now_ns: int) -> None:
        self.parts: deque[Records] = deque()
        self.count = 0
        self.tokens = 1.0
        self.at_ns = now_ns

    def add(self, part: Records) -> None:
        """Add entries that are in order; most often behind all others."""
        self.count += len(part)
        if not self.parts or not _is_before(part[0], self.parts[-1][-1]):
            self.parts.append(part)
        elif not _is_before(self.parts[0][0], part[-1]):
            self.parts.appendleft(part)
        else:
            rest = np.concatenate([*self.parts, part])
            self.parts = deque([rest[np.lexsort((rest["id"], rest["due_ms"]))]])

    def take(self, count: int) -> list[Records]:
        """Take the first of them."""
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


class FairQueue(Owner):
    """The lanes of one store."""

    def __init__(
        self,
        clock: Clock,
        log: CommitLog,
        routes: Routes,
        rates: Mapping[str, float],
        on_rate: Callable[[], None],
    ) -> None:
        """`on_rate` is called after a rate was changed."""
        self._clock = clock
        self._log = log
        self._routes = routes
        self._lock = Lock()
        self._rates = dict(rates)  # by topic, messages a second
        self._fair_queue: dict[str, _TopicQueue] = {}
        self._turn = 0
        self._last_taken: list[Taken] = []
        self._on_rate = on_rate

    def __len__(self) -> int:
        with self._lock:
            return sum(lane.count for lane in self._fair_queue.values())

    @property
    def rates(self) -> dict[str, float]:
        """Messages a second, of topics that have a rate."""
        with self._lock:
            return dict(self._rates)

    def set_rate(self, topic: str, per_second: float | None) -> None:
        """Give a topic a rate, or none."""
        with self._lock:
            if per_second is None:
                self._rates.pop(topic, None)
            else:
                self._rates[topic] = per_second
        self._on_rate()

    def are_needed(self, loaded: int) -> bool:
        """Whether what is due must be sorted out by topic; `loaded`: how much is read, but for
        crowds that have a queue of their own.
        """
        if self._rates or self._fair_queue:
            return True
        return loaded > BURST_MESSAGES and self._routes.are_mixed()

    # --- in ---

    def sort_in(self, due: Records) -> Records:
        """Take in entries that are due, in order; those that were moved meanwhile are given back:
        another copy stands for them.
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
            return self.sort_in(due)  # the log begins elsewhere now
        here["flags"] &= ~lib.TS_FLAG_ROLL
        known = self._routes.by_index
        numbers = np.array([int(route.native.topic_number) for route in known])[found]
        with self._lock:
            is_one = bool((numbers == numbers[0]).all())  # a crowd's: worth a look
            for number in numbers[:1].tolist() if is_one else np.unique(numbers).tolist():
                part = here if is_one else here[numbers == number]
                topic = known[int(found[np.argmax(numbers == number)])].topic
                lane = self._fair_queue.get(topic)
                if lane is None:
                    lane = self._fair_queue[topic] = _TopicQueue(self._clock.monotonic_ns)
                lane.add(part)
        return due[gone]

    # --- out ---

    def take(self, now_ms: int, capacity: int) -> list[Taken]:
        """Take what may go now: of each topic a share, beginning with another each time."""
        taken: list[Taken] = []
        with self._lock:
            topics = [topic for topic, lane in self._fair_queue.items() if lane.count]
            self._turn += 1
            for k in range(len(topics)):
                topic = topics[(k + self._turn) % len(topics)]
                share = -(-capacity // (len(topics) - k))
                for part in self._take_of(topic, now_ms, share):
                    taken.append((topic, part))
                    capacity -= len(part)
            for topic, lane in list(self._fair_queue.items()):
                if not lane.count and topic not in self._rates:
                    del self._fair_queue[topic]
            self._last_taken = taken
        return taken

    def give_back(self, taken: list[Taken], undone: int) -> None:
        """Give back the turns of the last `undone` of what was taken: they did not go."""
        with self._lock:
            for topic, part in reversed(taken):
                rest = part[max(0, len(part) - undone) :]
                undone -= len(rest)
                lane = self._fair_queue.get(topic)
                if len(rest) and lane is not None and topic in self._rates:
                    lane.tokens += int(self._costing(rest, -1).sum())

    def _take_of(self, topic: str, now_ms: int, share: int) -> list[Records]:
        lane, rate = self._fair_queue[topic], self._rates.get(topic)
        due = 0
        for part in lane.parts:  # but where the clock was set back, all of them
            some = int(np.searchsorted(part["due_ms"], now_ms, side="right"))
            due += some
            if some < len(part) or due >= share:
                break
        count = min(share, due)
        if rate is not None:
            count = self._within(lane, rate, count)
        return lane.take(count)

    def _within(self, lane: _TopicQueue, rate: float, count: int) -> int:
        """How many of the first `count` may go: those that wait cost a token each."""
        now_ns = self._clock.monotonic_ns
        most = max(1.0, rate * _BURST_S)
        lane.tokens = min(most, lane.tokens + (now_ns - lane.at_ns) / _NS * rate)
        lane.at_ns = now_ns
        may_go, seen, last = int(lane.tokens + 1e-9), 0, -1
        for part in lane.parts:
            for at in range(0, len(part), _LOOK):
                some = part[at : min(at + _LOOK, len(part))]
                waits = np.cumsum(self._costing(some, last))
                last = int(some["id"][-1])
                fit = int(np.searchsorted(waits, may_go, side="right"))
                fit = min(fit, count - seen)
                used = int(waits[fit - 1]) if fit else 0
                lane.tokens -= used
                may_go -= used
                seen += fit
                if fit < len(waits):
                    return seen
        return seen

    def _costing(self, part: Records, before: int) -> npt.NDArray[np.bool_]:
        """Which take a turn. What was read twice, as after a clock that was set back, lies side by
        side, also with the id `before`.
        """
        is_first: npt.NDArray[np.bool_] = np.diff(part["id"], prepend=before) != 0
        costing: npt.NDArray[np.bool_] = is_first & which_wait(self._log.native.states, part["id"])
        return costing

    def next_s(self) -> float | None:
        """How long until one may go; None: nothing is held."""
        with self._lock:
            waits = [
                self._wait_of(topic, lane) for topic, lane in self._fair_queue.items() if lane.count
            ]
        return min(waits, default=None)

    def _wait_of(self, topic: str, lane: _TopicQueue) -> float:
        early_s = (int(lane.parts[0]["due_ms"][0]) - self._clock.now_ms) / 1000
        rate = self._rates.get(topic)
        if rate is None:
            return max(0.0, early_s)
        since_s = (self._clock.monotonic_ns - lane.at_ns) / _NS
        return max(0.0, early_s, (1.0 - lane.tokens) / rate - since_s)

    # --- asked ---

    def held(self) -> list[Records]:
        """Give what is held, in parts; and what was taken last, which may be on its way yet."""
        with self._lock:
            parts = [part for _, part in self._last_taken]
            for lane in self._fair_queue.values():
                parts += lane.parts
        return parts

    def place(self, topic: str, timer_id: int) -> tuple[int, float | None] | None:
        """How many of its topic go before it, and the topic's rate; None: it is not held."""
        with self._lock:
            lane = self._fair_queue.get(topic)
            parts = list(lane.parts) if lane is not None else []
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
