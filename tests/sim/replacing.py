"""Operations of keyed puts, made to the store and to the model of their rounds
(tests/support/models/replacing.py).

A keyed put takes the place of the pending message with the same key. A round is a series of such
puts.
"""

from typing import Any, NamedTuple

from tests.sim.leasing import Leasing
from tests.sim.world import Attempt
from tests.support.driver import key_of
from tests.support.inside import inside
from tests.support.models.messages import Put, Queue, queue_of
from tests.support.models.replacing import Key, Step, due_of, step_of
from timerstore import CancelResult, Message, PutReceipt
from timerstore.errors import FlowControlError, FullError

# bytes of a segment for the new record and the old one's delete record, without the body
_ROOM = 2600


class _Asked(NamedTuple):
    """A keyed put, with the expectations of the model."""

    key: Key
    queue: Queue
    body: bytes
    due_ms: int  # due time that the caller asks for
    new: Step  # the step if no message is pending
    going_on: Step  # the step if it takes the place of a message
    old: Put | None  # the message that may be pending
    wanted: dict[bool, int]  # due time, by whether it takes the place of another message


class Replacing(Leasing):
    """A world in which messages replace each other."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._asked: dict[bytes, _Asked] = {}
        self._open_rounds: list[_Asked] = []  # puts whose effect is unknown

    def op_replace(
        self, queue: list[Any], which: int, due: Any, size: Any, wait_ms: int | None,
        flush: str | None,
    ) -> None:  # fmt: skip
        if not self.config.index_enabled:
            return
        asked = self._ask((queue[0], queue[1]), which, due, size, wait_ms)
        if any(one.key == asked.key for one in self._open_rounds):
            return  # the effect of the previous put is still unknown
        dues = asked.wanted.values()
        self.note_attempt(asked.queue, [asked.body], [min(dues)], flush=flush)
        self._asked[asked.body] = asked
        found: list[PutReceipt] = []

        def put() -> None:
            found.append(self._put_in_place(asked, wait_ms, flush))

        try:
            self._putting(put)
        except FlowControlError:
            assert self.config.slot_messages_max
            self.tried = []
            return
        except Exception as error:
            if not isinstance(error, FullError) or inside(self.store).log.failed is not None:
                self._doubt(asked)
            raise
        self._note_replaced(asked, found[0])

    def _ask(self, queue: Queue, which: int, due: Any, size: Any, wait_ms: int | None) -> _Asked:
        room = max(20, self.config.commit_log_segment_bytes - _ROOM)
        key, body = (
            (queue[0], self._round_key(queue, which)),
            self.new_body(min(self.size(size), room)),
        )
        now_ms = self.clock.now_ms
        due_ms = self.due(due) or now_ms
        last, old = self.rounds.last(key, self.model) or (None, None)
        new = step_of(body, None, now_ms, wait_ms)
        going_on = step_of(body, last, now_ms, wait_ms)
        wanted = {False: due_of(new, due_ms, now_ms)}
        if old is None or old.place is not None or old.cancelled or not old.waited:
            old = None
        else:
            wanted[True] = due_of(going_on, due_ms, now_ms)
            if self._must_wait(old):
                del wanted[False]
        return _Asked(key, queue, body, due_ms, new, going_on, old, wanted)

    def _round_key(self, queue: Queue, which: int) -> str:
        return f"round-{queue[1]}-{which}"

    def _put_in_place(self, asked: _Asked, wait_ms: int | None, flush: str | None) -> PutReceipt:
        return self.store.put(
            asked.queue[0], asked.body, key=asked.key[1], replace=True, deliver_ms=asked.due_ms,
            wait_at_most=None if wait_ms is None else wait_ms / 1000, **queue_of(asked.queue),
            flush=flush, tags=self.next_tag(), keys=key_of(asked.body),
        )  # fmt: skip

    def _must_wait(self, one: Put) -> bool:
        """Return whether a message is surely pending, unless another one took its place."""
        before, now_ms = self.born[one.body]
        latest_ms = max(now_ms, self.clock.latest_since(before + 1))
        is_open = one.place is None and not one.cancelled and not one.must_come
        is_sure = one.sure and not one.maybe_cancelled and one.maybe_moved is None
        return one.waited and is_open and is_sure and latest_ms < one.due_ms

    # --- effects of keyed puts ---

    def _note_replaced(self, asked: _Asked, receipt: PutReceipt) -> None:
        assert receipt.due_ms in asked.wanted.values(), f"due {receipt.due_ms}: {asked}"
        self._note_sizes(receipt, asked.body, asked.due_ms)
        waits = receipt.due_ms > self.clock.now_ms
        assert (receipt.queue_offset is None) == waits
        assert (receipt.topic, receipt.queue_id) == asked.queue
        sure = not self.is_dead
        self.model.put(asked.queue, asked.body, receipt.due_ms, receipt, sure=sure)
        if not sure or (len(asked.wanted) > 1 and self.is_limited):
            self._doubt(asked)
            return
        is_in_place: bool | None = True in asked.wanted
        if len(asked.wanted) > 1:
            is_in_place = self._took_its_place(asked)
        if is_in_place is None:
            self._doubt(asked)
            return
        assert receipt.due_ms == asked.wanted[is_in_place], f"due {receipt.due_ms}: {asked}"
        if is_in_place:
            assert asked.old is not None
            asked.old.cancelled = True
        self.rounds.add(asked.key, asked.going_on if is_in_place else asked.new)

    def _took_its_place(self, asked: _Asked) -> bool | None:
        """Return whether a put replaced the previous message, whose due time had passed.

        The previous message cannot be pending any more. Return None if its records were removed.
        """
        assert asked.old is not None
        answer = self.store.cancel(asked.old.receipt)
        if answer is CancelResult.ALREADY_CANCELLED:
            return True
        if answer is CancelResult.UNKNOWN and self._is_removed(asked.old):
            return None
        assert answer is CancelResult.ALREADY_DELIVERED, f"{answer}: {asked}"
        asked.old.must_come = True
        return False

    def _doubt(self, asked: _Asked) -> None:
        """Record that the effect of a put is unknown.

        It is decided when the store is opened again.
        """
        if asked.old is not None:
            asked.old.maybe_cancelled = True
        self._open_rounds.append(asked)

    def adopt(self, one: Attempt, message: Message) -> None:
        asked = self._asked.get(one.body)
        if asked is not None:
            assert message.due_ms in asked.wanted.values(), f"due {message.due_ms}: {asked}"
            one = one._replace(due_ms=message.due_ms, waits=message.due_ms > one.put_ms)
        super().adopt(one, message)

    def _decide_unsure(self) -> None:
        super()._decide_unsure()
        for asked in self._open_rounds:
            if asked.body in self.model.puts:
                # A put in flight that is missing, although a later message is present, was
                # cancelled.
                is_in_place = asked.old is not None and (
                    asked.old.cancelled or asked.old.body not in self.model.puts
                )
                self.rounds.add(asked.key, asked.going_on if is_in_place else asked.new)
                one = self.model.puts[asked.body]
                # due time before a later reschedule
                due_ms = one.old[0].due_ms if one.old else one.due_ms
                assert asked.wanted.get(is_in_place) == due_ms, f"due {due_ms}: {asked}"
            elif asked.old is not None:
                assert not asked.old.cancelled, f"neither of two: {asked}"
        self._open_rounds.clear()
        self.check_rounds()

    def check_rounds(self) -> None:
        """Check that only the newest message of each key is pending."""
        pending = self.store.pending()
        waiting = [one.message_id for one in pending if not self._is_apart(one.topic)]
        keyed = [p for p in self.model.puts.values() if p.body in self._asked]
        surely = {one.body for one in keyed if self._must_wait(one)}
        self.rounds.check(self.model, waiting, surely)

    def op_rounds(self, _number: int) -> None:
        if not self.has_doubts:
            self.check_rounds()

    # --- effects that a power cut may undo ---

    def _doubt_asynchronous(self) -> None:
        """Doubt asynchronous puts, together with their effects on the previous message."""
        for body in self.revocable():
            one = self.model.puts[body]
            if one.cancelled and one.place is None:
                one.cancelled, one.maybe_cancelled = False, True
        super()._doubt_asynchronous()

    def revocable(self, durable: int | None = None) -> set[bytes]:
        """Return the messages cancelled by puts that are not durable yet."""
        puts, durable = self.model.puts, self._durable if durable is None else durable
        return {
            step.replaced for step in self.rounds.links()
            if step.replaced in puts and step.body in puts and step.body in self.async_bodies
            and puts[step.body].receipt.log_offset >= durable
        }  # fmt: skip
