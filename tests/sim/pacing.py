"""Operations of random due times, and of topics that have a rate."""

from dataclasses import dataclass
from typing import Any

from tests.sim.message_groups import MessageGroups
from tests.support.driver import key_of
from tests.support.inside.parts import random_of, spreader_of
from tests.support.models.messages import queue_of
from timerstore import PutReceipt
from timerstore.types.config import parse_topic_rates


@dataclass
class _Rate:
    """The rate of one topic, measured from a time when no message was left that it allowed."""

    per_second: float
    begun_ns: int
    begun: int  # number of timers delivered by then
    looked_ns: int  # time of the last check
    looked: int
    was_left: bool = False  # whether a due message was left at the last check

    @property
    def most(self) -> float:
        """Return how many messages the rate may allow at once."""
        return max(1.0, self.per_second / 10)


class Pacing(MessageGroups):
    """A world in which messages due at once may be delivered one after the other."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.paced: dict[str, _Rate | None] = {}  # None: the start of the measurement is unknown

    # --- random due times ---

    def _draw(self) -> float:
        """Return the next random number of the engine without consuming it."""
        chance = random_of(spreader_of(self.store))
        state = chance.getstate()
        drawn = chance.random()
        chance.setstate(state)
        return drawn

    def _begin(self, due: Any, window_ms: int) -> int:
        now_ms = self.clock.now_ms
        latest_ms = now_ms + self.config.delay_ms_max - window_ms
        return max(now_ms, min(self.due(due) or now_ms, latest_ms))

    def op_put_spread(self, queue: list[Any], due: Any, size: Any, window_ms: int) -> None:
        at, body = (queue[0], queue[1]), self.new_body(self.size(size))
        begin_ms = self._begin(due, window_ms)
        due_ms = begin_ms + int(self._draw() * window_ms)
        self.note_attempt(at, [body], [due_ms])

        def put() -> None:
            receipt = self.store.put(
                at[0], body, deliver_ms=begin_ms, spread=window_ms / 1000, **queue_of(at),
                tags=self.next_tag(), keys=key_of(body),
            )  # fmt: skip
            self._note_spread(at, body, due_ms, receipt)

        with self._limited([due_ms]):
            self._putting(put)

    def op_put_many_spread(
        self, queue: list[Any], due: Any, count: int, window_ms: int
    ) -> None:  # fmt: skip
        at, begin_ms = (queue[0], queue[1]), self._begin(due, window_ms)
        bodies, drawn = [self.new_body(40) for _ in range(count)], self._draw()
        dues = [begin_ms + int((k + drawn) / count * window_ms) for k in range(count)]
        self.note_attempt(at, bodies, dues)

        def put() -> None:
            batch = self.store.put_many(
                at[0], bodies, deliver_ms=begin_ms, spread=window_ms / 1000, **queue_of(at),
                tags=self.next_tag(), keys=list(map(key_of, bodies)),
            )  # fmt: skip
            for body, due_ms, receipt in zip(bodies, dues, batch, strict=True):
                self._note_spread(at, body, due_ms, receipt)

        with self._limited(dues):
            self._putting(put)

    def _note_spread(
        self, at: tuple[str, int], body: bytes, due_ms: int, receipt: PutReceipt
    ) -> None:
        self.note_put(at, body, due_ms, receipt, sure=not self.is_dead)

    # --- rates ---

    def op_pace(self, topic: str, per_second: float | None) -> None:
        """Set a rate, after all messages were delivered that the old one allows."""
        self.come_before_pace()
        self.store.pace(topic, per_second)
        self.note_pace(topic, per_second)

    def come_before_pace(self) -> None:
        """Deliver all messages that are allowed now."""
        if not self.is_dead and not self.is_limited:
            self._settle_services()
        if not self.is_dead:
            self.look()

    def note_pace(self, topic: str, per_second: float | None) -> None:
        """Record that a topic has a rate from now on, or has none."""
        self.paced.pop(topic, None)
        if per_second is not None:
            is_known = not self.is_dead and not self.is_limited
            self.paced[topic] = self._rate(topic, per_second) if is_known else None

    def _rate(self, topic: str, per_second: float) -> _Rate:
        now_ns, come = self.clock.monotonic_ns, self._come(topic)
        return _Rate(per_second, now_ns, come, now_ns, come)

    def _come(self, topic: str) -> int:
        """Return the number of timers of a topic that were read."""
        return sum(
            one.queue[0] == topic and one.place is not None and one.waited and not one.level
            for one in self.model.puts.values()
        )

    def check_rates(self) -> None:
        """Check that each topic delivered as much as its rate allows, and no more."""
        now_ns = self.clock.monotonic_ns
        left = [p for p in self.model.waiting() if p.due_ms <= self.clock.now_ms]
        for topic, rate in self.paced.items():
            if rate is None:
                continue
            come = self._come(topic)
            may_come = rate.most + rate.per_second * (now_ns - rate.begun_ns) / 1e9
            assert come - rate.begun <= may_come + 1e-6, f"{topic}: beyond {rate}: {come}"
            since = rate.per_second * (now_ns - rate.looked_ns) / 1e9
            is_left = any(
                p.queue[0] == topic and p.sure and not p.maybe_cancelled and not p.level
                for p in left
            )  # fmt: skip
            # moves to another time use the rate, too
            is_slow = not is_left or not rate.was_left or self.may_forget
            at_least = 0 if is_slow else int(min(rate.most, since) - 1e-6)
            assert come - rate.looked >= at_least, f"{topic}: below {rate}: {come}"
            rate.looked_ns, rate.looked, rate.was_left = now_ns, come, is_left

    def begin(self) -> None:
        """Start with the rates of the configuration."""
        super().begin()
        self.take_rates()

    def after_opening(self) -> None:
        super().after_opening()
        self.take_rates()

    def take_rates(self) -> None:
        rates = parse_topic_rates(self.config.topic_rates)
        self.paced = {topic: self._rate(topic, rate) for topic, rate in rates.items()}

    def unpace(self) -> None:
        """Remove all rates, so that every due message is delivered."""
        for topic in self.paced:
            self.store.pace(topic, None)
        self.paced.clear()
