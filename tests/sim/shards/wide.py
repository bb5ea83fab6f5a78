"""Operations of a ShardedStore that go to several shards at once."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np

from tests.sim.shards.cluster import Cluster
from tests.sim.shards.facet import in_shard, leased
from tests.sim.shards.shard import Shard
from tests.support.driver import key_of, named
from tests.support.models.leases import GROUP, asked
from tests.support.models.messages import Put, queue_of
from timerstore.errors import FailedError, FlowControlError, FullError, TimerStoreError
from timerstore.shards import ShardReceipt

_NAMES = 1000  # first number of the ids that decide the shard


class Wide(Cluster):
    """The ShardedStore with all its operations."""

    # --- puts and cancels ---

    @contextmanager
    def _putting(self) -> Iterator[None]:
        """Make a put.

        A call that fails returns no receipt, although each shard may have stored its part.
        """
        try:
            yield
        except (FullError, FailedError, FlowControlError, MemoryError) as error:
            for one in self.shards:
                one.attempts += one.tried
                one.may_come()
            if not isinstance(error, FlowControlError):
                raise
            assert self.config.slot_messages_max

    def op_put_many_wide(self, queue: list[Any], items: list[Any], buffer: bool) -> None:
        at, now_ms, rows = (queue[0], queue[1]), self.clock.now_ms, []
        if self.config.slot_messages_max and not self.config.index_enabled:
            # a shard may reject its part, and without an index it cannot be queried which did
            return
        for shard, due, size in items:
            one = self.shards[shard]
            due_ms = one.due(due) or 0
            rows.append((one, due_ms if due_ms > now_ms else 0, one.new_body(one.size(size))))
        for one in self.shards:
            mine = [row for row in rows if row[0] is one]
            one.note_attempt(at, [body for _, _, body in mine], [due_ms for _, due_ms, _ in mine])
        bodies = [body for _, _, body in rows]
        given: Any = bodies
        if buffer:
            given = b"".join(bodies), np.cumsum([0, *map(len, bodies)])
        with self._putting():
            batch = self.whole.put_many(
                at[0], given, deliver_ms=np.array([due_ms for _, due_ms, _ in rows], np.int64),
                **queue_of(at), tags=self.shards[0].next_tag(), keys=list(map(key_of, bodies)),
            )  # fmt: skip
            for (one, due_ms, body), receipt in zip(rows, batch, strict=True):
                assert receipt.shard == one.shard
                one.note_put(at, body, due_ms, receipt.receipt, sure=not self.is_dead)

    def op_put_named_wide(self, queue: list[Any], items: list[Any]) -> None:
        """Put several messages by their ids, without keys."""
        at, rows, window_ms = (queue[0], queue[1]), [], self.config.dedupe_window_ms
        for which, due, size in items:
            lost_below = max(one.lost_below for one in self.shards)
            now_ms = self.clock.now_ms
            name = self.onces.name(at[0], _NAMES + which, now_ms, window_ms, lost_below)
            one = next(s for s in self.shards if s.leads_here(name))
            rows.append((one, name, one.once_due(due) or 0, one.any_body(one.size(size), name)))
        for one in self.shards:
            mine = [row for row in rows if row[0] is one]
            one.note_attempt(
                at, [row[3] for row in mine], [row[2] for row in mine],
                names=[row[1] for row in mine],
            )  # fmt: skip
        with self._putting():
            batch = self.whole.put_many(
                at[0], [row[3] for row in rows], **queue_of(at),
                deliver_ms=np.array([row[2] for row in rows], np.int64),
                message_ids=[row[1] for row in rows],
            )  # fmt: skip
            for (one, name, due_ms, body), receipt in zip(rows, batch, strict=True):
                assert receipt.shard == one.shard
                one.note_once(at, name, due_ms, body, receipt.receipt, is_in_flight=self.is_dead)

    def op_put_turn(self, queue: list[Any], due: Any, size: Any) -> None:
        """Put without a key or an id, so that shards are chosen round robin.

        If the call may fail, the shard is unknown.
        """
        at = queue[0], queue[1]
        if self.is_limited or self.config.slot_messages_max or not self.config.index_enabled:
            return
        guess = self.shards[0]
        body, due_ms = guess.any_body(guess.size(size)), guess.due(due)
        receipt = self.whole.put(
            at[0], body, deliver_ms=due_ms, **queue_of(at), tags=guess.next_tag()
        )
        one = self.shards[receipt.shard]
        assert self._turn is None or receipt.shard == (self._turn + 1) % self._count, "not its turn"
        self._turn = receipt.shard
        one.note_name(body, receipt.message_id)
        one.note_body(body)
        if self.config.flush == "async":
            one.async_bodies.add(body)
        one.note_put(at, body, due_ms, receipt.receipt, sure=not self.is_dead)

    def op_cancel_many_wide(self, which: str, picks: list[Any]) -> None:
        chosen: list[tuple[Shard, Put, ShardReceipt | str]] = []
        for shard, number, how in picks:
            one = self.shards[shard]
            put = one.chosen_put(which, number)
            if put is not None:
                chosen.append((one, put, one.facet.name(named(put, how))))
        try:
            answers = self.whole.cancel_many([given for _, _, given in chosen])
        except (TimerStoreError, MemoryError):
            for _, put, _ in chosen:
                put.maybe_cancelled = not put.cancelled
            raise
        for (one, put, _), answer in zip(chosen, answers, strict=True):
            one.note_cancel(put, answer, sure=not self.is_dead)

    # --- leases ---

    def op_receive_wide(self, topic: str | list[str], count: int, lease_ms: int) -> None:
        """Lease messages from any shards that have some."""
        if self.config.visibility == "written":
            return
        self.look()
        with suppress(FlowControlError):
            with ExitStack() as stack:
                for one in self.shards:
                    stack.enter_context(one.lessees.receiving(topic, one.model.seen))
                got = self.whole.receive(topic, GROUP, **asked(count, lease_ms))
            assert len(got) <= count
            for one in self.shards:
                mine = [leased(m, one.shard) for m in got if m.shard == one.shard]
                if self.is_limited:  # an error of one shard is raised by the next call
                    one.lessees.doubt_receive(topic, one.model.seen)
                one.lessees.received(
                    one.store, self.clock, mine, lease_ms, one.model.seen,
                    lambda: self.is_dead, one.look,
                )  # fmt: skip
        self._raise_hidden()

    def op_ack_many_wide(self, picks: list[Any]) -> None:
        chosen: dict[str, tuple[Shard, Any]] = {}
        for shard, which in picks:
            one = self.shards[shard]
            lease = one.lessees.choose(which)
            if lease is not None:
                chosen[in_shard(shard, lease[1])] = one, lease
        answers: list[Any] = [None] * len(chosen)
        try:
            answers = self.whole.ack_many(list(chosen))
        finally:
            for (one, lease), answer in zip(chosen.values(), answers, strict=True):
                one.lessees.acked(one.store, self.clock, lease, answer, lambda: self.is_dead)

    # --- rates ---

    def op_pace_wide(self, topic: str, per_second: float | None) -> None:
        for one in self.shards:
            one.come_before_pace()
        self.whole.pace(topic, per_second)
        for one in self.shards:
            one.note_pace(topic, None if per_second is None else self._share(per_second))
