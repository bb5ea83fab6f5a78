"""Files with two copies that are written in turn: the only valid one is never written over.

The watermark has two slots, the state file two sectors for each chunk, the far wheel two tables. A
guard looks at each write of them, and at what of the file is on the disk at that moment. Writes are
torn, find the disk full, or their sync fails, at any step; the store is closed, killed, or loses
power, and is opened again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.amounts import sample
from tests.support.bench import SECOND, Bench, small
from tests.support.driver import abandon
from tests.support.durable.recorder import Fault, Recorder
from tests.support.durable.recording import recording
from tests.support.inside import inside
from timerstore import FailedError, FullError
from timerstore._engine.format import counts_json, state_sector, watermark
from timerstore._engine.format.state_sector import SECTOR_BYTES
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.format.watermark import SLOT_BYTES, Watermark

CONFIG = small(flush="sync", far_wheel="own")
FILES = (
    "timerstore/watermark", "timerstore/state", "timerstore/far-*.tmp", "timerstore/wheel",
    "timerstore/counts.tmp", "timerwheel",
)  # fmt: skip


class Guard:
    """A check of each write to a file that has two copies."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.looked_at: set[str] = set()
        recorder.before_write = self._before_write

    def _before_write(self, path: str, offsets: Sequence[int]) -> None:
        place = Path(path)
        if place.parent.name != "timerstore":
            return
        if place.name == "watermark":
            self._watermark(place, offsets)
        elif place.name == "state":
            self._state(place, offsets)
        elif place.name.startswith("far-"):
            self._far(place)

    def _mark(self, side: Path) -> Watermark | None:
        path = side / "watermark"
        return watermark.read(self._recorder.durable(path)) if path.exists() else None

    def _watermark(self, path: Path, offsets: Sequence[int]) -> None:
        mark = self._mark(path.parent)
        if mark is not None:
            self.looked_at.add("watermark")
            data = self._recorder.durable(path)
            [there] = [k for k in (0, 1) if _slot(data, k) == mark]
            assert list(offsets) == [(1 - there) * SLOT_BYTES], "over the only valid watermark"
            counts = (path.parent / "counts").read_bytes()
            fits = counts_json.read_counts(counts, mark.log_end, mark.sequence)
            assert fits is not None, "the counts of the watermark in force are gone"

    def _state(self, path: Path, offsets: Sequence[int]) -> None:
        mark, data = self._mark(path.parent), self._recorder.durable(path)
        if mark is None:
            return
        for offset in offsets:
            chunk, which = divmod(offset // SECTOR_BYTES, 2)
            pair = data[2 * chunk * SECTOR_BYTES : 2 * (chunk + 1) * SECTOR_BYTES]
            there = state_sector.pick(pair, chunk, mark.log_end)
            if chunk < mark.state_chunk_count and there is not None:
                self.looked_at.add("state")
                assert which != there.which, f"over the only valid sector of chunk {chunk}"

    def _far(self, path: Path) -> None:
        mark = self._mark(path.parent)
        if mark is not None and mark.far_number:
            self.looked_at.add("far")
            used = Tree(path.parent.parent).far_table(mark.far_number).name
            assert not path.name.startswith(used), "over the only valid table"


def _slot(data: bytes, which: int) -> Watermark | None:
    return watermark.read(data[which * SLOT_BYTES : (which + 1) * SLOT_BYTES])


class World:
    """A store with puts, faults and openings, and its expected messages."""

    def __init__(self, disk: Path, recorder: Recorder) -> None:
        self.disk, self.recorder = disk, recorder
        self.guard = Guard(recorder)
        self.bench = Bench(disk / "0", CONFIG)
        self.acknowledged = 0
        self.unsure = 0
        self._openings = 0

    def put(self) -> None:
        for delay_s in (10_000, 3, 1_000_000):
            try:
                self.bench.store.put("t", b"%d" % self.acknowledged, delay=delay_s)
            except (FailedError, FullError):
                self.unsure += 1
                return
            self.acknowledged += 1
        self._run(lambda: self.bench.turn(SECOND))

    def flush(self) -> None:
        self._run(self.bench.store.flush)

    def fault(self, name: str, how: str) -> None:
        act = "sync" if how == "failed" else "write"
        self.recorder.fault = Fault(act, f"*/{name}", how)
        self.put()
        self.flush()
        self.recorder.fault = None
        if inside(self.bench.store).log.failed is not None:
            self.kill()
        else:
            self.flush()  # a full disk has space again

    def _run(self, act: Callable[[], object]) -> None:
        try:
            act()
        except FullError:
            pass  # nothing is lost, and the call may be repeated
        except FailedError:
            self.kill()

    def reopen(self) -> None:
        self._go_on(self._root(), is_killed=False)

    def kill(self) -> None:
        self._openings += 1
        root = self.disk / str(self._openings)
        self.recorder.killed(self.bench.root, root)
        abandon(self.bench.store)
        self._go_on(root, is_killed=True)

    def cut(self) -> None:
        """Lose power, and with it all unsynced changes."""
        self._openings += 1
        root = self.recorder.cut(self.bench.root, self.disk / str(self._openings))
        abandon(self.bench.store)
        self.recorder.settle()
        self._go_on(root, is_killed=True)

    def _root(self) -> Path:
        return self.bench.root

    def _go_on(self, root: Path, *, is_killed: bool) -> None:
        if not is_killed:
            self.bench.store.close()
        self.recorder.fault = None
        self.bench = Bench(root, CONFIG, self.bench.clock.now_ms)
        self.check()

    def check(self) -> None:
        """Check that each acknowledged message is pending or delivered once."""
        self.bench.turn()
        waiting = [one.message_id for one in self.bench.store.pending()]
        there = len(waiting) + len(self.bench.bodies())
        assert len(set(waiting)) == len(waiting)
        assert self.acknowledged <= there <= self.acknowledged + self.unsure
        assert self.bench.store.verify().clean

    def end(self) -> None:
        if inside(self.bench.store).log.failed is not None:
            self.kill()
        self.bench.close()


@contextmanager
def world(folder: Path) -> Iterator[World]:
    disk = folder / "disk"
    disk.mkdir(parents=True)
    with recording(disk) as recorder:
        one = World(disk, recorder)
        yield one
        one.end()


Step = tuple[str, ...]
PLAIN: list[Step] = [("put",), ("flush",), ("reopen",), ("kill",), ("cut",)]
FAULTS: list[Step] = [("fault", name, how) for name in FILES for how in ("torn", "full")]
SYNC_FAULTS: list[Step] = [
    ("fault", name, "failed") for name in FILES if name != "timerstore/watermark"
]


def run(one: World, steps: Sequence[Step]) -> None:
    for name, *given_to in steps:
        getattr(one, name)(*given_to)


@pytest.mark.more
@settings(max_examples=25)
@given(st.lists(st.sampled_from(PLAIN + FAULTS + SYNC_FAULTS), min_size=2, max_size=7))
@example(
    [("put",), ("flush",), ("fault", "timerstore/state", "torn"), ("cut",), ("put",), ("reopen",)]
)
@example([("put",), ("fault", "timerstore/watermark", "full"), ("cut",)])
def test_only_valid_copy_is_never_written_over(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    with world(tmp_path_factory.mktemp("world")) as one:
        run(one, steps)


@pytest.mark.parametrize(
    "fault", sample([(one,) for one in FAULTS + SYNC_FAULTS], "faults of a copy"), ids="-".join
)
@pytest.mark.parametrize("then", sample(["cut", "kill", "reopen"], "ends"))
def test_copies_survive_each_fault(tmp_path: Path, fault: Step, then: str) -> None:
    with world(tmp_path) as one:
        run(one, [("put",), ("flush",), fault, (then,), fault, ("cut",), ("put",), ("flush",)])
        assert {"watermark", "state", "far"} <= one.guard.looked_at


def test_watermark_survives_a_failed_sync(tmp_path: Path) -> None:
    with world(tmp_path) as one:
        run(
            one,
            [("put",), ("flush",), ("fault", "timerstore/watermark", "failed"), ("put",), ("cut",)],
        )


# --- the slots alone ---


def _mark(sequence: int) -> Watermark:
    mark = watermark.bootstrap(
        log_begin=0, log_end=sequence * 100, store_id=7, precision_ms=1000, wheel_slot_count=128,
        timer_id_end=0,
    )  # fmt: skip
    return mark._replace(sequence=sequence)


@pytest.mark.parametrize("size", [0, 1, 8, 16, 135, 136, 139, 140, 141, 300, 511, 512])
def test_torn_slot_is_the_new_mark_or_the_one_before(size: int) -> None:
    """Any prefix of a slot may reach the disk; its last bytes are zeros."""
    data = bytearray(2 * SLOT_BYTES)
    for one in (1, 2):
        data[one % 2 * SLOT_BYTES :][:0] = b""
        data[one % 2 * SLOT_BYTES : (one % 2 + 1) * SLOT_BYTES] = watermark.write(_mark(one))
    for before, sequence in pairwise(range(2, 9)):
        new, at = watermark.write(_mark(sequence)), sequence % 2 * SLOT_BYTES
        data[at : at + size] = new[:size]
        found = watermark.read(bytes(data))
        assert found in (_mark(before), _mark(sequence))
        assert (found == _mark(sequence)) == (size >= 140)
        data[at : at + SLOT_BYTES] = new


def test_damaged_slot_leaves_the_other_one() -> None:
    whole = {k: watermark.write(_mark(k)) for k in (4, 5)}
    for at in range(140):
        damaged = bytearray(whole[5])
        damaged[at] ^= 0x10
        assert watermark.read(whole[4] + bytes(damaged)) == _mark(4)
