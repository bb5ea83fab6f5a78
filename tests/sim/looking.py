"""Compare the contents of a store with the model."""

from typing import Any

from tests.sim.world import World
from tests.support.inside import inside


class Looking(World):
    """A world whose queues are read and compared."""

    def look(self) -> None:
        """Pull new messages, and compare them with the model."""
        self.may_ring_early = self.is_limited
        is_moving = any(one.maybe_moved is not None for one in self.model.puts.values())
        for queue, known in self.model.seen.items():
            new = self._pull_new(queue, len(known))
            self._look_at_waiting(queue, new)
            if is_moving:
                return  # decided when the store is opened again
            self.check_not_early(new)
            self._adopt(new)
            self.model.came(queue, new)
            if new:
                self.model.check_order(queue)

    def _opened_metric(self, name: str) -> int:
        return inside(self.store).metrics.values()[name]

    def _adopt(self, new: list[Any]) -> None:
        """Add messages to the model that were stored although their put raised an error."""
        for message in new:
            for one in [a for a in self.attempts if a.body == message.body]:
                self.attempts.remove(one)
                self.adopt(one, message)
