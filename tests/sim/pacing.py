"""Operations of times that are drawn, and of topics that have a rate."""

from dataclasses import dataclass
from typing import Any

from tests.sim.replacing import Replacing
from tests.support.driver import key_of
from tests.support.inside.parts import random_of, spreader_of
from timerstore import PutReceipt
from timerstore.config import parse_topic_rates


@dataclass
class _Rate:
    """Of one topic, since a moment at which nothing was left that might have come."""

    per_second: float
    begun_ns: int
    begun: int  # timers that had come then
    looked_ns: int  # when it was looked at last
    looked: int
    was_left: bool = False  # then, of what was due

    @property
    def most(self) -> float:
        """What may come at once."""
        return max(1.0, self.per_second / 10)


class Pacing(Replacing):
    """A world in which what is due at once does not come at once."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.paced: dict[str, _Rate | None] = {}  # None: since when is not known

    # --- times that are drawn ---

    def _draw(self) -> float:
        """What chance will say next."""
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
                at[0], body, deliver_ms=begin_ms, spread=window_ms / 1000, queue_id=at[1],
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
                at[0], bodies, deliver_ms=begin_ms, spread=window_ms / 1000, queue_id=at[1],
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
        """From a moment on at which all has come that may."""
        self.come_before_pace()
        self.store.pace(topic, per_second)
        self.note_pace(topic, per_second)

    def come_before_pace(self) -> None:
        """All comes that may now."""
        if not self.is_dead and not self.is_limited:
            self._settle_services()
        if not self.is_dead:
            self.look()

    def note_pace(self, topic: str, per_second: float | None) -> None:
        """From now on a topic has a rate, or none."""
        self.paced.pop(topic, None)
        if per_second is not None:
            is_known = not self.is_dead and not self.is_limited
            self.paced[topic] = self._rate(topic, per_second) if is_known else None

    def _rate(self, topic: str, per_second: float) -> _Rate:
        now_ns, come = self.clock.monotonic_ns, self._come(topic)
        return _Rate(per_second, now_ns, come, now_ns, come)

    def _come(self, topic: str) -> int:
        """Timers of a topic that were seen."""
        return sum(
            one.queue[0] == topic and one.place is not None and one.waited and not one.level
            for one in self.model.puts.values()
        )

    def check_rates(self) -> None:
        """All has come that may: no more than that, and where some is left, no less."""
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
            is_slow = not is_left or not rate.was_left or self.may_forget  # moves take turns, too
            at_least = 0 if is_slow else int(min(rate.most, since) - 1e-6)
            assert come - rate.looked >= at_least, f"{topic}: below {rate}: {come}"
            rate.looked_ns, rate.looked, rate.was_left = now_ns, come, is_left

    def begin(self) -> None:
        """Rates of the configuration, too."""
        super().begin()
        self.take_rates()

    def after_opening(self) -> None:
        super().after_opening()
        self.take_rates()

    def take_rates(self) -> None:
        rates = parse_topic_rates(self.config.topic_rates)
        self.paced = {topic: self._rate(topic, rate) for topic, rate in rates.items()}

    def unpace(self) -> None:
        """Whatever is due comes."""
        for topic in self.paced:
            self.store.pace(topic, None)
        self.paced.clear()
