"""Run a ShardedStore on a simulated disk, with one model per shard. All shards die together.

Invariants:
    1. Each shard has the invariants of World.
    2. A call reaches each shard that it is meant for, once. Its result covers all of them.
    3. All shards are opened, or none stays open.
    4. If a shard failed, its calls raise an error, and the other shards continue.
Raises: AssertionError if a store and its model differ. Errors of the store pass through, except for
injected ones.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from tests.sim.disk import SimDisk
from tests.sim.drawing import Op
from tests.sim.images import beside, check_store
from tests.sim.life import ROOT, Life
from tests.sim.operations import SHOWS_NOTHING, YEAR_MS
from tests.sim.reading import Reading
from tests.sim.seams import Allocations
from tests.sim.shards.facet import Facet, check_named
from tests.sim.shards.readers import ReadWhole, ShardReaders, joined, parted
from tests.sim.shards.shard import Shard
from tests.sim.shards.whole import check_whole
from tests.support.inside import inside
from tests.support.inside.parts import allow_unclosed, held_directories
from tests.support.models.groups import Seen
from tests.support.models.messages import Queue
from timerstore import StoreConfig
from timerstore.errors import FailedError, TimerStoreError
from timerstore.shards import ShardedStore, open_shards
from timerstore.types.config import parse_topic_rates

_AT_REST = {"in", "settle", "die", "nothing", "whole"}
_NOTHING_NEW = {"put_many_wide", "put_named_wide", "put_turn", "cancel_many_wide", "ack_many_wide"}
"""Operations after which a pull returns nothing new."""


class Cluster(Reading, Life):
    """The ShardedStore with its life, its deaths and its errors."""

    def __init__(
        self, config: StoreConfig, allocations: Allocations, spare_bytes: int, count: int,
        births: list[Any], *, is_small: bool,
    ) -> None:  # fmt: skip
        Life.__init__(self, allocations)
        self.config = config
        self.number = 0  # number of the last body in any shard
        self.waited_ms = 0
        self.onces = self.clock.onces
        self.readers = ShardReaders(self.begin_of, count)
        self.shards: list[Shard] = []
        self._count = count
        self._births = births
        self._turn: int | None = None  # the shard of the last message
        for shard in range(count):
            one = Shard(self, shard, self._config_of_shard(), is_small=is_small)
            one.spare_bytes = spare_bytes
            self.shards.append(one)

    def _config_of_shard(self) -> StoreConfig:
        rates = parse_topic_rates(self.config.topic_rates)
        shares = (f"{topic}={self._share(rate):.3f}" for topic, rate in rates.items())
        return replace(self.config, topic_rates=" ".join(shares))

    def _share(self, rate: float) -> float:
        return math.floor(rate * 1000 / self._count) / 1000

    def begin(self) -> None:
        """Create the store, and possibly die during its creation."""
        self.raise_again(self._births)

    # --- opening and closing ---

    def _open_stores(self) -> None:
        is_known = self.counts.get("openings", 0) > 0
        count = None if is_known and self.disk.count % 2 else self._count
        try:
            self.whole = open_shards(ROOT, count, self.config, clock=self.clock, threads=False)
        except BaseException:
            self._check_let_go()
            raise
        allow_unclosed(self.whole)  # the process may die in the opening
        assert self.whole.shard_count == self._count
        self._turn = None
        for one in self.shards:
            one.take_store(self._facet(self.whole, one))

    def _facet(self, whole: ShardedStore, one: Shard) -> Any:
        return Facet(whole, one.shard)

    def _check_let_go(self) -> None:
        """Check that all shards are open, or none."""
        held = self._held()
        assert self.is_dead or not held, f"{len(held)} of {self._count} shards stay open"

    def _held(self) -> list[Any]:
        return [k for k in held_directories() if k[0] == self.disk.number]

    def note_end(self) -> None:
        for one in self.shards:
            one.note_end()

    def after_opening(self) -> None:
        for one in self.shards:
            one.opened(was_cut=self.was_cut, has_failed=self.has_failed)
            one.take_rates()  # a shard may raise an error in the next step
        self.was_cut = self.has_failed = False
        for one in self.shards:
            one.after_opening()
        self.readers.lost()
        self.readers.check(self._read_from)

    def op_reopen(self, downtime_ms: int, far_wheel: Any = None) -> None:
        self._close()
        self.config = replace(self.config, far_wheel=far_wheel or self.config.far_wheel)
        for one in self.shards:
            one.config = self._config_of_shard()
        self.rest(downtime_ms)
        if not self.is_dead:
            self._open()
            if not self.is_dead:
                self.after_opening()

    def _close(self) -> None:
        self._is_open = self._is_open and self.is_dead
        self.note_end()
        self.may_scan_all = True
        try:
            self.whole.close()
            logs = [inside(one.store).log for one in self.shards]
            assert all(log.durable == log.end for log in logs), "closed, and not durable"
        except MemoryError:
            self._close_again()
            raise
        finally:
            if not self.is_dead:
                self.note_end()
                self._check_let_go()

    def _close_again(self) -> None:
        """Close the shards again. A close that found no memory may have closed none of them."""
        assert all(inside(one).is_closed for one in self.whole.stores), (
            "some shards were not asked to close"
        )
        fault, self.allocations.fault = self.allocations.fault, None
        assert self.is_dead or len(self._held()) <= (fault.hits if fault is not None else 0)
        self.whole.close()
        self.allocations.fault = fault

    def op_fault_in_close(self, fault: Op) -> None:
        """Let a call fail while the shards are closed one after the other, or opened again."""
        self.op_fault(*fault)
        self.op_reopen(0)
        self.heal()

    def op_lose(self, which: int, kill: bool, shard: int) -> None:
        """Lose some files of one shard that are derived from its log."""
        self._lose(self.shards[shard], self.whole.close, which, kill)

    def bury(self) -> None:
        """Take over the disk that is left, and check the crash images first."""
        super().bury()
        images, self.images = self.images, []
        for image in images:
            self._check_image(image)

    def _check_image(self, image: SimDisk) -> None:
        with beside(self, image):
            whole = open_shards(ROOT, self._count, self.config, clock=self.clock, threads=False)
            allow_unclosed(whole)  # the process of the image ends here
            for one in self.shards:
                check_store(one, self._facet(whole, one))

    # --- running ---

    def do(self, op: Op) -> None:
        """Run one operation of a schedule. Each model agrees with its shard afterwards."""
        self.note_op(op)
        before_ms, is_pending = self.clock.turned_ms, self.put_count > 0
        self._guarded(lambda: getattr(self, f"op_{op[0]}")(*op[1:]))
        if is_pending:
            self.waited_ms += min(self.clock.turned_ms - before_ms, YEAR_MS // 12)
        name = op[2][0] if op[0] == "in" else op[0]
        if not self.is_dead and name not in SHOWS_NOTHING | _NOTHING_NEW:
            self._guarded(self.look)
        if not self.is_dead and self.shards[0].may_forget:
            self._guarded(self._check_removed)
        is_turn = self.image_count and self.disk.count % 3 == 0
        if is_turn and self._is_open and not any(one.attempts for one in self.shards):
            self._check_image(self.disk.killed().cut(Random(self.disk.count)))

    def note_op(self, op: Op) -> None:
        self.count(f"op_{op[0]}")
        if op[0] == "in":
            self.shards[op[1]].note_op(op[2])
        elif op[0] not in _AT_REST:
            for one in self.shards:
                one.is_settled = False

    @property
    def put_count(self) -> int:
        return sum(one.put_count for one in self.shards)

    def look(self) -> None:
        """Pull new messages of each shard, and compare them with the models."""
        for one in self.shards:
            one.look()

    def _check_removed(self) -> None:
        for one in self.shards:
            one.check_removed()

    def op_in(self, shard: int, op: Op) -> None:
        getattr(self.shards[shard], f"op_{op[0]}")(*op[1:])

    def op_settle(self) -> None:
        for one in self.shards:
            one.op_settle()

    def op_flush(self) -> None:
        self.whole.flush()

    def op_whole(self, number: int) -> None:
        """Check that the results of the ShardedStore combine those of its shards."""
        if not self.is_dead and not self.is_limited:
            check_whole(self.whole, number)
            reports = self.whole.verify()
            assert len(reports) == self._count
            assert all(report.clean for report in reports), reports

    def line(self, step: int, op: Op) -> str:
        """Return the text of an operation for a trace."""
        logs = [(inside(one.store).log.end, inside(one.store).log.durable) for one in self.shards]
        seen = [sum(map(len, one.model.seen.values())) for one in self.shards]
        return (
            f"{step} {op} logs={logs} calls={self.disk.count} now={self.clock.now_ms} seen={seen} "
            f"puts={[one.put_count for one in self.shards]}\n"
        )

    # --- injected errors ---

    def after_error(self, error: Exception, seed: int) -> None:
        """Handle an injected error. A failed shard stays failed, and the others continue."""
        assert self.is_limited, f"an error without an injected fault: {error!r}"
        self.count("errors")
        self.may_scan_all = self.has_failed = True
        if self.is_dead:
            return
        failed = [one for one in self.shards if self._is_open and one.store_has_failed]
        for one in failed:
            self.count("poisoned")
            self._check_refuses(one)
        if not failed and self._is_open and isinstance(error, TimerStoreError) and error.retryable:
            return  # the call changed nothing, and the run continues
        assert failed or self.disk.sync_failures == 0 or not self._is_open, (
            "a sync failed, and the store goes on"
        )
        self.heal()
        if failed:
            self._go_on_beside(failed)
        if isinstance(error, MemoryError) and self._is_open:
            self.end_now(["kill", seed])
        else:
            self.end_now([Random(seed).choice(("kill", "drop", "cut")), seed])
        self.raise_again([])

    def _check_refuses(self, one: Shard) -> None:
        key = one.first_here("after-it-has-failed")
        try:
            self.whole.put("orders", b"after the shard has failed", keys=[key], flush="async")
        except FailedError as error:
            check_named(error, one.shard)
        else:
            raise AssertionError("a put was taken after the shard had failed")

    def _go_on_beside(self, failed: list[Shard]) -> None:
        """Check that the other shards still deliver: a failed shard does not affect them."""
        for one in self.shards:
            if one in failed or one.attempts or one.has_failed or one.was_cut:
                continue  # the contents of these shards are not decided yet
            self.count("continued after a shard failed")
            one.op_put(["orders", 0], None, 30, "sync")
            one.op_settle()

    def _raise_hidden(self) -> None:
        """Raise the error of a failed shard that a call with partial results left for the next
        call.
        """
        for one in self.shards:
            failed = inside(one.store).log.failed
            if failed is not None and not self.is_dead:
                raise FailedError(f"shard {one.shard}: has failed") from failed

    # --- a group that reads ---

    @property
    def _read_from(self) -> Any:
        return ReadWhole(self.whole)

    @property
    def _all_seen(self) -> Seen:
        return {
            (topic, joined(one.shard, queue_id)): known
            for one in self.shards
            for (topic, queue_id), known in one.model.seen.items()
        }

    def begin_of(self, queue: Queue) -> int:
        shard, queue_id = parted(queue[1])
        return self.shards[shard].begin_of((queue[0], queue_id))

    def op_reader(self, kind: str, topic: str, which: int, at: int) -> None:
        super().op_reader(kind, topic, which, at)
        self._raise_hidden()

    # --- the end ---

    def finish(self, *, is_thorough: bool) -> None:
        """Remove all faults, let time pass, check that each message is delivered once, verify and
        close.
        """
        self.heal()
        if any(one.store_has_failed or one.attempts or one.has_doubts for one in self.shards):
            self.end_now(["kill", 0])
            self.raise_again([])
        self._for_each(lambda one: one.end_ticks())
        self._for_each(lambda one: one.bring_to_end(is_thorough=is_thorough))
        self.readers_finish()
        self.op_whole(0)
        if is_thorough:
            self.op_reopen(0)
            self.op_settle()
            self._for_each(lambda one: one.compare_pending())
        self.op_whole(1)
        self._close()

    def _for_each(self, call: Callable[[Shard], None]) -> None:
        for one in self.shards:
            call(one)
