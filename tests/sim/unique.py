"""Puts of unique messages, made to the store and compared with the models of puts and leases.

At most one message of a topic and key is not done. So a put is stored if all earlier ones are
surely done, and is not stored if one of them surely is not.
"""

from typing import Any

from tests.sim.replacing import Replacing
from tests.support.driver import key_of
from tests.support.models.messages import Put, queue_of
from timerstore import PutReceipt
from timerstore.errors import FlowControlError


class Unique(Replacing):
    """A world with unique messages."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._uniques: dict[tuple[str, str], list[bytes]] = {}

    def op_unique(
        self, queue: list[Any], which: int, due: Any, size: Any, flush: str | None
    ) -> None:
        if not (self.config.index_enabled and self._leases):
            return
        self.look()  # the model of leases knows the messages that were read
        at, body, due_ms = (queue[0], queue[1]), self.new_body(self.size(size)), self.due(due)
        earlier = self._uniques.setdefault((queue[0], f"only-{which}"), [])
        is_done = all(map(self._is_surely_done, earlier))
        undone = [one for one in earlier if self._is_surely_undone(one)]
        self.note_attempt(at, [body], [due_ms or 0], flush=flush)
        earlier.append(body)  # also if the call raises: it may be stored then

        def put() -> None:
            receipt = self.store.put(
                at[0], body, key=f"only-{which}", unique=True, deliver_ms=due_ms, **queue_of(at),
                flush=flush, tags=self.next_tag(), keys=key_of(body),
            )  # fmt: skip
            if receipt.duplicate:
                earlier.remove(body)
                self.tried = []
                assert not is_done, f"not stored, and all are done: {earlier}"
                self._check_known(receipt, undone)
                return
            assert not undone, f"stored, and not done: {undone}"
            self._note_sizes(receipt, body, due_ms)
            self.note_put(at, body, due_ms, receipt, sure=not self.is_dead)

        try:
            self._putting(put)
        except FlowControlError:
            earlier.remove(body)
            self.tried = []

    def _check_known(self, receipt: PutReceipt, undone: list[bytes]) -> None:
        known = {self.model.puts[one].receipt.message_id for one in undone}
        assert len(known) <= 1, f"two are not done: {undone}"
        assert not known or receipt.message_id in known

    def _is_surely_undone(self, body: bytes) -> bool:
        one = self.model.puts.get(body)
        if one is None or not self._is_sure(one) or one.cancelled or self._is_removed(one):
            return False
        lease = self.lessees.of(body)
        return lease is None or not (lease.may_be_done or lease.may_be_dead)

    def _is_surely_done(self, body: bytes) -> bool:
        one = self.model.puts.get(body)
        if one is None or not self._is_sure(one):
            return False
        lease = self.lessees.of(body)
        return one.cancelled or (lease is not None and lease.must_be_done)

    def _is_sure(self, one: Put) -> bool:
        return one.sure and not one.maybe_cancelled and one.maybe_moved is None
