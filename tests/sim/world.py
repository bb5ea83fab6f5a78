"""Run one store on a simulated disk with its model. It dies (life.py) and is opened again.

Invariants:
    1. After every operation the model (support/models) agrees with the visible contents of the
       store.
Raises: AssertionError if store and model differ. Errors of the store pass through, except for
injected ones.
"""

from random import Random
from typing import Any, NamedTuple

from tests.sim.life import ROOT, Life
from tests.sim.seams import Allocations
from tests.support.driver import Driver
from tests.support.ingesting import Version
from tests.support.inside import inside, keep_log_from
from tests.support.inside.parts import allow_unclosed
from tests.support.models.groups import GROUP, Readers
from tests.support.models.halves import Halves
from tests.support.models.leases import Lessees
from tests.support.models.messages import Model, Put, Queue
from tests.support.models.recurring import Ticks
from tests.support.models.replacing import Rounds
from timerstore import CancelResult, Message, PutReceipt, StoreConfig, TimerStore
from timerstore._engine.format.handle import decode
from timerstore.errors import FailedError, TimerStoreError
from timerstore.testing import Stepper
from timerstore.types.receipts import KeptOrigin


class Attempt(NamedTuple):
    """A put that raised an error and so returned no receipt."""

    queue: Queue
    body: bytes
    due_ms: int
    waits: bool
    level: int
    order: int
    name: str = ""  # a message id that the caller gave
    put_ms: int = 0


class World(Life, Driver):
    """The store with its model and the basic operations."""

    def __init__(self, config: StoreConfig, allocations: Allocations) -> None:
        self._begin_life(allocations)
        self.root = ROOT
        self.config = config
        self.model = Model(is_each_level_alone=config.level_async)
        self.readers = Readers(self.begin_of)
        self.lessees, self.rounds, self.ticks = Lessees(), Rounds(), Ticks()
        self.halves = Halves(is_told=config.index_enabled and not self.may_forget)
        self.may_ring_early = False
        self.attempts: list[Attempt] = []
        self.tried: list[Attempt] = []  # of the last call that puts
        # number of messages put before it, and the time of the put
        self.born: dict[bytes, tuple[int, int]] = {}
        self.async_bodies: set[bytes] = set()
        self.groups: list[list[bytes]] = []  # of an atomic group
        self.onces = self.clock.onces
        self.versions: dict[tuple[str, int], Version] = {}
        self.is_settled = False
        self._number = 0
        self._durable = 0  # end of the durable log when this life ended or began

    def _begin_life(self, allocations: Allocations) -> None:
        Life.__init__(self, allocations)

    def begin(self) -> None:
        """Open the store for the first time."""
        self._open()

    # --- opening ---

    def store_path(self) -> Any:
        return ROOT

    def _open_stores(self) -> None:
        self.take_store(TimerStore(self.store_path(), self.config, clock=self.clock, threads=False))

    def take_store(self, store: TimerStore) -> None:
        """Take over an opened store."""
        self.store = store
        allow_unclosed(self.store)  # the process may die in the opening
        keep_log_from(inside(self.store).retention, self._lowest_unseen)
        self._waiting = {}
        self.services = self.store.services()
        self.stepper = Stepper(self.store)
        self.is_settled = False

    def note_end(self) -> None:
        self._durable = inside(self.store).log.durable

    def after_opening(self) -> None:
        if self.was_cut:
            self._doubt_asynchronous()
        self.lessees.cut(self._durable if self.was_cut else 2**62)
        for one in list(self.model.puts.values()):
            if one.maybe_moved is not None:
                self._decide_moved(one)
        self._decide_attempts()
        self._decide_unsure()
        self._durable = inside(self.store).log.durable
        self.was_cut = False
        self.check_ingested()
        self.readers.lost()
        self.readers.check(self.store)
        if self.config.visibility == "durable":
            self.look_again()
        self.look()

    def _answered_again(self, one: Put) -> None:
        self.async_bodies.discard(one.body)

    def _doubt_asynchronous(self) -> None:
        """Doubt the last asynchronous puts: a power cut may have removed a suffix of them."""
        for one in self.model.puts.values():
            taken = one.receipt.log_offset >= self._durable
            if taken and one.body in self.async_bodies and not one.cancelled:
                one.sure = False
        if self.config.visibility == "written":
            self._rewind()

    def _rewind(self) -> None:
        """Step back in each queue: with visibility "written", a power cut may remove messages
        already read.
        """
        for queue, known in self.model.seen.items():
            begin = self.begin_of(queue)
            now = [(m.body, m.delivered_ms) for m in self._pull_new(queue, begin)]
            same = begin + next(
                (at for at, (a, b) in enumerate(zip(known[begin:], now, strict=False)) if a != b),
                min(len(known) - begin, len(now)),
            )
            for body, _ in known[same:]:
                self.model.puts[body].place = None
            del known[same:]

    # --- outcome of calls without an answer ---

    def _found(self, queue: Queue, body: bytes) -> Message | None:
        assert self.config.index_enabled
        found = self.store.query(queue[0], self._key_of(body), max_count=1_000_000)
        same = [message for message in found if message.body == body]
        assert len(same) <= 1, f"twice: {same}"
        return same[0] if same else None

    def _receipt(self, message: Message) -> PutReceipt:
        origin = KeptOrigin(
            message.topic,
            message.message_id,
            self.config.broker_name,
            self.config.precision_ms,
        )
        timer_id = decode(message.handle).timer_id if message.handle else None
        return PutReceipt(
            origin,
            0,
            -1 if timer_id is None else timer_id,
            message.queue_id,
            None if message.waits else message.queue_offset,
            message.log_offset,
            message.due_ms,
        )

    def _decide_attempts(self) -> None:
        """Decide for each put that raised an error whether it was stored. The decision is final."""
        for one in list(self.attempts):
            message = self._found(one.queue, one.body) if self.config.index_enabled else None
            if message is not None:
                self.adopt(one, message)
            # only now, because reading may fail, too, and is repeated then
            self.attempts.remove(one)

    def adopt(self, one: Attempt, message: Message) -> None:
        """Add a message to the model although its put raised an error."""
        receipt = self._receipt(message)
        self.model.put(one.queue, one.body, one.due_ms, receipt, level=one.level)
        put = self.model.puts[one.body]
        put.waited, put.order = one.waits, one.order
        if one.name:
            self.onces.put((one.queue[0], one.name), put, one.put_ms, self.clock.latest_ms)

    def _decide_unsure(self) -> None:
        """Decide for each call in flight whether it took effect.

        If one did not, no later one did.
        """
        if not self.config.index_enabled:
            return
        unsure = [p for p in self.model.puts.values() if not p.sure and p.place is None]
        lost_at: int | None = None
        for one in sorted(unsure, key=lambda p: p.receipt.log_offset):
            message = self._found(one.queue, one.body)
            if message is not None:
                assert lost_at is None or one.level < 0, f"a hole at {lost_at}, before {one}"
                one.sure = True
            else:
                lost_at = lost_at if one.maybe_cancelled else one.receipt.log_offset
                del self.model.puts[one.body]
                self.onces.lost(one)
        for group in self.groups:
            count = sum(body in self.model.puts for body in group)
            assert count in (0, len(group)), f"{count} of a group of {len(group)}"
        for one in self.model.puts.values():
            if one.maybe_cancelled and not one.cancelled and one.place is None:
                message = self._found(one.queue, one.body)
                one.cancelled = message is None
                one.maybe_cancelled = False

    def _decide_moved(self, one: Put) -> None:
        """Decide whether a reschedule in flight took effect.

        Without its new handle, the message is recognised by the due time that was asked for.
        """
        assert one.maybe_moved is not None
        receipt, due_ms = one.maybe_moved
        ids = one.receipt.message_id
        waiting = [p for p in self.store.pending() if p.message_id == ids]
        new = self._pull_new(one.queue, len(self.model.seen[one.queue]))
        came = {m.body for m in new}
        if receipt is one.receipt and waiting and waiting[0].handle != one.receipt.handle:
            assert waiting[0].due_ms == due_ms, f"neither time: {waiting[0]}"
            message = self._found(one.queue, one.body)
            assert message is not None
            one.maybe_moved = self._receipt(message), due_ms
        if not one.sure and not waiting and one.body not in came:
            one.maybe_moved = None
            return
        if receipt is one.receipt and one.maybe_moved[0] is receipt:
            one.maybe_moved = None  # it is pending as before, or was delivered
            if one.body in came:
                message = next(m for m in new if m.body == one.body)
                if message.due_ms != one.due_ms:
                    self.model.moved(one, self._receipt(message), message.due_ms)
            return
        self.model.decide_moved(one, [p.handle for p in waiting], came)

    @property
    def has_doubts(self) -> bool:
        """Return whether a call failed whose outcome the model does not know."""
        puts = self.model.puts.values()
        return bool(self.attempts) or any(
            one.maybe_cancelled or one.maybe_moved is not None or not one.sure for one in puts
        )

    # --- injected errors ---

    def after_error(self, error: Exception, seed: int) -> None:
        """Handle an injected error. A store that failed once rejects every later call."""
        assert self.is_limited, f"an error without an injected fault: {error!r}"
        self.count("errors")
        self.may_scan_all = self.has_failed = True
        is_memory = isinstance(error, MemoryError)
        if self.is_dead:
            return
        if self._is_open and inside(self.store).log.failed is not None:
            self.count("poisoned")
            try:
                self.store.put("orders", b"after the store has failed", flush="async")
            except FailedError:
                pass
            else:
                raise AssertionError("a put was taken after the store had failed")
        elif self._is_open and isinstance(error, TimerStoreError) and error.retryable:
            return  # the call changed nothing, and the run continues
        assert self.disk.sync_failures == 0 or not self._is_open or inside(self.store).log.failed, (
            "a sync failed, and the store goes on"
        )
        self.heal()
        if is_memory and self._is_open:
            self.end_now(["kill", seed])
        else:
            self.end_now([Random(seed).choice(("kill", "drop", "cut")), seed])
        self.raise_again([])

    # --- early deliveries ---

    def note_body(self, body: bytes) -> None:
        """Record that a message is put or rescheduled now."""
        self.born[body] = self.clock.put_count, self.clock.now_ms
        self.clock.put_count += 1

    def check_not_early(self, messages: list[Message]) -> None:
        """Check that for each message the clock has shown its due time since the put."""
        for message in messages:
            one = self.model.puts.get(message.body)
            if one is not None and message.body in self.born:
                before, now_ms = self.born[message.body]
                latest = max(now_ms, self.clock.latest_since(before + 1))
                assert latest >= one.due_ms, f"early: it was {latest} at most: {message}"


__all__ = ["GROUP", "CancelResult", "World"]
