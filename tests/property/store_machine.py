"""Compare the store with its model, in any order of calls, steps, clock changes, closes and kills.

This state machine is one class of rules, because Hypothesis collects rules from one class.
"""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.property.store_values import (
    BATCH_POINTS,
    CLOSE_POINTS,
    DERIVED,
    DUE,
    EDGE_MS,
    FAR_MS,
    LEASE_MS,
    LEASE_POINTS,
    LEASED,
    LEVELS,
    NTH,
    QUEUES,
    RECOVER_POINTS,
    RETENTION_POINTS,
    SERVICES,
    SETTLE_POINTS,
    SETTLES,
    SIZES,
    SLOTS,
    SOURCES,
    TOPICS,
)
from tests.support.driver import DAY_MS, HOW, TAGS, YEAR_MS, Driver, tiny
from timerstore import CancelResult, StoreConfig
from timerstore._engine.format.handle import decode, encode


class StoreMachine(RuleBasedStateMachine):
    """After every rule, the model agrees with the store."""

    flush = "sync"

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="timerstore-"))
        self.driver: Driver | None = None

    @initialize(
        precision_ms=st.sampled_from([100, 1000]),
        seed=st.integers(0, 2**32 - 1),
        limit=st.sampled_from([0, 0, 20, 1]),
        retention_ms=st.sampled_from([0, 2000, 3_600_000]),
        far_wheel=st.sampled_from(["off", "shared", "own"]),
    )
    def begin(
        self,
        precision_ms: int,
        seed: int,
        limit: int,
        retention_ms: int,
        far_wheel: Literal["off", "shared", "own"] = "off",
    ) -> None:
        config = tiny(precision_ms, self.flush, limit, retention_ms)
        self.driver = self.make(replace(config, far_wheel=far_wheel), seed)

    def make(self, config: StoreConfig, seed: int) -> Driver:
        return Driver(self.root, config)

    @property
    def at(self) -> Driver:
        assert self.driver is not None
        return self.driver

    def due_ms(self, due: tuple[str, int, int] | None) -> int | None:
        if due is None:
            return None
        kind, amount, edge = due
        now_ms, precision_ms = self.at.clock.now_ms, self.at.config.precision_ms
        if kind == "slot":
            return (now_ms // precision_ms + amount) * precision_ms + edge
        return now_ms + amount + edge

    # --- callers ---

    @rule(queue=QUEUES, due=DUE, size=SIZES)
    def put(self, queue: tuple[str, int], due: tuple[str, int, int] | None, size: int) -> None:
        self.at.put(queue, self.due_ms(due), size)

    @rule(queue=QUEUES, items=st.lists(st.tuples(DUE, SIZES), max_size=20), buffer=st.booleans())
    def put_many(
        self,
        queue: tuple[str, int],
        items: list[tuple[tuple[str, int, int] | None, int]],
        buffer: bool,
    ) -> None:
        self.at.put_many(queue, [(self.due_ms(d) or 0, n) for d, n in items], buffer=buffer)

    @rule(queue=QUEUES, due=DUE, count=st.integers(2, 60))
    def put_same_time(
        self, queue: tuple[str, int], due: tuple[str, int, int] | None, count: int
    ) -> None:
        self.at.put_many(queue, [(self.due_ms(due) or 0, 40)] * count, buffer=True)

    @rule(queue=QUEUES, items=st.lists(st.tuples(DUE, SIZES), max_size=20), buffer=st.booleans())
    def put_group(
        self,
        queue: tuple[str, int],
        items: list[tuple[tuple[str, int, int] | None, int]],
        buffer: bool,
    ) -> None:
        rows = [(self.due_ms(d) or 0, n) for d, n in items]
        self.at.put_many(queue, rows, buffer=buffer, atomic=True)

    @rule(queue=QUEUES, which=st.integers(0, 3), due=DUE, size=SIZES)
    def put_once(
        self, queue: tuple[str, int], which: int, due: tuple[str, int, int] | None, size: int
    ) -> None:
        self.at.put_once(queue, which, self.due_ms(due), size)

    @rule(
        source=SOURCES,
        number=st.integers(0, 3),
        items=st.lists(st.tuples(DUE, SIZES), max_size=12),
        cut=st.integers(1, 12),
    )
    def ingest(
        self,
        source: str,
        number: int,
        items: list[tuple[tuple[str, int, int] | None, int]],
        cut: int,
    ) -> None:
        self.at.ingest(source, number, self.unlimited(items), cut)

    def unlimited(
        self, items: list[tuple[tuple[str, int, int] | None, int]]
    ) -> list[tuple[int, int]]:
        """Return rows, due at once if slots have a limit, which other rules test."""
        is_limited = self.at.config.slot_messages_max
        return [(0 if is_limited else self.due_ms(due) or 0, size) for due, size in items]

    @rule(queue=QUEUES, level=LEVELS, size=SIZES)
    def put_level(self, queue: tuple[str, int], level: int, size: int) -> None:
        self.at.put_level(queue, level, size)

    @rule(topic=TOPICS, rate=st.sampled_from([None, 0.5, 3, 1000]))
    def pace(self, topic: str, rate: float | None) -> None:
        self.at.store.pace(topic, rate)

    @rule(queue=QUEUES, level=LEVELS, sizes=st.lists(SIZES, max_size=20))
    def put_many_level(self, queue: tuple[str, int], level: int, sizes: list[int]) -> None:
        self.at.put_many_level(queue, level, sizes)

    @precondition(lambda self: self.driver is not None and self.driver.model.known())
    @rule(data=st.data(), how=st.sampled_from(HOW))
    def cancel(self, data: st.DataObject, how: str) -> None:
        puts = self.at.model.known()
        self.at.cancel(puts[data.draw(st.integers(0, len(puts) - 1))], how)

    @precondition(lambda self: self.driver is not None and self.driver.model.known(waiting=True))
    @rule(data=st.data(), how=st.sampled_from(HOW))
    def cancel_waiting(self, data: st.DataObject, how: str) -> None:
        puts = self.at.model.known(waiting=True)
        one = puts[data.draw(st.integers(0, len(puts) - 1))]
        answer = self.at.cancel(one, how)
        if one.sure and not one.maybe_cancelled and one.due_ms > self.at.clock.now_ms:
            assert answer is CancelResult.CANCELLED or one.must_come

    @precondition(lambda self: self.driver is not None and self.driver.model.known(waiting=True))
    @rule(data=st.data())
    def cancel_unknown(self, data: st.DataObject) -> None:
        puts = self.at.model.known(waiting=True)
        receipt = puts[data.draw(st.integers(0, len(puts) - 1))].receipt
        if receipt.queue_offset is None:
            handle = decode(receipt.handle)
            stranger = encode(handle._replace(message_id=handle.message_id[:-1] + "x"))
            assert self.at.store.cancel(stranger) is CancelResult.UNKNOWN

    @precondition(lambda self: self.driver is not None and self.driver.model.known(waiting=True))
    @rule(data=st.data(), due=DUE, how=st.sampled_from(HOW))
    def reschedule(self, data: st.DataObject, due: tuple[str, int, int] | None, how: str) -> None:
        puts = self.at.model.known(waiting=True)
        one = puts[data.draw(st.integers(0, len(puts) - 1))]
        self.at.reschedule(one, self.due_ms(due) or self.at.clock.now_ms, how)

    @precondition(lambda self: self.driver is not None and self.driver.model.known())
    @rule(data=st.data(), due=DUE)
    def reschedule_any(self, data: st.DataObject, due: tuple[str, int, int] | None) -> None:
        puts = self.at.model.known()
        one = puts[data.draw(st.integers(0, len(puts) - 1))]
        self.at.reschedule(one, self.due_ms(due) or self.at.clock.now_ms, "handle")

    @precondition(lambda self: self.driver is not None and self.driver.model.moved_ones())
    @rule(data=st.data(), which=st.integers(0, 3))
    def cancel_old(self, data: st.DataObject, which: int) -> None:
        puts = self.at.model.moved_ones()
        self.at.cancel_old(puts[data.draw(st.integers(0, len(puts) - 1))], which)

    @rule(queue=QUEUES, tag=st.sampled_from(TAGS))
    def wait(self, queue: tuple[str, int], tag: str | None) -> None:
        self.at.wait(queue, tag)

    # --- time ---

    @rule(slots=SLOTS, edge=EDGE_MS)
    def tick_to_edge(self, slots: int, edge: int) -> None:
        now_ms = self.due_ms(("slot", slots, edge))
        assert now_ms is not None
        self.at.clock.set(now_ms)

    @rule(ms=st.integers(1, 3000))
    def tick(self, ms: int) -> None:
        self.at.clock.advance(ms)

    @rule(ms=FAR_MS)
    def jump(self, ms: int) -> None:
        self.at.clock.advance(ms)

    @rule(ms=st.sampled_from([1, 150, 5000, DAY_MS, 31 * YEAR_MS]))
    def jump_back(self, ms: int) -> None:
        self.at.clock.set(max(1_000_000, self.at.clock.now_ms - ms))

    @precondition(lambda self: self.driver is not None and self.driver.model.waiting())
    @rule(data=st.data(), edge=EDGE_MS)
    def tick_to_due(self, data: st.DataObject, edge: int) -> None:
        waiting = self.at.model.waiting()
        due_ms = waiting[data.draw(st.integers(0, min(3, len(waiting) - 1)))].due_ms
        self.at.clock.set(max(self.at.clock.now_ms, due_ms + edge))

    # --- services and queries ---

    @rule(services=st.lists(SERVICES, min_size=1, max_size=8))
    def step(self, services: list[str]) -> None:
        for name in services:
            self.at.stepper.step(name)

    @rule()
    def settle(self) -> None:
        self.at.settle()

    @precondition(lambda self: self.driver is not None and self.driver.config.retention_ms)
    @rule(queue=QUEUES)
    def expire(self, queue: tuple[str, int]) -> None:
        self.at.expire(queue)

    @precondition(lambda self: self.driver is not None and self.driver.config.retention_ms)
    @rule(queue=QUEUES, point=st.sampled_from(RETENTION_POINTS), nth=NTH)
    def kill_in_expire(self, queue: tuple[str, int], point: str, nth: int) -> None:
        """Fill files, let them expire, and kill the store during their removal."""
        self.at.put_many(queue, [(0, 3000)] * 7, buffer=True)
        self.at.settle()
        self.at.clock.advance(self.at.config.retention_ms + 1)
        self.at.kill_at(point, nth, self.at.settle_quietly)
        self.at.settle()

    @rule()
    def flush_all(self) -> None:
        self.at.store.flush()

    @rule()
    def pending(self) -> None:
        self.at.compare_pending()

    @rule(wanted=st.lists(st.sampled_from(["Aa", "BB", "c"]), min_size=1), by_sql=st.booleans())
    def filtered(self, wanted: list[str], by_sql: bool) -> None:
        listed = ", ".join(f"'{tag}'" for tag in wanted)
        how = {"sql": f"TAGS IN ({listed})"} if by_sql else {"tags": " || ".join(wanted)}
        self.at.look_filtered(wanted, how)

    @rule(topic=st.sampled_from(["orders", "mail"]), key=st.integers(0, 4))
    def query(self, topic: str, key: int) -> None:
        self.at.query(topic, f"key-{key}")

    @precondition(lambda self: self.driver is not None and self.driver.model.known())
    @rule(data=st.data())
    def query_one(self, data: st.DataObject) -> None:
        puts = self.at.model.known()
        self.at.query_one(puts[data.draw(st.integers(0, len(puts) - 1))])

    # --- a group ---

    @rule(topic=TOPICS)
    def reader_joins(self, topic: str) -> None:
        self.at.readers.join(self.at.store, topic)

    @rule(topic=TOPICS, which=st.integers(0, 3))
    def reader_leaves(self, topic: str, which: int) -> None:
        self.at.readers.leave(topic, which)

    @rule(topic=TOPICS, which=st.integers(0, 3), count=st.integers(1, 40))
    def read(self, topic: str, which: int, count: int) -> None:
        self.at.readers.read(self.at.store, topic, which, count, self.at.model.seen)

    @rule(topic=TOPICS, which=st.integers(0, 3), only=st.none() | st.integers(0, 1))
    def commit(self, topic: str, which: int, only: int | None) -> None:
        self.at.readers.commit(topic, which, only=only)

    @rule(topic=TOPICS, which=st.integers(0, 3), at=st.integers(0, 12))
    def seek(self, topic: str, which: int, at: int) -> None:
        self.at.readers.seek(self.at.store, topic, which, at)

    @rule(
        queue=QUEUES,
        joins=st.integers(0, 2),
        reads=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=3),
        seek=st.none() | st.integers(0, 5),
        in_commit=st.booleans(),
    )
    def read_committed_and_killed(
        self,
        queue: tuple[str, int],
        joins: int,
        reads: list[tuple[int, int]],
        seek: int | None,
        in_commit: bool,
    ) -> None:
        """Combine steps that single rules rarely combine: put, read, commit and kill."""
        store, readers, topic = self.at.store, self.at.readers, queue[0]
        self.at.put_many(queue, [(0, 40)] * 6, buffer=True)
        self.at.settle()
        for _ in range(joins):
            readers.join(store, topic)
        for which, count in reads:
            readers.read(store, topic, which, count, self.at.model.seen)
        if seek is not None:
            readers.seek(store, topic, reads[0][0], seek)
            readers.read(store, topic, *reads[0], self.at.model.seen)
        if in_commit:
            self.at.kill_in_commit("commit_written", topic, reads[-1][0])
        else:
            readers.commit(topic, reads[-1][0])
            self.at.kill()

    # --- leases ---

    @rule(topic=LEASED, count=st.integers(1, 12), lease_ms=LEASE_MS)
    def receive(self, topic: str | list[str], count: int, lease_ms: int) -> None:
        self.at.receive(topic, count, lease_ms)

    @rule(kind=SETTLES, which=st.integers(0, 20), ms=LEASE_MS)
    def settle_lease(self, kind: str, which: int, ms: int) -> None:
        self.at.settle_lease(kind, which, ms)

    @rule(
        point=st.sampled_from(LEASE_POINTS),
        nth=NTH, topic=LEASED, count=st.integers(1, 40), lease_ms=LEASE_MS,
    )  # fmt: skip
    def kill_in_receive(
        self, point: str, nth: int, topic: str | list[str], count: int, lease_ms: int
    ) -> None:
        self.at.kill_in_receive(point, nth, topic, count, lease_ms)

    @rule(
        point=st.sampled_from([*LEASE_POINTS, "ack_appended", "reschedule_appended"]),
        kind=SETTLES, which=st.integers(0, 20), ms=LEASE_MS,
    )  # fmt: skip
    def kill_in_settle_lease(self, point: str, kind: str, which: int, ms: int) -> None:
        self.at.kill_in_settle_lease(point, 1, kind, which, ms)

    @rule(which=st.integers(0, 20), count=st.sampled_from([1, 2, None]))
    def requeue(self, which: int, count: int | None) -> None:
        self.at.requeue(which, count)

    @rule(
        point=st.sampled_from(
            ["requeue_appended", "log_synced", "log_rolled", "topics_json_written"]
        ),
        nth=NTH, which=st.integers(0, 20), count=st.sampled_from([1, 2, None]),
    )  # fmt: skip
    def kill_in_requeue(self, point: str, nth: int, which: int, count: int | None) -> None:
        self.at.kill_in_requeue(point, nth, which, count)

    @rule(
        queue=QUEUES, count=st.integers(1, 6), kinds=st.lists(SETTLES, max_size=4),
        point=st.sampled_from(["checkpoint_taken", "checkpoint_log_synced", "commit_written",
                               "lease_progress_committed", "checkpoint_watermark_written"]),
        ms=LEASE_MS,
    )  # fmt: skip
    def leased_settled_and_killed_in_a_checkpoint(
        self, queue: tuple[str, int], count: int, kinds: list[str], point: str, ms: int
    ) -> None:
        """Combine steps that single rules rarely combine: receive, settle, and kill in a
        checkpoint.
        """
        self.at.put_many(queue, [(0, 40)] * 4, buffer=True)
        self.at.settle()
        self.at.receive(queue[0], count, ms)
        for which, kind in enumerate(kinds):
            self.at.settle_lease(kind, which, ms)
        self.at.kill_at(point, 1, self.at.store.flush)
        self.at.clock.advance(ms)
        self.at.settle()
        self.at.receive(queue[0], 9, ms)

    # --- closes and kills ---

    @rule(far_wheel=st.sampled_from([None, None, "off", "shared", "own"]))
    def reopen(self, far_wheel: Literal["off", "shared", "own"] | None) -> None:
        self.at.reopen(far_wheel)

    @rule()
    def kill(self) -> None:
        self.at.kill()

    @rule(
        names=st.lists(st.sampled_from(DERIVED), min_size=1, max_size=3, unique=True),
        kill=st.booleans(),
    )
    def lose_derived_files(self, names: list[str], kill: bool) -> None:
        self.at.lose(names, kill=kill)

    @rule()
    def lose_all_side_files(self) -> None:
        self.at.lose(["timerstore"], kill=False)

    @rule(point=st.sampled_from(SETTLE_POINTS), nth=NTH)
    def kill_in_settle(self, point: str, nth: int) -> None:
        self.at.kill_at(point, nth, self.at.settle_quietly)

    @rule(point=st.sampled_from([n for n in SETTLE_POINTS if n.startswith("checkpoint")]))
    def kill_in_flush(self, point: str) -> None:
        self.at.kill_at(point, 1, self.at.store.flush)

    @rule(point=st.sampled_from(CLOSE_POINTS))
    def kill_in_close(self, point: str) -> None:
        # A killed broker leaves an `abort` next to a wheel of the usual length.
        self.at.may_scan_all = point == "close_wheel_restored"
        self.at.kill_at(point, 1, self.at.store.close)

    @rule(point=st.sampled_from(RECOVER_POINTS), nth=NTH)
    def kill_in_recovery(self, point: str, nth: int) -> None:
        self.at.kill_in_recovery(point, nth)

    @rule(
        point=st.sampled_from(
            ["put_appended", "log_half_swapped", "log_written_out", "log_synced"]
        ),
        queue=QUEUES,
        due=DUE,
    )
    def kill_in_put(
        self, point: str, queue: tuple[str, int], due: tuple[str, int, int] | None
    ) -> None:
        self.at.kill_in_put(point, 1, queue, self.due_ms(due))

    @rule(
        point=st.sampled_from(["put_level_appended", "log_half_swapped", "log_synced"]),
        queue=QUEUES,
        level=LEVELS,
    )
    def kill_in_put_level(self, point: str, queue: tuple[str, int], level: int) -> None:
        self.at.kill_in_put_level(point, queue, level)

    @rule(
        point=st.sampled_from(["put_many_part_appended", "log_half_swapped", "log_synced"]),
        nth=NTH, queue=QUEUES, level=LEVELS, count=st.integers(1, 40),
    )  # fmt: skip
    def kill_in_put_many_level(
        self, point: str, nth: int, queue: tuple[str, int], level: int, count: int
    ) -> None:
        self.at.kill_in_put_many_level(point, nth, queue, level, count)

    @rule(
        point=st.sampled_from(["put_many_part_appended", *BATCH_POINTS]),
        nth=NTH, queue=QUEUES, due=DUE, count=st.integers(1, 40),
    )  # fmt: skip
    def kill_in_put_many(
        self,
        point: str,
        nth: int,
        queue: tuple[str, int],
        due: tuple[str, int, int] | None,
        count: int,
    ) -> None:
        self.at.kill_in_put_many(point, nth, queue, [(self.due_ms(due) or 0, 700)] * count)

    @rule(
        point=st.sampled_from(["put_group_appended", *BATCH_POINTS]),
        nth=NTH, queue=QUEUES, due=DUE, count=st.integers(2, 18),
    )  # fmt: skip
    def kill_in_put_group(
        self,
        point: str,
        nth: int,
        queue: tuple[str, int],
        due: tuple[str, int, int] | None,
        count: int,
    ) -> None:
        self.at.kill_in_put_group(point, nth, queue, [(self.due_ms(due) or 0, 400)] * count)

    @rule(
        point=st.sampled_from(["put_single_appended", "put_once_answered", "log_synced"]),
        queue=QUEUES, which=st.integers(0, 3), due=DUE,
    )  # fmt: skip
    def kill_in_put_once(
        self, point: str, queue: tuple[str, int], which: int, due: tuple[str, int, int] | None
    ) -> None:
        self.at.kill_in_put_once(point, 1, queue, which, self.due_ms(due))

    @rule(
        point=st.sampled_from(
            ["ingest_chunk_appended", "ingest_appended", "log_rolled", "log_half_swapped",
             "log_written_out", "log_synced"]
        ),
        nth=NTH, source=SOURCES, number=st.integers(0, 3),
        items=st.lists(st.tuples(DUE, SIZES), max_size=12), cut=st.integers(1, 12),
    )  # fmt: skip
    def kill_in_ingest(
        self,
        point: str,
        nth: int,
        source: str,
        number: int,
        items: list[tuple[tuple[str, int, int] | None, int]],
        cut: int,
    ) -> None:
        self.at.kill_in_ingest(point, nth, source, number, self.unlimited(items), cut)

    @precondition(lambda self: self.driver is not None and self.driver.model.waiting())
    @rule(point=st.sampled_from(["cancel_appended", "log_synced"]), data=st.data())
    def kill_in_cancel(self, point: str, data: st.DataObject) -> None:
        puts = [p for p in self.at.model.known(waiting=True) if not p.must_come]
        if puts:
            one = puts[data.draw(st.integers(0, len(puts) - 1))]
            self.at.kill_in_cancel(point, 1, one)

    @precondition(lambda self: self.driver is not None and self.driver.model.waiting())
    @rule(
        point=st.sampled_from(
            ["reschedule_encoded", "reschedule_appended", "log_half_swapped", "log_written_out",
             "log_rolled", "segment_created", "log_synced"]
        ),
        nth=st.integers(1, 2), data=st.data(), due=DUE,
    )  # fmt: skip
    def kill_in_reschedule(
        self, point: str, nth: int, data: st.DataObject, due: tuple[str, int, int] | None
    ) -> None:
        puts = [p for p in self.at.model.known(waiting=True) if not p.must_come]
        if puts:
            one = puts[data.draw(st.integers(0, len(puts) - 1))]
            due_ms = self.due_ms(due) or self.at.clock.now_ms
            self.at.kill_in_reschedule(point, nth, one, due_ms)

    @rule(point=st.sampled_from(SETTLE_POINTS), ms=st.integers(0, 60_000))
    def due_killed_and_settled(self, point: str, ms: int) -> None:
        """Combine steps that single rules rarely combine: due messages, a kill in the hand-off,
        recovery.
        """
        self.at.clock.advance(ms)
        self.at.kill_at(point, 1, self.at.settle_quietly)
        self.at.settle()

    @rule(
        point=st.sampled_from(["schedule_encoded", "schedule_placed", "log_synced"]),
        nth=NTH,
        queue=QUEUES,
        levels=st.lists(st.sampled_from([1, 2]), min_size=1, max_size=8),
    )
    def levels_due_killed_and_settled(
        self, point: str, nth: int, queue: tuple[str, int], levels: list[int]
    ) -> None:
        """Do the same for fixed levels."""
        for level in levels:
            self.at.put_level(queue, level, 20)
        self.at.settle()
        self.at.clock.advance(5000)
        self.at.kill_at(point, nth, self.at.settle_quietly)
        self.at.settle()

    @invariant()
    def agrees(self) -> None:
        if self.driver is not None:
            self.driver.look()

    def teardown(self) -> None:
        try:
            if self.driver is not None:
                self.driver.finish()
        finally:
            if self.driver is not None:
                self.driver.drop()
            self.end()
            shutil.rmtree(self.root, ignore_errors=True)

    def end(self) -> None:
        """Release the resources of `make`."""
