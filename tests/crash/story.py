"""What a store is asked to do while a call fails, and what must be true afterwards.

A Scene has a part before anything fails and one in which a call does; a Story notes what was
answered. Then the store is opened again, with nothing failing, and compared.

Holds:    (1) what was acknowledged comes exactly once, never early, with its body; what was refused
          with an error that promises that nothing was stored never comes; what else was not
          answered comes once or not at all; (2) what was pulled stays where it was; (3) each error
          is the store's own and says what and where.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

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
    """One store, and what it said."""

    def __init__(
        self, folder: Path, config: StoreConfig, allowed: tuple[type[Exception], ...] = ()
    ) -> None:
        self.folder = folder
        self.root = folder / "store"
        self.config = config
        self.clock = ManualClock(START_MS)
        self.errors: list[Exception] = []
        self.acked: dict[bytes, int] = {}  # body -> due
        self.perhaps: dict[bytes, int] = {}
        self.refused: set[bytes] = set()
        self.over: set[bytes] = set()  # cancelled
        self.perhaps_over: set[bytes] = set()
        self.moved: dict[bytes, set[int]] = {}  # body -> times that are right
        self.seen: dict[tuple[str, int], list[bytes]] = {}
        self.at: dict[tuple[str, int], int] = {}  # offset behind what was seen
        self.committed: set[int] = {0}  # offsets of which one is right
        self.versions: dict[int, Version] = {}
        self.handles: dict[bytes, str] = {}
        self.droppable = False  # what was delivered may be gone: retention is on
        self.store: TimerStore | None = None
        self._allowed = (TimerStoreError, *allowed)
        self._number = 0

    # --- asking ---

    def ask(self, call: Callable[[], Any]) -> Any:
        """Give the answer, None where there was an error; it is noted."""
        try:
            return call()
        except self._allowed as error:
            self.note(error)
            return None

    def note(self, error: Exception) -> None:
        """An error must say what and where."""
        self.errors.append(error)
        if isinstance(error, (FailedError, FullError)):
            assert "; at /" in str(error), f"it does not say where: {error!r}"

    def open(self) -> bool:
        """Open it; whether that worked."""
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
        store.close()  # does nothing, whatever the first one met

    def drop(self) -> None:
        """Let go of it as a kill does."""
        if self.store is not None:
            store, self.store = self.store, None
            abandon(store)

    def body(self, size: int = 40) -> bytes:
        self._number += 1
        return (b"%06d" % self._number).ljust(size, b".")

    def put(self, delay_ms: int = 0, size: int = 40, **given: Any) -> None:
        """Put one, due so much later."""
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
        except self._allowed as error:  # it is made of the receipt just now
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
        """Step the services as their threads do: what may pass is tried again, the rest ends it."""
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
        self.ask(lambda: self.clock.advance(ms))  # who listens may have no memory
        self.settle()

    def pull(self) -> None:
        """Pull what is new, and see that it is what was put."""
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
        """What is there, and the bodies: unpacking one may lack memory, too."""
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

    # --- afterwards ---

    def check(self) -> None:
        """Open it again; everything comes."""
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
        """Remove its files."""
        shutil.rmtree(self.folder)


class Scene(NamedTuple):
    """A part of a store's life."""

    before: Callable[[Story], None]
    during: Callable[[Story], None]
    config: Mapping[str, Any] = MappingProxyType({})
    checked: Callable[[Story], None] = Story.check


def config_of(scene: Scene) -> StoreConfig:
    """Give the configuration of a scene's store."""
    return StoreConfig(
        **({name: getattr(CONFIG, name) for name in CONFIG.__slots__} | dict(scene.config))
    )


def _opened(story: Story) -> None:
    assert story.open()


def _nothing(_story: Story) -> None:
    pass


def _open_and_put(story: Story) -> None:
    if story.open():
        story.put()


def _puts(story: Story) -> None:
    story.put()
    story.put(300)
    story.put(level=1, topic="mails", queue_id=0)
    story.put(message_id="once")
    story.put_many(4, 200)
    story.put_many(3, 0, atomic=True)
    story.put(flush="async")
    story.settle()
    story.pull()


def _full_of_timers(story: Story) -> None:
    _opened(story)
    for n in range(6):
        story.put(300 + 100 * n)
    story.put_many(5, 250)
    story.put(level=1, topic="mails", queue_id=0)
    story.put(2500)  # rolls
    story.settle()


def _deliver(story: Story) -> None:
    for ms in (310, 400, 1500):
        story.advance(ms)
        story.pull()


def _cancel(story: Story) -> None:
    story.cancel(0)
    story.reschedule(1, 50)
    story.reschedule(2, 5000)
    story.settle()
    story.cancel(3)
    story.advance(200)
    story.pull()


def _with_messages(story: Story) -> None:
    _opened(story)
    story.put_many(6, 0)
    story.settle()


def _commits(story: Story) -> None:
    story.commit(2)
    story.commit(3)


def _rolls(story: Story) -> None:
    for n in range(12):
        story.put(400 * (n % 3), size=900)
    story.put_many(40, 100)
    story.settle()
    story.advance(1000)
    story.pull()


def _checkpoints(story: Story) -> None:
    for _ in range(3):
        story.put(200, flush="async")
        story.ask(story.opened.flush)
    story.settle()


def _close(story: Story) -> None:
    story.put()
    story.close()


def _killed(story: Story) -> None:
    _full_of_timers(story)
    story.opened.flush()
    story.put(800)
    story.put_many(5, 0)
    story.put(flush="async")
    story.drop()


def _closed(story: Story) -> None:
    _full_of_timers(story)
    story.close()


def _without_side_files(story: Story) -> None:
    _killed(story)
    shutil.rmtree(story.root / "timerwheel", ignore_errors=True)
    (story.root / "timerstore/watermark").unlink()


def _recover(story: Story) -> None:
    if story.open():
        story.settle()
        story.pull()


def _old_and_waiting(story: Story) -> None:
    story.droppable = True
    _opened(story)
    story.put(60_000)
    story.put(level=2, topic="mails", queue_id=0)
    for n in range(12):
        story.put(100 * n, size=700)
    story.advance(1500)
    story.pull_all()


def _retain(story: Story) -> None:
    for _ in range(5):
        story.advance(2500)
        story.put(size=700)
    story.pull()


def _backed_up(story: Story) -> None:
    _full_of_timers(story)
    story.opened.backup(story.folder / "backup")
    for n in range(6):
        story.put(700 * (n % 2), size=700)


def _backup(story: Story) -> None:
    story.ask(lambda: story.opened.backup(story.folder / "backup"))
    story.ask(lambda: story.opened.backup(story.folder / "other"))
    story.put()


def _restorable(story: Story) -> None:
    """The backup from before is there, or the new one is."""
    story.check()
    for name in ("backup", "other"):
        if (story.folder / name / "backup.json").exists():
            assert timerstore.check_backup(story.folder / name).clean
            timerstore.restore(story.folder / name, story.folder / f"restored-{name}")
            with timerstore.open(story.folder / f"restored-{name}", threads=False) as store:
                assert store.verify().clean
    assert (story.folder / "backup/backup.json").exists()


def _restore(story: Story) -> None:
    story.ask(lambda: timerstore.restore(story.folder / "backup", story.folder / "restored"))


def _restored(story: Story) -> None:
    story.check()
    target = story.folder / "restored"
    if not target.exists():
        timerstore.restore(story.folder / "backup", target)
    with timerstore.open(target, clock=story.clock, threads=False) as store:
        assert store.verify().clean
        assert store.stats()["pending_messages"] == 13


def _ingests(story: Story) -> None:
    story.ingest(1, 7)
    story.ingest(2, 4)
    story.settle()
    story.ingest(1, 7)
    story.pull()


def _looks(story: Story) -> None:
    store = story.opened
    story.ask(lambda: list(store.pending()))
    for n in range(3):
        story.ask(lambda n=n: store.query("orders", f"key-{n}"))  # type: ignore[misc]
    report = story.ask(store.verify)  # what it could not read, it says
    assert report is None or report.clean or inside(store).log.failed or "read:" in str(report), (
        report
    )
    story.ask(store.stats)
    story.ask(lambda: store.offset_at("orders", 0, START_MS))
    story.pull()


SCENES = {
    "open": Scene(_nothing, _open_and_put),
    "put": Scene(_opened, _puts),
    "deliver": Scene(_full_of_timers, _deliver),
    "cancel": Scene(_full_of_timers, _cancel),
    "commit": Scene(_with_messages, _commits),
    "roll": Scene(_opened, _rolls),
    "checkpoint": Scene(_full_of_timers, _checkpoints),
    "close": Scene(_full_of_timers, _close),
    "recover": Scene(_killed, _recover),
    "reopen": Scene(_closed, _recover),
    "recover anew": Scene(_without_side_files, _recover),
    "retain": Scene(_old_and_waiting, _retain, {"retention_ms": 2000}),
    "backup": Scene(_backed_up, _backup, checked=_restorable),
    "restore": Scene(_backed_up, _restore, checked=_restored),
    "ingest": Scene(_opened, _ingests, {"commit_log_segment_bytes": 16_384}),
    "look": Scene(_full_of_timers, _looks),
}
