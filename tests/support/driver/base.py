"""The store of a driver: its directory, its opening, and what retention may remove."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.support.driver.setup import (
    START_MS,
    TAGS,
    DriverClock,
    key_of,
    passed_points,
)
from tests.support.ingesting import Version
from tests.support.inside import inside, keep_log_from
from tests.support.inside.parts import allow_unclosed
from tests.support.models.groups import Readers
from tests.support.models.leases import DEAD, Lessees
from tests.support.models.messages import Model, Put, Queue
from timerstore import (
    PullResult,
    StoreConfig,
    TimerStore,
)
from timerstore._engine.read.waiting import WaitingPull
from timerstore.testing import Stepper


class BaseDriver:
    """A store, its clock and its models."""

    lost_below = 0
    """Log offset below which records were removed when the file of ids was lost."""

    def __init__(self, root: Path, config: StoreConfig) -> None:
        self.root = root
        self.config = config
        self.clock = DriverClock(START_MS)
        self.model = Model(is_each_level_alone=config.level_async)
        self.readers = Readers(self.begin_of)
        self.lessees = Lessees()
        self._generation = 0
        self._number = 0
        self.onces = self.clock.onces
        self.versions: dict[tuple[str, int], Version] = {}
        self.may_scan_all = False  # after a loss of files the opening may read the complete log
        self.may_ring_early = False  # a filtered pull may be woken early if reads fail
        self._has_lost = False  # retention has removed something
        self._open()

    def store_path(self) -> Path:
        return self.root / f"store-{self._generation}"

    def _open(self) -> None:
        is_new = not (self.store_path() / "lock").exists()
        with passed_points("recover_rebuild_begun") as anew:
            self.store = TimerStore(self.store_path(), self.config, clock=self.clock, threads=False)
        allow_unclosed(self.store)  # its process may be killed
        assert is_new or not anew or self.may_scan_all, (
            "the opening did not continue from the watermark"
        )
        self.may_scan_all = False
        self.stepper = Stepper(self.store)
        keep_log_from(inside(self.store).retention, self._lowest_unseen)
        self._waiting: dict[Queue, tuple[WaitingPull[PullResult], list[int], int, str | None]] = {}

    @property
    def may_forget(self) -> bool:
        """Return whether retention is on."""
        config = self.config
        return bool(
            config.retention_ms or config.retention_log_bytes or config.retention_disk_percent
        )

    def _lowest_unseen(self) -> int:
        """Return the log offset of the first unseen message, which retention must keep."""
        found = 2**62
        for queue, at in self._seen_ends():
            route = inside(self.store).routes.get(*queue)
            unit = b"" if route is None else route.queue.read(at, 1)
            if unit:
                found = min(found, int.from_bytes(unit[:8], "big"))
        return found

    def _seen_ends(self) -> Iterator[tuple[Queue, int]]:
        """Yield each observed queue and the offset up to which it was read."""
        for queue, known in self.model.seen.items():
            yield queue, len(known)
        for queue_id in range(self.store.topics().get(DEAD, 0)):
            yield (DEAD, queue_id), self.lessees.dead_next.get(queue_id, 0)

    def begin_of(self, queue: Queue) -> int:
        """Return the queue offset of the first remaining message, or the end of the queue."""
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
        """Return whether the record of the put itself was removed.

        A receipt that was made of a pending message after a kill may name the copy that retention
        made.
        """
        opened = inside(self.store)
        is_gone = one.receipt.log_offset < opened.log.segments.begin
        return is_gone or 0 <= one.receipt.timer_id < opened.timer_route.queue.min_offset

    def _leave(self, path: Path, to: Path) -> None:
        """Copy the files that an end at this time leaves."""
        shutil.copytree(path, to)

    def new_body(self, size: int) -> bytes:
        self._number += 1
        return (b"%06d" % self._number).ljust(size, b".")

    def _key_of(self, body: bytes) -> str:
        """Return the key of a message's query."""
        return key_of(body)

    def next_tag(self) -> str | None:
        return TAGS[self._number % len(TAGS)]
