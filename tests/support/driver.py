"""A store on a clock turned by hand, driven beside its model; it can die and be opened again.

Holds:    after every call the model agrees with what the store shows. A kill is what `kill -9`
          leaves: a copy of the directory as the file system shows it at that moment, mapped staging
          included, opened by a store that knows nothing of the one before.
Fails:    AssertionError where store and model differ; whatever the store raises passes through.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.support.disk_reader import offset_message_id
from tests.support.durable.shadow_disk import ShadowDisk
from tests.support.ingesting import Version, version_of
from tests.support.inside import inside, keep_log_from
from tests.support.inside.parts import allow_unclosed, pull_bytes_max
from tests.support.models.dedupe import Onces
from tests.support.models.groups import Readers
from tests.support.models.leases import DEAD, Lessees
from tests.support.models.messages import Model, Put, Queue
from tests.support.turned_clock import TurnedClock
from timerstore import (
    CancelResult,
    Message,
    PendingTimer,
    PullResult,
    PutReceipt,
    StoreConfig,
    TimerStore,
)
from timerstore._engine.base import failpoints
from timerstore._engine.format.delay_levels import parse_level_delays
from timerstore._engine.format.handle import decode, encode
from timerstore._engine.format.lease import group_of
from timerstore._engine.introspection.due_buckets import UNIT_S
from timerstore._engine.read.waiting_pull import WaitingPull
from timerstore.errors import FailedError, FlowControlError, MessageError, NotPendingError
from timerstore.testing import Stepper

BULK = ("bulk", 0)
"""Where everything that is ingested goes to."""
HOW = ("receipt", "handle", "broker")
"""Ways to name a message: its receipt, its handle, its handle as a broker would have given it."""
START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
YEAR_MS = 31_557_600_000
TAGS = (None, "Aa", "BB", "c")  # the second and third share a hash
WINDOW_MS = 20_000  # for which a message id is remembered
WAIT_S = 5000.0  # of a pull that waits: some jumps of the clock end it


def tiny(
    precision_ms: int, flush: str, slot_messages_max: int = 0, retention_ms: int = 0
) -> StoreConfig:
    """Sizes at which every edge is near: a dozen records a segment, a wheel of 128 slots."""
    return StoreConfig(
        commit_log_segment_bytes=16 * 1024,
        queue_segment_bytes=200,
        timer_log_segment_bytes=4096,
        wheel_slot_count=128,
        index_slot_count=5,
        index_entry_count=40,
        checkpoint_log_bytes=64 * 1024,  # the index is saved an eighth as often as it fills up
        precision_ms=precision_ms,
        staging_bytes=4096,
        reserve_bytes=4096,
        flush="sync" if flush == "sync" else "async",
        slot_messages_max=slot_messages_max,
        dedupe_window_ms=WINDOW_MS,
        retention_ms=retention_ms,
    )


def named(one: Put, how: str) -> PutReceipt | str:
    """Name a message; one that never waited has no handle of a broker's."""
    if how == "receipt":
        return one.receipt
    if how == "handle" or not one.waited:
        return one.receipt.handle
    return encode(decode(one.receipt.handle)._replace(timer_id=None))


def abandon(store: TimerStore) -> None:
    """Let go of a store without closing it: descriptors and maps go, no file changes."""
    inside(store).log.fail(FailedError("abandoned by a test"))  # so that nothing is completed
    store.close()


@contextmanager
def _counting(point: str) -> Iterator[list[str]]:
    """Note each time that a fail point is passed; a hook that is set hears of it too."""
    found: list[str] = []
    before = failpoints.hook

    def hook(name: str) -> None:
        if name == point:
            found.append(name)
        if before is not None:
            before(name)

    failpoints.hook = hook
    try:
        yield found
    finally:
        failpoints.hook = before


def key_of(body: bytes) -> str:
    """Return the key that a message of the driver is put with: some share one."""
    return f"key-{int(body[:6]) % 5}"


class _Clock(TurnedClock):
    """Has message ids grow old, too."""

    __slots__ = ("onces",)

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.onces = Onces()

    def _turn(self, ms: int, *, relative: bool) -> None:
        super()._turn(ms, relative=relative)
        self.onces.turned(self.now_ms)


class Driver:
    """One store, its clock, its model."""

    def __init__(self, root: Path, config: StoreConfig) -> None:
        self.root = root
        self.config = config
        self.clock = _Clock(START_MS)
        self.model = Model(is_each_level_alone=config.level_async)
        self.readers = Readers(self.begin_of)
        self.lessees = Lessees()
        self._generation = 0
        self._number = 0
        self.onces = self.clock.onces
        self.versions: dict[tuple[str, int], Version] = {}
        self.may_scan_all = False  # side files were taken away: the whole log is read
        self.may_ring_early = False  # a filtered pull, where messages cannot be read just then
        self._has_lost = False  # retention has removed something
        self._open()

    def store_path(self) -> Path:
        return self.root / f"store-{self._generation}"

    def _open(self) -> None:
        is_new = not (self.store_path() / "lock").exists()
        with _counting("recover_rebuild_begun") as anew:
            self.store = TimerStore(self.store_path(), self.config, clock=self.clock, threads=False)
        allow_unclosed(self.store)  # its process may die
        assert is_new or not anew or self.may_scan_all, "it did not go on from its watermark"
        self.may_scan_all = False
        self.stepper = Stepper(self.store)
        keep_log_from(inside(self.store).retention, self._lowest_unseen)
        self._waiting: dict[Queue, tuple[WaitingPull[PullResult], list[int], int, str | None]] = {}

    # --- what retention has removed ---

    @property
    def may_forget(self) -> bool:
        """Return whether retention is on."""
        config = self.config
        return bool(
            config.retention_ms or config.retention_log_bytes or config.retention_disk_percent
        )

    def _lowest_unseen(self) -> int:
        """Return a guard: what can be pulled and was not stays, so that everything is seen once."""
        found = 2**62
        for queue, at in self._seen_ends():
            route = inside(self.store).routes.get(*queue)
            unit = b"" if route is None else route.queue.read(at, 1)
            if unit:
                found = min(found, int.from_bytes(unit[:8], "big"))
        return found

    def _seen_ends(self) -> Iterator[tuple[Queue, int]]:
        """Queues that are looked at, and how far that is done."""
        for queue, known in self.model.seen.items():
            yield queue, len(known)
        for queue_id in range(self.store.topics().get(DEAD, 0)):
            yield (DEAD, queue_id), self.lessees.dead_next.get(queue_id, 0)

    def begin_of(self, queue: Queue) -> int:
        """Queue offset of the first message that is still there; its end without any."""
        if not self.may_forget or self.store.topics().get(queue[0], 0) <= queue[1]:
            return 0
        offset = 0
        while True:
            result = self.store.pull(*queue, offset, max_count=1)
            if result.messages or result.next_offset <= offset:
                return offset
            assert result.status in ("OFFSET_TOO_SMALL", "MESSAGE_WAS_REMOVING")
            offset = result.next_offset

    def _is_removed(self, one: Put) -> bool:
        """Whether the record of the put itself is gone; a receipt made of what was found after an
        end may be of the copy that retention made.
        """
        opened = inside(self.store)
        is_gone = one.receipt.log_offset < opened.log.segments.begin
        return is_gone or 0 <= one.receipt.timer_id < opened.timer_route.queue.min_offset

    def expire(self, queue: Queue) -> None:
        """Files are filled, and grow old: what was seen goes with them, what waits does not."""
        self.put_many(queue, [(0, 3000)] * 7, buffer=True)
        self.settle()
        self.clock.advance(self.config.retention_ms)
        self.put(queue, None, 20)
        self.clock.advance(self.config.retention_ms)
        self.settle()

    def _leave(self, path: Path, to: Path) -> None:
        """What the store's end at this moment leaves."""
        shutil.copytree(path, to)

    # --- calls ---

    def new_body(self, size: int) -> bytes:
        self._number += 1
        return (b"%06d" % self._number).ljust(size, b".")

    def put(self, queue: Queue, due_ms: int | None, size: int, flush: str | None = None) -> None:
        """One message; None: without a time."""
        body = self.new_body(size)
        with self._limited([due_ms or 0]):
            self.note_put(queue, body, due_ms, self._put(queue, body, due_ms, flush))

    def _put(self, queue: Queue, body: bytes, due_ms: int | None, flush: str | None) -> PutReceipt:
        return self.store.put(
            queue[0],
            body,
            deliver_ms=due_ms,
            queue_id=queue[1],
            flush=flush,
            tags=self.next_tag(),
            keys=key_of(body),
        )

    def _key_of(self, body: bytes) -> str:
        """What a message can be asked for by."""
        return key_of(body)

    def next_tag(self) -> str | None:
        return TAGS[self._number % len(TAGS)]

    def note_put(
        self, queue: Queue, body: bytes, due_ms: int | None, receipt: PutReceipt, sure: bool = True
    ) -> None:
        now_ms = self.clock.now_ms
        waits = due_ms is not None and due_ms > now_ms
        assert (receipt.queue_offset is None) == waits
        due_ms = due_ms if due_ms is not None and waits else now_ms
        assert receipt.due_ms == due_ms
        self.model.put(queue, body, due_ms, receipt, sure=sure)

    def put_level(self, queue: Queue, level: int, size: int) -> None:
        """One message with a fixed level."""
        self._put_level(queue, level, self.new_body(size), sure=True)

    def _put_level(self, queue: Queue, level: int, body: bytes, *, sure: bool) -> None:
        receipt = self.store.put(queue[0], body, level=level, queue_id=queue[1], keys=key_of(body))
        delays = parse_level_delays(self.config.level_delays)
        due_ms = self.clock.now_ms + delays[min(level, len(delays)) - 1]
        assert (receipt.queue_offset, receipt.due_ms, receipt.handle) == (None, due_ms, "")
        self.model.put(queue, body, due_ms, receipt, level=level, sure=sure)

    def put_many_level(self, queue: Queue, level: int, sizes: list[int]) -> None:
        """Many with one fixed level."""
        self._put_many_level(queue, level, [self.new_body(size) for size in sizes], sure=True)

    def _put_many_level(self, queue: Queue, level: int, bodies: list[bytes], *, sure: bool) -> None:
        batch = self.store.put_many(
            queue[0], bodies, level=level, queue_id=queue[1], keys=[key_of(body) for body in bodies]
        )
        delays = parse_level_delays(self.config.level_delays)
        due_ms = self.clock.now_ms + delays[min(level, len(delays)) - 1]
        for body, receipt in zip(bodies, batch, strict=True):
            assert receipt.waits_for_level
            assert (receipt.queue_offset, receipt.due_ms, receipt.handle) == (None, due_ms, "")
            self.model.put(queue, body, due_ms, receipt, level=level, sure=sure)

    def put_many(
        self, queue: Queue, items: list[tuple[int, int]], *, buffer: bool, atomic: bool = False
    ) -> None:
        """Many; (due_ms, size) each, 0 for now. `buffer`: as one bytes object and offsets."""
        bodies = [self.new_body(size) for _, size in items]
        with self._limited([due_ms for due_ms, _ in items]), self._grouped(bodies, atomic):
            self._put_many(queue, items, bodies, buffer=buffer, sure=True, atomic=atomic)

    @contextmanager
    def _grouped(self, bodies: list[bytes], atomic: bool) -> Iterator[None]:
        """A group that is too large is refused, and no other."""
        limit, size = self.config.group_bytes_max, sum(map(len, bodies))
        try:
            yield
        except MessageError:
            assert atomic
            assert limit < size + 450 * len(bodies), "refused, but it fits"
        else:
            assert not atomic or len(bodies) < 2 or limit >= size + 150 * len(bodies)

    def put_once(self, queue: Queue, which: int, due_ms: int | None, size: int) -> None:
        """One message with an id of the caller's, of which there are few."""
        self._put_once(queue, which, due_ms, self.new_body(size), lambda: False)

    def kill_in_put_once(
        self, point: str, nth: int, queue: Queue, which: int, due_ms: int | None
    ) -> None:
        """Die inside such a put."""
        with self.dying(point, nth) as reached:
            self._put_once(queue, which, due_ms, self.new_body(300), lambda: bool(reached))

    def _put_once(
        self,
        queue: Queue,
        which: int,
        due_ms: int | None,
        body: bytes,
        is_in_flight: Callable[[], bool],
    ) -> None:
        if self.config.slot_messages_max:
            due_ms = None  # flow control checks new messages only; test_dedupe.py covers the rest
        window_ms = self.config.dedupe_window_ms
        name = self.onces.name(queue[0], which, self.clock.now_ms, window_ms, self.lost_below)
        receipt = self.store.put(
            queue[0], body, deliver_ms=due_ms, queue_id=queue[1], message_id=name, keys=key_of(body)
        )
        self.note_once(queue, name, due_ms, body, receipt, is_in_flight=is_in_flight())

    lost_below = 0  # of the log: removed when the file of ids was lost

    def note_once(
        self,
        queue: Queue,
        name: str,
        due_ms: int | None,
        body: bytes,
        receipt: PutReceipt,
        *,
        is_in_flight: bool,
    ) -> None:
        """A put with an id answered; `is_in_flight`: the store died meanwhile."""
        at, now_ms, window_ms = (queue[0], name), self.clock.now_ms, self.config.dedupe_window_ms
        if receipt.duplicate:
            begin = inside(self.store).log.segments.begin
            sure = not is_in_flight
            put = self.onces.answered(at, receipt, now_ms, window_ms, begin, sure=sure)
            if sure:
                self._answered_again(put)
            return
        if not is_in_flight:
            for one in self.onces.was_new(at, now_ms, window_ms, self.lost_below):
                assert one.place is None  # in flight at an end: now it is known not to be there
                del self.model.puts[one.body]
        self.note_put(queue, body, due_ms, receipt, sure=not is_in_flight)
        self.onces.put(at, self.model.puts[body], now_ms)

    def _answered_again(self, one: Put) -> None:
        """A put was told that this one is there: it is durable, whatever it was before."""

    def ingest(self, source: str, number: int, items: list[tuple[int, int]], cut: int) -> None:
        """All rows of a version; `items` is what it has when it is named first."""
        version = self._version(source, number, items)
        was_complete = number in self.store.ingested(source)
        assert was_complete or not version.is_sure
        receipt = self.store.ingest(source, number, version.batches(cut))
        assert receipt == (source, number, len(version.rows), was_complete)
        assert number in self.store.ingested(source)
        version.is_sure = True
        for body, _ in version.rows:
            self.model.puts[body].sure = True

    def kill_in_ingest(
        self,
        point: str,
        nth: int,
        source: str,
        number: int,
        items: list[tuple[int, int]],
        cut: int,
    ) -> None:
        """Die inside an ingest."""
        version = self._version(source, number, items)
        with self.dying(point, nth) as reached:
            self.store.ingest(source, number, version.batches(cut))
            if not reached:
                version.is_sure = True

    def ingest_rest(self) -> None:
        """What was begun is brought to its end."""
        for source, number in self.versions:
            self.ingest(source, number, [], 3)

    def _version(self, source: str, number: int, items: list[tuple[int, int]]) -> Version:
        version = self.versions.get((source, number))
        if version is None:
            rows = [(self.new_body(size), due_ms) for due_ms, size in items]
            version = self.versions[source, number] = Version(rows)
        now_ms, config = self.clock.now_ms, self.config
        for body, due_ms in version.rows:
            waits = due_ms > now_ms
            if body not in self.model.puts:
                receipt = version_of(body, due_ms or now_ms, waits, config)
                self.model.put(BULK, body, receipt.due_ms, receipt, level=-1, sure=False)
            one = self.model.puts[body]
            if not one.sure:  # this call may be the one that stores it
                one.waited |= waits
                one.due_ms = due_ms or min(now_ms, one.due_ms)
        return version

    def check_ingested(self) -> None:
        """What was answered for is known."""
        for (source, number), version in self.versions.items():
            assert not version.is_sure or number in self.store.ingested(source)

    @contextmanager
    def _limited(self, due_ms: list[int]) -> Iterator[None]:
        """Flow control refuses a put where its slot would be too full, and only there.

        Of the present slot, what came out of it counts too.
        """
        limit, precision_ms = self.config.slot_messages_max, self.config.precision_ms
        if not limit:
            yield
            return
        now_ms = self.clock.now_ms
        asked = Counter((due - 1) // precision_ms for due in due_ms if due > now_ms)
        waiting = self.store.congestion()
        full = {
            slot
            for slot, count in asked.items()
            if waiting.get(slot * precision_ms, 0) + count > limit
        }
        try:
            yield
        except FlowControlError:
            assert full or now_ms // precision_ms in asked, f"refused: {asked} beside {waiting}"
        else:
            assert not full, f"not refused: {asked} beside {waiting}"

    def _put_many(
        self,
        queue: Queue,
        items: list[tuple[int, int]],
        bodies: list[bytes],
        *,
        buffer: bool,
        sure: bool,
        atomic: bool = False,
    ) -> None:
        dues = np.array([due for due, _ in items], np.int64)
        offsets = np.cumsum([0, *map(len, bodies)])
        given = (b"".join(bodies), offsets) if buffer else bodies
        batch = self.store.put_many(
            queue[0],
            given,
            deliver_ms=dues,
            queue_id=queue[1],
            tags=self.next_tag(),
            keys=list(map(key_of, bodies)),
            atomic=atomic,
        )
        for (due_ms, _), body, receipt in zip(items, bodies, batch, strict=True):
            self.note_put(queue, body, due_ms, receipt, sure)

    def cancel(self, one: Put, how: str) -> CancelResult:
        """Cancel a message of the model; `how` as HOW."""
        answer = self.store.cancel(named(one, how))
        self.note_cancel(one, answer)
        return answer

    def note_cancel(self, one: Put, answer: CancelResult, *, sure: bool = True) -> None:
        if answer is CancelResult.UNKNOWN and self._is_removed(one):
            may_be_over = one.cancelled or one.maybe_cancelled or one.must_come or not one.sure
            if one.place is None and not may_be_over:  # it was handed out, and not seen yet
                assert self.clock.latest_ms >= one.due_ms, f"unknown, but it waits: {one}"
                one.must_come = sure
            return
        self.model.cancel(one, answer, self.clock.latest_ms, sure=sure)

    def cancel_old(self, one: Put, which: int) -> None:
        """Cancel by the handle of a time that it had before."""
        answer = self.store.cancel(one.old[which % len(one.old)].handle)
        old = one.old[which % len(one.old)].log_offset
        is_removed = old < inside(self.store).log.segments.begin
        assert answer is CancelResult.ALREADY_CANCELLED or is_removed, f"{answer}: {one}"

    def reschedule(self, one: Put, due_ms: int, how: str) -> None:
        """Give a message of the model another time."""
        receipt = self._reschedule(one, due_ms, how)
        if receipt is not None:
            self.model.moved(one, receipt, receipt.due_ms)

    def _reschedule(self, one: Put, due_ms: int, how: str) -> PutReceipt | None:
        now_ms = self.clock.now_ms
        try:
            receipt = self.store.reschedule(named(one, how), deliver_ms=due_ms)
        except FlowControlError:
            limit, slot = self.config.slot_messages_max, (due_ms - 1) // self.config.precision_ms
            waiting = self.store.congestion().get(slot * self.config.precision_ms, 0)
            assert waiting >= limit or slot == now_ms // self.config.precision_ms
            return None
        except NotPendingError as error:
            refused = error.result  # never CANCELLED: the model would take it for one
        else:
            return self._check_moved(one, receipt, due_ms, now_ms)
        self.note_cancel(one, CancelResult(refused))
        assert refused != CancelResult.CANCELLED
        return None

    def _check_moved(self, one: Put, receipt: PutReceipt, due_ms: int, now_ms: int) -> PutReceipt:
        assert (receipt.queue_offset is None) == (due_ms > now_ms)
        assert receipt.due_ms == max(due_ms, now_ms)
        assert (receipt.topic, receipt.queue_id) == one.queue
        return receipt

    def wait(self, queue: Queue, tag: str | None) -> None:
        """Leave a pull waiting at the end of a queue, for any message or those of one tag; `look`
        sees that it is rung in time.
        """
        queue_count = self.store.topics().get(queue[0], 0)
        if queue in self._waiting or queue not in self.model.seen or queue[1] >= queue_count:
            return
        rung: list[int] = []
        offset = len(self.model.seen[queue])
        pull = self.store.begin_pull(*queue, offset, wait=WAIT_S, tags=tag)
        if pull.enter(lambda: rung.append(1)):
            end_ns = self.clock.monotonic_ns + int(WAIT_S * 1e9)
            self._waiting[queue] = (pull, rung, end_ns, tag)

    def _look_at_waiting(self, queue: Queue, new: list[Message]) -> None:
        if queue not in self._waiting:
            return
        pull, rung, end_ns, tag = self._waiting[queue]
        # More than one pull reads at a time is looked at by the pull itself, not by who rings it.
        is_large = sum(message.store_bytes for message in new) > pull_bytes_max()
        is_large |= self.may_ring_early and bool(new)
        new = [message for message in new if tag is None or message.tags == tag]
        is_over = self.clock.monotonic_ns >= end_ns
        assert rung or not (new or is_over), "asleep past a message"
        assert new or is_over or not rung or is_large, "rung for nothing"
        if rung:
            del self._waiting[queue]
            pull.leave()
            found = pull.final(pull.look()).messages  # not all where they are large
            assert found == tuple(new[: len(found)])
            assert bool(found) == bool(new)

    def settle(self) -> None:
        """Every service until none has work; then everything due is there: nothing is paced."""
        self.settle_quietly()
        self.look()
        self.model.check_settled(self.clock.now_ms)

    def settle_quietly(self) -> None:
        """The same without looking: what is not durable at the moment of a kill was not seen."""
        for topic in inside(self.store).pipeline.dequeue_put.fair_queue.rates:
            self.store.pace(topic, None)
        self.stepper.settle()

    def look(self) -> None:
        """Pull what is new, and compare."""
        for queue, known in self.model.seen.items():
            new = self._pull_new(queue, len(known))
            self._look_at_waiting(queue, new)
            self.model.came(queue, new)
            self.model.check_order(queue)

    def _pull_new(self, queue: Queue, offset: int) -> list[Message]:
        if self.store.topics().get(queue[0], 0) <= queue[1]:  # a put that made it was killed
            return []
        found: list[Message] = []
        while True:
            if len(found) % 2:
                batch = self.store.pull_batch(*queue, offset, max_count=7)
                messages, following, end = list(batch), batch.next_offset, 0
            else:
                result = self.store.pull(*queue, offset, max_count=5)
                messages, following = list(result.messages), result.next_offset
                end = result.max_offset
            if not messages:
                return found
            assert following == offset + len(messages)
            found += messages
            offset = following
            if offset == end:
                return found

    def look_filtered(self, wanted: list[str], how: dict[str, str]) -> None:
        """A filter gives what has a wanted tag, of what comes without it, in the same order."""
        for queue in self.model.seen:
            found, offset = [], 0
            offset = self.begin_of(queue)
            everyone = self._pull_new(queue, offset)
            end = offset + len(everyone)
            while offset < end:
                got = self.store.pull(*queue, offset, max_count=5, **how)  # type: ignore[arg-type]
                assert got.next_offset > offset
                found += got.messages
                offset = got.next_offset
            assert found == [message for message in everyone if message.tags in wanted]

    def look_again(self) -> None:
        """What was seen is still there, at the same places."""
        for queue in self.model.seen:
            begin = self.begin_of(queue)
            self.model.same(queue, self._pull_new(queue, begin), begin)

    def compare_pending(self) -> None:
        """`pending()` and the counts agree with the model."""
        found = list(self.store.pending())
        plain = [one.message_id for one in found if not self._is_apart(one.topic)]
        self.model.check_pending(plain, self.clock.latest_ms)
        known = {p.receipt.message_id: p for p in self.model.puts.values()}
        counts: dict[str, int] = {}
        for one in found:
            if self._is_apart(one.topic):
                counts[one.topic] = counts.get(one.topic, 0) + 1
                continue
            put = known[one.message_id]
            assert (one.topic, one.queue_id) == put.queue
            assert one.due_ms == put.due_ms
            assert put.level < 0 or one.handle == put.receipt.handle
            assert (one.timer_id < 0) == (put.level > 0)
            counts[one.topic] = counts.get(one.topic, 0) + 1
        stats = self.store.stats()
        assert stats["pending_messages"] == len(found)
        assert stats["pending_by_topic"] == counts
        assert stats["level_pending_messages"] == sum(one.timer_id < 0 for one in found)
        self._compare_histogram(found)
        for one in found[:: max(1, len(found) // 4)]:
            told = self.store.explain(one)
            assert (told.state, told.due_ms, told.timer_id) == ("waiting", one.due_ms, one.timer_id)
        distribution = self.store.timing_distribution()
        assert sum(distribution.values()) == len(found)
        assert distribution[5] == sum(one.due_ms <= self.clock.now_ms + 5000 for one in found)
        self._compare_times([one.due_ms for one in found if one.timer_id >= 0], stats)

    def _is_apart(self, topic: str) -> bool:
        """Return whether something else than the model knows what is in a topic: leases are."""
        return group_of(topic) is not None

    def _compare_histogram(self, found: list[PendingTimer]) -> None:
        """Histograms agree with the due times of what waits, by all units and topics."""
        begin_ms = min([self.clock.now_ms, *(one.due_ms for one in found)])
        spans_ms = {"second": 2_000_000, "minute": 200_000_000, "hour": YEAR_MS}
        for by, unit_s in UNIT_S.items():
            first = begin_ms // (1000 * unit_s)
            end_ms = begin_ms + spans_ms.get(by, 41 * YEAR_MS)
            for topic in (None, *sorted({queue[0] for queue in self.model.seen}), "nobody"):
                counts = self.store.histogram(begin_ms, end_ms, by, topic).counts
                wanted = Counter(
                    one.due_ms // (1000 * unit_s) - first
                    for one in found
                    if topic in (None, one.topic)
                )
                there = np.flatnonzero(counts)
                counted = dict(zip(there.tolist(), counts[there].tolist(), strict=True))
                assert counted == {k: n for k, n in wanted.items() if k < len(counts)}

    def _compare_times(self, due_ms: list[int], stats: dict[str, Any]) -> None:
        """Congestion and what is behind agree with the due times of the timers that wait."""
        precision_ms, now_ms = self.config.precision_ms, self.clock.now_ms
        slots = Counter((due - 1) // precision_ms * precision_ms for due in due_ms)
        assert self.store.congestion() == slots
        late = [due for due in due_ms if due <= now_ms]
        behind = stats["delivery_lag_messages"]
        assert behind <= len(late) <= behind + stats["enqueue_lag_messages"]
        if behind == len(late):
            assert stats["delivery_lag_ms"] == now_ms - min(late, default=now_ms)

    def query(self, topic: str, key: str) -> None:
        """What has a key is what the model says; so is what has one message's id."""
        durable, ends = self._known_before()
        found = self.store.query(topic, key, max_count=1_000_000)
        self.look()  # a query dispatches: there may be more to pull than before
        self.model.check_query(
            topic, lambda put: self._key_of(put.body) == key, found, durable, self.begin_of, ends,
            self.revocable(durable),
        )  # fmt: skip

    def revocable(self, _durable: int) -> set[bytes]:
        """What counts as cancelled by what lies behind that in the log, and may be lost."""
        return set()

    def _known_before(self) -> tuple[int, dict[Queue, int]]:
        """What a query must find that is asked now: what is durable, what was seen."""
        durable = int(self.store.stats()["log_durable_bytes"])
        return durable, {queue: len(known) for queue, known in self.model.seen.items()}

    def query_all(self) -> None:
        """Every key of every topic."""
        for topic in {queue[0] for queue in self.model.seen}:
            for key in {self._key_of(body) for body in self.model.puts}:
                self.query(topic, key)

    def query_one(self, one: Put) -> None:
        """By its id, and by the place of its record."""
        topic, receipt = one.queue[0], one.receipt
        durable, ends = self._known_before()
        found = self.store.query(topic, receipt.message_id)
        self.look()
        name = receipt.message_id  # that others had before, perhaps
        self.model.check_query(
            topic,
            lambda put: put.receipt.message_id == name,
            found,
            durable,
            self.begin_of,
            ends,
            self.revocable(durable),
        )
        host = self.config.store_host
        found = self.store.query(topic, offset_message_id(host, receipt.log_offset))
        assert [m.body for m in found] in ([], [one.body]) or not one.sure

    # --- ends ---

    def reopen(self, far_wheel: Literal["off", "shared", "own"] | None = None) -> None:
        """Close and open; with a far wheel from now on, or without."""
        self.store.close()
        if far_wheel is not None:
            self.config = replace(self.config, far_wheel=far_wheel)
        self._open()
        self.after_opening()

    def kill(self) -> None:
        """Die and open what is left."""
        with self.dying(None, 1):
            pass

    def kill_at(self, point: str, nth: int, during: Callable[[], None]) -> None:
        """Die at a fail point inside a call, or after it where it does not pass there so often."""
        with self.dying(point, nth):
            during()

    def kill_in_put(self, point: str, nth: int, queue: Queue, due_ms: int | None) -> None:
        """Die inside a put: it is there or it is not."""
        body = self.new_body(300)
        with self.dying(point, nth) as reached, self._limited([due_ms or 0]):
            receipt = self._put(queue, body, due_ms, None)
            self.note_put(queue, body, due_ms, receipt, sure=not reached)

    def kill_in_put_level(self, point: str, queue: Queue, level: int) -> None:
        """Die inside a put with a fixed level."""
        body = self.new_body(300)
        with self.dying(point, 1) as reached:
            self._put_level(queue, level, body, sure=False)
            self.model.puts[body].sure = not reached

    def kill_in_put_many_level(
        self, point: str, nth: int, queue: Queue, level: int, count: int
    ) -> None:
        """Die inside a put_many with a fixed level: a prefix of it is there."""
        bodies = [self.new_body(700) for _ in range(count)]
        with self.dying(point, nth) as reached:
            self._put_many_level(queue, level, bodies, sure=False)
            for body in [] if reached else bodies:
                self.model.puts[body].sure = True

    def kill_in_put_many(
        self, point: str, nth: int, queue: Queue, items: list[tuple[int, int]]
    ) -> None:
        """Die inside a put_many: a prefix of it is there."""
        bodies = [self.new_body(size) for _, size in items]
        dues = [due_ms for due_ms, _ in items]
        with self.dying(point, nth) as reached, self._limited(dues):
            self._put_many(queue, items, bodies, buffer=False, sure=False)
            for body in [] if reached else bodies:
                self.model.puts[body].sure = True

    def kill_in_put_group(
        self, point: str, nth: int, queue: Queue, items: list[tuple[int, int]]
    ) -> None:
        """Die inside an atomic put_many: all of it is there or nothing."""
        bodies = [self.new_body(size) for _, size in items]
        dues = [due_ms for due_ms, _ in items]
        with self.dying(point, nth, is_opened=False) as reached, self._limited(dues):
            self._put_many(queue, items, bodies, buffer=False, sure=False, atomic=True)
        self._open()
        known = [body for body in bodies if body in self.model.puts]  # none: it was refused
        if reached and known:
            ids = {self.model.puts[body].receipt.message_id for body in known}
            waiting = {one.message_id for one in self.store.pending()} & ids
            self.stepper.step("dispatch")
            there = {m.message_id for m in self._pull_new(queue, len(self.model.seen[queue]))}
            count = len(waiting) + len(there & ids)
            assert count in (0, len(known)), f"{count} of a group of {len(known)}"
            for body in known:
                self.model.puts[body].sure = bool(count)
                if not count:
                    del self.model.puts[body]
        for body in [] if reached else known:
            self.model.puts[body].sure = True
        self.after_opening()

    def kill_in_cancel(self, point: str, nth: int, one: Put) -> None:
        """Die inside a cancel: it is cancelled or it is not."""
        with self.dying(point, nth) as reached:
            answer = self.store.cancel(one.receipt)
            self.note_cancel(one, answer, sure=not reached)

    def kill_in_reschedule(self, point: str, nth: int, one: Put, due_ms: int) -> None:
        """Die inside a reschedule: it waits as it did, or as it was told."""
        with self.dying(point, nth) as reached:
            receipt = self._reschedule(one, due_ms, "handle")
            if receipt is not None and reached:
                one.maybe_moved = (receipt, receipt.due_ms)
            elif receipt is not None:
                self.model.moved(one, receipt, receipt.due_ms)

    def kill_in_commit(self, point: str, topic: str, which: int) -> None:
        """Die inside a commit: all of it is there or nothing."""
        with self.dying(point, 1) as reached:
            self.readers.commit_in_flight(topic, which, reached)

    # --- leases ---

    def receive(self, topic: str, count: int, lease_ms: int) -> None:
        """Lease some messages."""
        self._receive(topic, count, lease_ms, [])

    def _receive(self, topic: str, count: int, lease_ms: int, reached: list[str]) -> None:
        self.look()
        with suppress(FlowControlError):
            self.lessees.receive(
                self.store, self.clock, topic, count, lease_ms, self.model.seen,
                lambda: bool(reached),
            )  # fmt: skip

    def kill_in_receive(self, point: str, nth: int, topic: str, count: int, lease_ms: int) -> None:
        """Die inside a receive: of its leases a prefix is there."""
        with self.dying(point, nth) as reached:
            self._receive(topic, count, lease_ms, reached)

    def settle_lease(self, kind: str, which: int, ms: int) -> None:
        """Ack, give back or extend one."""
        with suppress(FlowControlError):
            self.lessees.settle(self.store, self.clock, kind, which, ms, lambda: False)

    def kill_in_settle_lease(self, point: str, nth: int, kind: str, which: int, ms: int) -> None:
        """Die inside that: it is done or it is not."""
        with self.dying(point, nth) as reached, suppress(FlowControlError):
            self.lessees.settle(self.store, self.clock, kind, which, ms, lambda: bool(reached))

    @contextmanager
    def dying(self, point: str | None, nth: int, *, is_opened: bool = True) -> Iterator[list[str]]:
        """Run a call in a store of which only what is there at one moment will be left."""
        old, old_path = self.store, self.store_path()
        self._generation += 1
        reached: list[str] = []
        passed = 0

        def hook(name: str) -> None:
            nonlocal passed
            passed += name == point
            if name == point and passed == nth:
                self._leave(old_path, self.store_path())
                reached.append(name)

        failpoints.hook = hook
        try:
            yield reached
        finally:
            failpoints.hook = None
        if not reached:
            self._leave(old_path, self.store_path())
        abandon(old)
        shutil.rmtree(old_path)
        if is_opened:
            self._open()
            self.after_opening()

    def open_again(self) -> None:
        """Open what is left of a life that `dying` ended."""
        self._open()
        self.after_opening()

    def kill_in_recovery(self, point: str, nth: int) -> None:
        """Die, and once more at a fail point of the opening that follows."""
        with self.dying(None, 1, is_opened=False):
            pass
        path, next_path = self.store_path(), self.root / f"store-{self._generation + 1}"
        passed = 0
        is_copied = False

        def hook(name: str) -> None:
            nonlocal passed, is_copied
            passed += name == point
            if name == point and passed == nth:
                self._leave(path, next_path)
                is_copied = True

        failpoints.hook = hook
        try:
            self._open()
        finally:
            failpoints.hook = None
        if is_copied:
            abandon(self.store)
            shutil.rmtree(path)
            self._generation += 1
            self._open()
        self.after_opening()

    def lose(self, names: list[str], *, kill: bool) -> None:
        """End, and open without some of the files that are derived from the log."""
        self._has_lost = inside(self.store).log.segments.begin > 0
        if kill:
            with self.dying(None, 1, is_opened=False):
                pass
        else:
            self.store.close()
        if not {"timerstore", "timerstore/watermark", "timerstore/counts"}.isdisjoint(names):
            # Where a queue ends whose messages are all removed, only those or its files tell.
            names = [name for name in names if name != "consumequeue" or not self._has_lost]
        for name in names:
            path = self.store_path() / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self.may_scan_all = True
        self._open()
        self.after_opening()

    def after_opening(self) -> None:
        for one in self.model.puts.values():
            if one.maybe_moved is not None:
                ids = one.receipt.message_id
                handles = [p.handle for p in self.store.pending() if p.message_id == ids]
                new = self._pull_new(one.queue, len(self.model.seen[one.queue]))
                self.model.decide_moved(one, handles, {m.body for m in new})
        self.check_ingested()
        self.readers.lost()
        self.readers.check(self.store)
        self.look_again()
        self.look()

    # --- the end ---

    def finish(self) -> None:
        """Turn the clock until nothing waits: all came, once; the store checks clean; close."""
        self.ingest_rest()
        self.settle()
        for _ in range(200):
            waiting = list(self.store.pending())
            if not waiting:
                break
            self.clock.set(max(self.clock.now_ms, waiting[0].due_ms))
            self.settle()
        assert not list(self.store.pending()), "still waiting after 200 turns"
        latest_ms = max((one.due_ms for one in self.model.waiting()), default=0)
        self.clock.set(max(self.clock.now_ms, latest_ms) + YEAR_MS)
        self.settle()
        self.look_again()
        self.compare_pending()
        self.lessees.check_waiting(self.store)
        self.lessees.finish(
            self.store, self.clock, self.model.seen, self.settle, self.begin_of
        )  # fmt: skip
        self.readers.finish(self.store, self.model.seen)
        assert self.store.stats()["level_pending_messages"] == 0
        self.query_all()
        report = self.store.verify()
        assert report.clean, report
        self.store.close()
        self._open()
        self.after_opening()
        self.stepper.settle()
        self.look()
        self.compare_pending()
        self.query_all()
        report = self.store.verify()
        assert report.clean, report
        self.store.close()

    def drop(self) -> None:
        """Let go of everything, whatever state it is in."""
        failpoints.hook = None
        abandon(self.store)


class PowerDriver(Driver):
    """The same where every end is a power cut."""

    def __init__(self, root: Path, config: StoreConfig, shadow: ShadowDisk) -> None:
        self._shadow = shadow
        super().__init__(root, config)

    def _open(self) -> None:
        path = self.store_path()
        if self._shadow.root != path or self.may_scan_all:
            path.mkdir(exist_ok=True)
            self._shadow.start(path)
        super()._open()

    def _leave(self, path: Path, to: Path) -> None:
        self._shadow.cut(to)
