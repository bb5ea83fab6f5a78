"""Operations of leases, on the store and on their model (tests/support/models/leases.py)."""

from contextlib import suppress

from tests.sim.keeping import Keeping
from timerstore.errors import FlowControlError


class Leasing(Keeping):
    """A world in which a group leases."""

    @property
    def _leases(self) -> bool:
        """Whether there is a model of it: who leases what is only written may lose it again."""
        return self.config.visibility == "durable"

    def op_receive(self, topic: str, count: int, lease_ms: int) -> None:
        if not self._leases:
            return
        self.look()
        with suppress(FlowControlError):
            self.lessees.receive(
                self.store, self.clock, topic, count, lease_ms, self.model.seen,
                lambda: self.is_dead, self.look,
            )  # fmt: skip

    def op_settle_lease(self, kind: str, which: int, ms: int) -> None:
        with suppress(FlowControlError):
            self.lessees.settle(self.store, self.clock, kind, which, ms, lambda: self.is_dead)

    def op_leases(self, _number: int) -> None:
        """What is surely leased is in the store."""
        if self._leases and not self._has_limit:
            self.store.flush()  # what came again, and is not visible yet, is neither here nor there
            if not self.is_dead:
                self.lessees.check_waiting(self.store, self.model.shared_ids)

    def look(self) -> None:
        """Dead letters, too."""
        super().look()
        if self._leases:
            self.lessees.look(self.store)

    def finish_leases(self) -> None:
        """All that was leased is acked, or dead."""
        self.op_leases(0)
        self.lessees.finish(
            self.store, self.clock, self.model.seen, self._settle_services, self.begin_of,
            may_lose=self._has_limit,
        )  # fmt: skip
        assert not list(self.store.pending()), "a lease waits, and all are settled"

    def _settle_services(self) -> None:
        raise NotImplementedError
