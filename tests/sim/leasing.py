"""Operations of leases, made to the store and to their model (tests/support/models/leases.py)."""

from contextlib import suppress

from tests.sim.keeping import Keeping
from timerstore import LeasedMessage
from timerstore.errors import FlowControlError


class Leasing(Keeping):
    """A world in which a group leases messages."""

    @property
    def _leases(self) -> bool:
        """Return whether leases have a model here.

        A group that leases messages that are only written, and not durable, may lose them again.
        """
        return self.config.visibility == "durable"

    def op_receive(self, topic: str | list[str], count: int, lease_ms: int) -> list[LeasedMessage]:
        if not self._leases:
            return []
        self.look()
        with suppress(FlowControlError):
            return self.lessees.receive(
                self.store, self.clock, topic, count, lease_ms, self.model.seen,
                lambda: self.is_dead, self.look,
            )  # fmt: skip
        return []

    def op_settle_lease(self, kind: str, which: int, ms: int) -> None:
        with suppress(FlowControlError):
            self.lessees.settle(self.store, self.clock, kind, which, ms, lambda: self.is_dead)

    def op_requeue(self, which: int, count: int | None) -> None:
        if self._leases:
            self.lessees.requeue(self.store, which, lambda: self.is_dead, count)

    def op_leases(self, _number: int) -> None:
        """Check that every message that is surely leased is in the store."""
        if self._leases and not self._has_limit:
            # a message that is due again but not yet visible is neither leased nor readable
            self.store.flush()
            if not self.is_dead:
                self.lessees.check_waiting(self.store, self.model.shared_ids)

    def look(self) -> None:
        """Read new messages, and dead letters too."""
        super().look()
        if self._leases:
            self.lessees.look(self.store)

    def finish_leases(self) -> None:
        """Settle all leases until each message is acknowledged or a dead letter."""
        self.op_leases(0)
        self.lessees.finish(
            self.store, self.clock, self.model.seen, self._settle_services, self.begin_of,
            may_lose=self._has_limit,
        )  # fmt: skip
        assert not list(self.store.pending()), "a lease waits, and all are settled"

    def _settle_services(self) -> None:
        raise NotImplementedError
