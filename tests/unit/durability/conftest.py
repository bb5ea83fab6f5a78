"""A store below which every sync is recorded; what a kill or a power cut leaves of it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.bench import Bench, small
from tests.support.driver import abandon
from tests.support.durable.files import ANSWER, BARRIERS, CLOSED, RECOVERED
from tests.support.durable.recorder import Allowed, Recorder
from tests.support.durable.recording import recording


class Machine:
    """A store in a folder of a recorded disk, opened again after kills and power cuts."""

    def __init__(self, disk: Path, recorder: Recorder) -> None:
        self.recorder = recorder
        self.disk = disk
        self.config = small(flush="sync")
        self.bench = Bench(disk / "above" / "store", self.config)
        self._count = 0

    @property
    def base(self) -> str:
        """Return the store's folder, as the recorder names it."""
        return self.bench.root.relative_to(self.disk).as_posix()

    def answered(self, allowed: Sequence[Allowed] = ANSWER) -> Bench:
        """Check that a returned call is durable, and open the store after a power cut."""
        self.recorder.check(allowed, self.base)
        return self.cut()

    def cut(self) -> Bench:
        """Open the store as the worst power cut leaves it."""
        self._count += 1
        to = self.disk.parent / "cuts" / str(self._count)
        root = self.recorder.cut(self.bench.root, to)
        return Bench(root, self.config, self.bench.clock.now_ms)

    def kill(self) -> Bench:
        """Kill the store and open its files; synced bytes stay recorded."""
        self._count += 1
        copy = self.disk / "killed" / str(self._count)
        self.recorder.killed(self.bench.root, copy)
        abandon(self.bench.store)
        self.bench = Bench(copy, self.config, self.bench.clock.now_ms)
        self.recorder.check(RECOVERED, self.base)
        return self.bench

    def close(self) -> None:
        self.bench.close()
        self.recorder.check(CLOSED, self.base)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Make the recorded folder."""
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


@pytest.fixture
def recorder(disk: Path) -> Iterator[Recorder]:
    with recording(disk, BARRIERS) as one:
        yield one


@pytest.fixture
def machine(disk: Path, recorder: Recorder) -> Iterator[Machine]:
    one = Machine(disk, recorder)
    yield one
    one.close()
