"""Puts of message groups, and receives that keep their order, compared with the models.

A message may be handed out if each earlier one of its message group is acknowledged or was a dead
letter, surely or perhaps.
"""

from functools import cache
from typing import Any

from tests.sim.unique import Unique
from tests.support.driver import key_of
from tests.support.models.messages import Queue
from timerstore._engine.base.message_fields import queue_of_message_group
from timerstore.errors import FlowControlError


@cache
def _name(queue_id: int, which: int) -> str:
    """Return the name of a message group that belongs to this queue."""
    names = (f"{which}-{k}" for k in range(10_000))
    return next(one for one in names if queue_of_message_group(one, None, None) == queue_id)


class MessageGroups(Unique):
    """A world with message groups."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._names: dict[bytes, str] = {}

    def op_group_put(
        self, queue: list[Any], which: int, due: Any, size: Any, flush: str | None
    ) -> None:
        at, name = (queue[0], queue[1]), _name(queue[1], which)
        body, due_ms = self.new_body(self.size(size)), self.due(due)
        self.note_attempt(at, [body], [due_ms or 0], flush=flush)
        self._names[body] = name

        def put() -> None:
            receipt = self.store.put(
                at[0], body, message_group=name, deliver_ms=due_ms, flush=flush,
                tags=self.next_tag(), keys=key_of(body),
            )  # fmt: skip
            assert receipt.queue_id == at[1]
            self._note_sizes(receipt, body, due_ms)
            self.note_put(at, body, due_ms, receipt, sure=not self.is_dead)

        try:
            self._putting(put)
        except FlowControlError:
            self.tried = []

    def op_receive_in_order(self, topic: str | list[str], count: int, lease_ms: int) -> None:
        """Receive in order, from now on also at the end."""
        self.lessees.is_ordered = True
        for one in self.op_receive(topic, count, lease_ms):
            if (name := self._names.get(one.body)) is not None:
                self._check_earlier((one.topic, one.queue_id), one.queue_offset, name)

    def _check_earlier(self, queue: Queue, offset: int, name: str) -> None:
        begin = self.begin_of(queue)  # those before it may have been removed unread
        for body, _ in self.model.seen[queue][begin:offset]:
            if self._names.get(body) != name or body in self.lessees.requeued:
                continue
            lease = self.lessees.of(body)
            is_over = lease is not None and (lease.may_be_done or lease.may_be_dead)
            assert is_over, f"an earlier message of {name} is not over: {body[:6]!r} {lease}"
