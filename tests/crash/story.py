"""Call a store while system calls fail, record the answers, and check the store afterwards.

The checks open the store again without failures.

Invariants:
    1. An acknowledged message is delivered exactly once, never early, with its body. A message that
       was rejected with a promise that nothing was stored is never delivered. Any other message
       without an answer is delivered at most once.
    2. A pulled message keeps its offset.
    3. Each error is one of the store's classes, and its text names the call and the place.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timerstore
from tests.support.driver import START_MS, abandon
from tests.support.ingesting import Version
from tests.support.inside import inside
from timerstore import (
    CancelResult,
    FailedError,
    FullError,
    PutReceipt,
    StoreConfig,
    TimerStore,
)
from timerstore.errors import TimerStoreError
from timerstore.testing import ManualClock, Stepper

_LATER_MS = (0, 400, 1500, 5000, 70_000, 1_000_000)
_ROUNDS = 40
_LEVELS_MS = (1000, 5000)
CONFIG = StoreConfig(
    commit_log_segment_bytes=4096,
    queue_segment_bytes=200,
    timer_log_segment_bytes=1024,
    wheel_slot_count=64,
    roll_window_slots=20,
    index_slot_count=5,
    index_entry_count=20,
    checkpoint_log_bytes=8192,
    checkpoint_interval_ms=500,
    precision_ms=100,
    staging_bytes=4096,
    reserve_bytes=4096,
    message_bytes_max=2000,
    topic_queue_count=2,
    level_delays="1s 5s",
    retention_ms=0,
)
QUEUES = (("orders", 0), ("orders", 1), ("mails", 0), ("bulk", 0), ("bulk", 1))


class Story:
    """One store, and its answers."""

    def __init__(
        self, folder: Path, config: StoreConfig, allowed: tuple[type[Exception], ...] = ()
    ) -> None:
        self.folder = folder
        self.root = folder / "store"
        self.config = config
        self.clock = ManualClock(START_MS)
        self.errors: list[Exception] = []
        self.acked: dict[bytes, int] = {}  # body -> due time
        self.perhaps: dict[bytes, int] = {}
        self.refused: set[bytes] = set()
        self.over: set[bytes] = set()  # cancelled
        self.perhaps_over: set[bytes] = set()
        self.moved: dict[bytes, set[int]] = {}  # body -> due times that are possible
        self.seen: dict[tuple[str, int], list[bytes]] = {}
        self.at: dict[tuple[str, int], int] = {}  # offset after the last message that was read
        self.committed: set[int] = {0}  # one of these offsets is stored
        self.versions: dict[int, Version] = {}
        self.handles: dict[bytes, str] = {}
        self.droppable = False  # retention is on, so that delivered messages may be gone
        self.store: TimerStore | None = None
        self._allowed = (TimerStoreError, *allowed)
        self._number = 0

    # --- calls ---

    def ask(self, call: Callable[[], Any]) -> Any:
        """Return the answer of a call, or None if it raised an error, which is recorded."""
        try:
            return call()
        except self._allowed as error:
            self.note(error)
            return None

    def note(self, error: Exception) -> None:
        """Record an error. Its text must name the place."""
        self.errors.append(error)
        if isinstance(error, (FailedError, FullError)):
            assert "; at /" in str(error), f"it does not say where: {error!r}"

    def open(self) -> bool:
        """Open the store, and return whether it succeeded."""
        self.store = self.ask(
            lambda: timerstore.open(self.root, self.config, clock=self.clock, threads=False)
        )
        return self.store is not None

    @property
    def opened(self) -> TimerStore:
        assert self.store is not None
        return self.store

    def close(self) -> None:
        if self.store is not None:
            store, self.store = self.store, None
            self.ask(store.close)
            self._close_again(store)

    def _close_again(self, store: TimerStore) -> None:
        store.close()  # a second close does nothing, whatever the first one raised

    def drop(self) -> None:
        """Abandon the store as a kill does."""
        if self.store is not None:
            store, self.store = self.store, None
            abandon(store)

    def body(self, size: int = 40) -> bytes:
        self._number += 1
        return (b"%06d" % self._number).ljust(size, b".")

    def put(self, delay_ms: int = 0, size: int = 40, **given: Any) -> None:
        """Put one message with a delay."""
        body, due_ms = self.body(size), self.clock.now_ms + delay_ms
        given = {"topic": "orders", "queue_id": self._number % 2} | given
        if "level" in given:
            due_ms += _LEVELS_MS[given["level"] - 1]
        else:
            given["deliver_ms"] = due_ms if delay_ms else None
        try:
            receipt = self.opened.put(body=body, keys=(f"key-{self._number % 3}",), **given)
        except self._allowed as error:
            self.note(error)
            self._not_answered([body], [due_ms], error)
        else:
            self.acked[body] = receipt.due_ms
            if receipt.queue_offset is None and "level" not in given:
                self._keep_handle(body, receipt)

    def _keep_handle(self, body: bytes, receipt: PutReceipt) -> None:
        try:
            self.handles[body] = receipt.handle
        except self._allowed as error:  # the handle is computed from the receipt here
            self.note(error)

    def put_many(self, count: int, delay_ms: int, **given: Any) -> None:
        bodies, due_ms = [self.body(30) for _ in range(count)], self.clock.now_ms + delay_ms
        try:
            batch = self.opened.put_many(
                "mails", bodies, deliver_ms=due_ms if delay_ms else None, queue_id=0, **given
            )
        except self._allowed as error:
            self.note(error)
            done = getattr(error, "stored_count", 0)
            if self._is_nothing_stored(error):
                assert not done or not given.get("atomic")
                self.acked.update(dict.fromkeys(bodies[:done], due_ms))
                bodies = bodies[done:]
            self._not_answered(bodies, [due_ms] * len(bodies), error)
        else:
            assert len(batch) == count
            self.acked.update(dict.fromkeys(bodies, due_ms))

    def _not_answered(self, bodies: list[bytes], dues: list[int], error: Exception) -> None:
        if self._is_nothing_stored(error):
            self.refused.update(bodies)
        else:
            self.perhaps.update(zip(bodies, dues, strict=True))

    def _is_nothing_stored(self, error: Exception) -> bool:
        return isinstance(error, FullError) and inside(self.opened).log.failed is None

    def cancel(self, which: int) -> None:
        body = list(self.handles)[which]
        try:
            answer = self.opened.cancel(self.handles[body])
        except self._allowed as error:
            self.note(error)
            if not self._is_nothing_stored(error):
                self.perhaps_over.add(body)
        else:
            assert answer is CancelResult.CANCELLED
            self.over.add(body)

    def reschedule(self, which: int, delay_ms: int) -> None:
        body, due_ms = list(self.handles)[which], self.clock.now_ms + delay_ms
        before = self.acked[body]
        try:
            self.opened.reschedule(self.handles[body], deliver_ms=due_ms)
        except self._allowed as error:
            self.note(error)
            if not self._is_nothing_stored(error):
                self.moved[body] = {before, due_ms}
        else:
            self.moved[body] = {due_ms}

    def commit(self, count: int) -> None:
        def read() -> None:
            with self.opened.consumer("mails", "group", wait=0) as consumer:
                at = sum(self.opened.committed("mails", "group").values())
                at += len(consumer.poll(count))
                self.committed.add(at)
                consumer.commit()
                self.committed = {at}

        self.ask(read)

    def ingest(self, version: int, count: int) -> None:
        if version not in self.versions:
            now_ms = self.clock.now_ms
            dues = [0 if n % 2 else now_ms + 300 * n for n in range(count)]
            self.versions[version] = Version([(self.body(20), due_ms) for due_ms in dues])
        one = self.versions[version]
        if self.ask(lambda: self.opened.ingest("table", version, one.batches(3))):
            one.is_sure = True

    def settle(self) -> None:
        """Step the services as their threads do.

        A retryable error is tried again; others stop the store.
        """
        services = self.ask(self.opened.services) or {}
        for _ in range(_ROUNDS):
            worked = False
            for name, service in services.items():
                try:
                    while service.step():
                        worked = True
                except self._allowed as error:
                    self.note(error)
                    if not getattr(error, "retryable", False):
                        inside(self.opened).fail_service(name, error)
            if not worked:
                return

    def advance(self, ms: int) -> None:
        self.ask(lambda: self.clock.advance(ms))  # a listener may find no memory
        self.settle()

    def pull(self) -> None:
        """Pull new messages, and compare them with the puts."""
        topics = self.ask(self.opened.topics) or {}
        for queue in QUEUES:
            known = self.seen.setdefault(queue, [])
            if queue[0] in topics:
                at = self.at.get(queue, 0)
                asked = self.ask(lambda q=queue, at=at: self._pulled(q, at))  # type: ignore[misc]
                if asked is not None:
                    found, bodies = asked
                    self._look(queue, at, list(zip(found.messages, bodies, strict=True)))
                    self.at[queue] = found.next_offset
                    assert self.droppable or found.next_offset == len(known)

    def _pulled(self, queue: tuple[str, int], at: int) -> tuple[timerstore.PullResult, list[bytes]]:
        """Return the messages and their bodies, because unpacking a body may lack memory, too."""
        found = self.opened.pull(*queue, at)
        return found, [bytes(one.body) for one in found.messages]

    def _look(
        self, queue: tuple[str, int], begin: int, messages: list[tuple[timerstore.Message, bytes]]
    ) -> None:
        known = self.seen[queue]
        for at, (one, body) in enumerate(messages, begin):
            assert self.droppable or one.queue_offset == at, f"a gap, or twice: {one}"
            assert all(body not in bodies for bodies in self.seen.values()), f"twice: {one}"
            dues = self._dues(body)
            assert one.due_ms in dues, f"due at {dues}: {one}"
            assert self.clock.now_ms >= one.due_ms, f"early: {one}"
            assert body not in self.over, f"cancelled: {one}"
            known.append(body)

    def _dues(self, body: bytes) -> set[int]:
        assert body not in self.refused, f"it was refused: {body!r}"
        if body in self.moved:
            return self.moved[body]
        for version in self.versions.values():
            for row, due_ms in version.rows:
                if row == body:
                    return {due_ms or self.clock.now_ms, *range(START_MS, START_MS + 1000, 50)}
        return {(self.acked | self.perhaps)[body]}

    # --- checks ---

    def check(self) -> None:
        """Open the store again, and check that each message is delivered."""
        since_ms = self.clock.now_ms
        with timerstore.open(self.root, self.config, clock=self.clock, threads=False) as store:
            self.store = store
            for queue in QUEUES:
                self._same(store, queue)
            for version, one in self.versions.items():
                store.ingest("table", version, one.batches(2))
            at = store.committed("mails", "group").get(0, 0)
            assert at in self.committed, f"committed {self.committed}, got {at}"
            stepper = Stepper(store)
            for ms in _LATER_MS:
                self.clock.advance(ms)
                stepper.settle()
                self.pull_all()
            self._all_came(since_ms)
            assert not list(store.pending())
            report = store.verify()
            assert report.clean, report
            self.store = None

    def pull_all(self) -> None:
        before = -1
        while before != (before := sum(self.at.values())):
            self.pull()

    def _same(self, store: TimerStore, queue: tuple[str, int]) -> None:
        known = self.seen.setdefault(queue, [])
        if self.droppable or not known:
            return
        found = [bytes(m.body) for m in store.pull(*queue, 0, max_count=len(known)).messages]
        while len(found) < len(known):
            more = store.pull(*queue, len(found), max_count=len(known)).messages
            assert more, f"what was seen is gone: {queue} {found} {known}"
            found += [bytes(m.body) for m in more]
        assert found[: len(known)] == known, f"it was {known}, is {found}"

    def _all_came(self, since_ms: int) -> None:
        came = {body for bodies in self.seen.values() for body in bodies}
        dues = self.acked.items()
        wanted = {body for body, due_ms in dues if not self.droppable or due_ms > since_ms}
        wanted |= {body for one in self.versions.values() for body, _ in one.rows}
        lost = wanted - came - self.over - self.perhaps_over
        assert not lost, f"lost: {sorted(lost)}"

    def clear(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.folder)
