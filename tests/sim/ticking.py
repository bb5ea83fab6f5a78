"""Operations of recurring messages, made to the store and to their model
(support/models/recurring.py).
"""

from collections.abc import Iterator

from tests.sim.pacing import Pacing
from tests.support.models.messages import Queue
from tests.support.models.recurring import QUEUE, TOPIC
from timerstore import TimerStore


class Ticking(Pacing):
    """A world with recurring messages."""

    @property
    def _recurs(self) -> bool:
        """Return whether recurring messages have a model here: flow control would delay the
        planner.
        """
        return self.config.visibility == "durable" and not self.config.slot_messages_max

    def op_every(
        self, which: int, every_ms: int, missed: str, begins: int | None, is_cron: bool = False
    ) -> None:
        """Start a recurring message.

        begins: time of the first run in tenths of the step from now, or None for one step.
        """
        if not self._recurs:
            return
        begin_ms = None if begins is None else self.clock.now_ms + every_ms * begins // 10
        self.ticks.put_every(
            self.store, self.clock, self._job_name(which), self.new_body(40), every_ms, begin_ms,
            missed, lambda: self.is_dead, is_cron=is_cron,
        )  # fmt: skip
        self._limit_turns()

    def _job_name(self, which: int) -> str:
        return f"job-{which}"

    def _limit_turns(self) -> None:
        """Limit turns of the clock, so that not too many runs become due at once."""
        self.clock.turn_ms_max = self.ticks.turn_ms_max

    def op_cancel_every(self, which: int) -> None:
        if self._recurs:
            self.ticks.cancel_every(self.store, self._job_name(which), lambda: self.is_dead)

    def look(self) -> None:
        """Read new messages, and compare the runs."""
        super().look()
        if self._recurs:
            self.ticks.look(self.store, self.clock)

    def after_opening(self) -> None:
        may_have_lost = self.was_cut or self.has_failed
        super().after_opening()
        if self._recurs:
            self.ticks.opened(self.store, self.clock, self.shown_ms, may_have_lost=may_have_lost)
        self.has_failed = False
        self._limit_turns()

    def check_more(self, store: TimerStore) -> None:
        """Check the leases and runs of a crash image."""
        if self.config.flush == "sync" and self._leases and not self._has_limit:
            self.lessees.check_waiting(store, self.model.shared_ids)
        if self._recurs:
            self.ticks.check_waiting(store)

    def end_ticks(self) -> None:
        """Stop all recurring messages."""
        if self._recurs:
            self.op_settle()
        for name in self.ticks.live:
            self.ticks.cancel_every(self.store, name, lambda: False)
        self._limit_turns()

    def op_settle(self) -> None:
        raise NotImplementedError

    # --- connections to the model of messages ---

    @property
    def has_doubts(self) -> bool:
        return super().has_doubts or self.ticks.has_doubts

    def _is_apart(self, topic: str) -> bool:
        return topic == TOPIC or super()._is_apart(topic)

    def _seen_ends(self) -> Iterator[tuple[Queue, int]]:
        yield from super()._seen_ends()
        yield QUEUE, self.ticks.seen
