"""A small store on a manual clock, and the helpers that most tests use.

Invariants: every store that a bench closes has been checked by `verify` first.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.driver import abandon
from tests.support.inside import failpoints, inside
from timerstore import Message, StoreConfig, TimerStore
from timerstore.errors import TimerStoreError
from timerstore.testing import ManualClock, Stepper

NOW = 1_700_000_000_000
SECOND = 1000
DAY = 86_400_000
YEAR = 31_557_600_000


def small(**changes: Any) -> StoreConfig:
    """Return sizes that keep a test fast and still fit one large message."""
    sizes: dict[str, Any] = {
        "commit_log_segment_bytes": 1 << 20,
        "queue_segment_bytes": 2000,
        "timer_log_segment_bytes": 64 * 1024,
        "wheel_slot_count": 128,
        "index_slot_count": 50,
        "index_entry_count": 200,
        "staging_bytes": 16 * 1024,
        "reserve_bytes": 0,
        "flush": "async",
        "spread_seed": 1,
    }
    return StoreConfig(**{**sizes, **changes})


@contextmanager
def copied_at(
    monkeypatch: pytest.MonkeyPatch, point: str, root: Path, copy: Path
) -> Iterator[None]:
    """Copy the store's files at a fail point of the call inside, as a kill would leave them."""

    def hook(name: str) -> None:
        if name == point and not copy.exists():
            shutil.copytree(root, copy)

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hook", hook)
        yield


def file_bytes(root: Path) -> dict[Path, bytes]:
    """Return the contents of every file below a folder."""
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def flush_for_ever(store: TimerStore) -> None:
    """Flush until the services have met the error that ends the store."""
    while True:
        store.flush()


class Bench:
    """One directory, one clock, and a store that may be opened again.

    `store`: what a test calls, reached in one of the ways of ways.py. `local`: the store itself.
    """

    store: Any
    is_connected = False
    is_awaited = False
    """Whether `store` is reached through a server, and by coroutines."""

    def __init__(self, root: Path, config: StoreConfig | None = None, now_ms: int = NOW) -> None:
        self.root = root
        self.config = config if config is not None else small()
        self.clock = ManualClock(now_ms)
        self.open()

    def open(self) -> Any:
        self.local = timerstore.open(self.root, self.config, clock=self.clock, threads=False)
        self.stepper = Stepper(self.local)
        self.store = self.reached()
        return self.store

    def reached(self) -> Any:
        return self.local

    def leave(self) -> None:
        """Undo `reached`; the store stays open."""

    def close(self) -> None:
        """Check, then close; a store that has failed or is closed cannot be checked."""
        self.leave()
        if not inside(self.local).is_closed and inside(self.local).log.failed is None:
            report = self.local.verify()
            assert report.clean, report
        self.local.close()

    def reopen(self) -> Any:
        self.close()
        return self.open()

    def kill(self, to: Path | None = None, *, side_files: bool = True) -> Any:
        """Copy the directory as a kill leaves it, with or without side files; open the copy."""
        to = to or self.root.with_name(f"{self.root.name}-copy")
        shutil.copytree(self.root, to)
        if not side_files:
            shutil.rmtree(to / "timerstore")
        self.leave()
        abandon(self.local)
        self.root = to
        return self.open()

    def turn(self, ms: int = 0) -> None:
        """Advance the clock, and run all services until they are idle."""
        self.clock.set(self.clock.now_ms + ms)
        self.stepper.settle()

    def out(self, topic: str = "t", queue_id: int = 0, offset: int = 0) -> list[Message]:
        """Return the messages of a queue."""
        if queue_id >= self.store.topics().get(topic, 0):
            return []
        found: list[Message] = []
        while True:
            result = self.store.pull(topic, queue_id, offset)
            if not result.messages:
                return found
            found += result.messages
            offset = result.next_offset

    def bodies(self, topic: str = "t", queue_id: int = 0) -> list[bytes]:
        return [message.body for message in self.out(topic, queue_id)]

    def shown(self) -> tuple[object, ...]:
        """Return everything that shows the store's state to a caller."""
        stats = self.store.stats()
        return (
            self.store.topics(),
            stats["log_end_bytes"],
            stats["pending_messages"],
            stats["pending_by_topic"],
        )

    @contextmanager
    def refused(self, error: type[TimerStoreError], match: str = "") -> Iterator[None]:
        """Check that the call inside raises this, changes nothing, and leaves a usable store."""
        before = self.shown()
        with pytest.raises(error, match=match or None):
            yield
        assert self.shown() == before
        self._works()

    def _works(self) -> None:
        before = len(self.out("works"))
        self.store.put("works", b"after")
        self.turn()
        assert len(self.out("works")) == before + 1
