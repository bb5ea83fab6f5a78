"""P15: another program truncates, removes or replaces a file of an open store. The process
continues, the store raises FailedError, and acknowledges nothing after that.

A truncated file that is mapped kills the process with SIGBUS, unless a handler catches it
(storage/guarded_map.py): so
each case runs in a child.
"""

import faulthandler
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import timerstore
from tests.support.bench import NOW, small
from tests.support.inside import unwatch
from tests.support.programs import run_child
from timerstore import FailedError, TimerStore, TimerStoreError
from timerstore._engine.storage import guarded_map
from timerstore._engine.storage.disk import Disk
from timerstore.testing import ManualClock, Stepper

FILES = {
    "log": "commitlog/00000000000000000000",
    "timer log": "timerlog/00000000000000000000",
    "queue": "consumequeue/t/0/00000000000000000000",
    "wheel": "timerwheel",
    "staging": "timerstore/staging",
    "state": "timerstore/state",
    "watermark": "timerstore/watermark",
    "index": "index",
}


def _cut(path: Path) -> None:
    os.truncate(path, 0)


def _remove(path: Path) -> None:
    path.unlink()


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.rename(path)


def _move(path: Path) -> None:
    other = path.with_name("00000000000009999999")
    data = path.read_bytes()
    path.rename(other)
    path.write_bytes(data)


CALLS: list[Callable[[TimerStore, ManualClock], object]] = [
    lambda store, _clock: store.put("t", b"more", keys=("k",)),
    lambda store, _clock: store.pull("t", 0, 0),
    lambda store, _clock: list(store.pending()),
    lambda store, _clock: store.query("t", "k"),
    lambda store, _clock: store.put("t", b"later", delay=3),
    lambda store, _clock: Stepper(store).settle(),
    lambda store, clock: (clock.advance(90_000), Stepper(store).settle()),
    lambda store, _clock: store.flush(),
    lambda store, _clock: store.cancel(store.put("t", b"no", delay=3)),
    lambda store, _clock: store.verify(),
]


def _fails_clearly(root: Path, harm: Callable[[Path], None], name: str) -> bool:
    clock = ManualClock(NOW)
    store = timerstore.open(root, small(), clock=clock, threads=False)
    for n in range(40):
        store.put("t", b"x" * 300, delay=n or None, keys=("k",))
    Stepper(store).settle()
    store.flush()
    path = root / FILES[name]
    harm(next(path.iterdir()) if path.is_dir() else path)
    said: list[BaseException] = []
    for call in CALLS:
        try:
            call(store, clock)
        except TimerStoreError as error:
            said.append(error)
    assert said, "nobody said anything"
    assert isinstance(said[0], FailedError), said[0]
    with pytest.raises(FailedError, match="reopened"):
        store.put("t", b"not acknowledged")
    store.close()
    return True


def _in_child(work: Callable[[], bool]) -> int:
    def quietly() -> bool:
        faulthandler.disable()  # a fault that a test asks for needs no report
        return work()

    return run_child(quietly, patience_s=60)


@pytest.mark.parametrize("name", ["log", "timer log", "queue", "wheel", "staging"])
def test_truncated_file_fails_the_store(name: str, tmp_path: Path) -> None:
    assert _in_child(lambda: _fails_clearly(tmp_path / "store", _cut, name)) == 0


@pytest.mark.parametrize("harm", [_remove, _replace, _move], ids=["removed", "replaced", "moved"])
@pytest.mark.parametrize("name", ["log", "timer log"])
def test_replaced_file_fails_the_store(
    name: str, harm: Callable[[Path], None], tmp_path: Path
) -> None:
    assert _in_child(lambda: _fails_clearly(tmp_path / "store", harm, name)) == 0


@pytest.mark.parametrize("harm", [_remove, _replace], ids=["removed", "replaced"])
@pytest.mark.parametrize("name", ["wheel", "watermark"])
def test_removed_side_file_fails_the_store(
    name: str, harm: Callable[[Path], None], tmp_path: Path
) -> None:
    assert _in_child(lambda: _fails_clearly(tmp_path / "store", harm, name)) == 0


def _reads_beyond(tmp_path: Path, *, is_watched: bool) -> bool:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 8192)
    memory = Disk().open(path).map_read(8192)
    if not is_watched:
        unwatch(memory)
    os.truncate(path, 4096)
    before = guarded_map.fault_count[0]
    assert (memory[0], memory[5000]) == (ord("x"), 0)
    assert (guarded_map.fault_count[0], guarded_map.truncated_below(tmp_path)) == (before + 1, path)
    memory.close()
    assert guarded_map.truncated_below(tmp_path) == path  # still reported after the map is closed
    guarded_map.forget_below(tmp_path)
    return guarded_map.truncated_below(tmp_path) is None


def test_map_past_the_end_of_its_file_reads_as_zeros(tmp_path: Path) -> None:
    assert _in_child(lambda: _reads_beyond(tmp_path, is_watched=True)) == 0


def test_map_past_the_end_of_its_file_ends_the_process_without_the_guard(tmp_path: Path) -> None:
    assert _in_child(lambda: _reads_beyond(tmp_path, is_watched=False)) == -signal.SIGBUS


def test_other_faults_go_to_the_previous_handler(tmp_path: Path) -> None:
    """A sent SIGBUS, and one of another map, both end the process."""

    def sent() -> bool:
        Disk().open(_file(tmp_path)).map_read(4096)
        os.kill(os.getpid(), signal.SIGBUS)
        return True

    assert _in_child(sent) == -signal.SIGBUS


def _file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 4096)
    return path
