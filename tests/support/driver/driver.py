"""The driver with all calls, and the variant whose ends are power cuts."""

from contextlib import suppress
from pathlib import Path

from tests.support.driver.kills import KillDriver
from tests.support.driver.setup import YEAR_MS, abandon
from tests.support.durable.shadow_disk import ShadowDisk
from tests.support.inside import failpoints
from timerstore import (
    StoreConfig,
)
from timerstore.errors import FlowControlError


class Driver(KillDriver):
    """A store on a manual clock, driven together with its model."""

    def kill_in_commit(self, point: str, topic: str, which: int) -> None:
        """Kill the store inside a commit: it is stored completely or not at all."""
        with self.dying(point, 1) as reached:
            self.readers.commit_in_flight(topic, which, reached)

    def receive(self, topic: str | list[str], count: int, lease_ms: int) -> None:
        """Lease some messages of a topic, or of several."""
        self._receive(topic, count, lease_ms, [])

    def _receive(
        self, topic: str | list[str], count: int, lease_ms: int, reached: list[str]
    ) -> None:
        self.look()
        with suppress(FlowControlError):
            self.lessees.receive(
                self.store, self.clock, topic, count, lease_ms, self.model.seen,
                lambda: bool(reached),
            )  # fmt: skip

    def kill_in_receive(
        self, point: str, nth: int, topic: str | list[str], count: int, lease_ms: int
    ) -> None:
        """Kill the store inside a receive: a prefix of its leases is stored."""
        with self.dying(point, nth) as reached:
            self._receive(topic, count, lease_ms, reached)

    def settle_lease(self, kind: str, which: int, ms: int) -> None:
        """Ack, nack, bury or extend one lease."""
        with suppress(FlowControlError):
            self.lessees.settle(self.store, self.clock, kind, which, ms, lambda: False)

    def kill_in_settle_lease(self, point: str, nth: int, kind: str, which: int, ms: int) -> None:
        """Kill the store inside an ack, nack, bury or extend: it is stored or not."""
        with self.dying(point, nth) as reached, suppress(FlowControlError):
            self.lessees.settle(self.store, self.clock, kind, which, ms, lambda: bool(reached))

    def requeue(self, which: int, count: int | None) -> None:
        """Requeue dead letters of the group; None: all."""
        self.lessees.requeue(self.store, which, lambda: False, count)

    def kill_in_requeue(self, point: str, nth: int, which: int, count: int | None) -> None:
        """Kill the store inside a requeue: each message is requeued or still a dead letter."""
        with self.dying(point, nth) as reached:
            self.lessees.requeue(self.store, which, lambda: bool(reached), count)

    def finish(self) -> None:
        """Deliver everything, check that each message came once, verify the store, and close."""
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
        """Release everything, in any state of the store."""
        failpoints.hook = None
        abandon(self.store)


class PowerDriver(Driver):
    """A driver whose ends are all power cuts."""

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
