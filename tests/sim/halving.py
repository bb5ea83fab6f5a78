"""Operations of half messages, made to the store and to their model
(tests/support/models/halves.py).
"""

from collections.abc import Iterator

from tests.sim.ticking import Ticking
from tests.support.models import halves
from tests.support.models.messages import Queue


class Halving(Ticking):
    """A world with half messages."""

    @property
    def _halves(self) -> bool:
        """Return whether half messages have a model here: it knows no full slots, and nothing that
        a power cut takes back.
        """
        config = self.config
        return config.visibility == "durable" and not config.slot_messages_max

    def op_half(self, after_ms: int) -> None:
        if self._halves:
            self.halves.put(
                self.store, self.clock, self.new_body(40), after_ms, lambda: self.is_dead
            )

    def op_end_half(self, call: halves.Call, number: int, how: str) -> None:
        if self._halves:
            self.halves.end(self.store, self.clock, call, number, how, lambda: self.is_dead)

    def op_checks(self, count: int, lease_ms: int) -> None:
        if self._halves:
            self.halves.check(self.store, self.clock, count, lease_ms, lambda: self.is_dead)

    def look(self) -> None:
        """Read new messages, and those that were committed."""
        super().look()
        if self._halves:
            self.halves.look(self.store)

    def finish_leases(self) -> None:
        """Settle all leases, and end all half messages."""
        super().finish_leases()
        if self.halves.count and not self.may_forget:
            self.halves.finish(self.store, self.clock, self._settle_services)
        assert not list(self.store.pending()), "a half message waits, and all are ended"

    # --- connections to the model of messages ---

    def _is_apart(self, topic: str) -> bool:
        return topic in (halves.TOPIC, halves.CHECKS) or super()._is_apart(topic)

    def _seen_ends(self) -> Iterator[tuple[Queue, int]]:
        yield from super()._seen_ends()
        yield halves.QUEUE, len(self.halves.seen)
        yield (halves.CHECKS, 0), self.halves.checked
