"""Chains that lie in more files than are mapped at a time: every walk goes on where it stopped."""

import shutil
from pathlib import Path

import pytest

from tests.support.bench import NOW, SECOND, Bench, small
from tests.support.inside import MAPS_MAX, inside
from tests.support.points import noted
from timerstore._engine.base import failpoints

COUNT = 60
FILE_BYTES = 300  # of five units


class _StopError(Exception):
    """The process is killed here."""


@pytest.fixture(autouse=True)
def few_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow two maps, as a record may follow the blank of another file."""
    monkeypatch.setattr(*MAPS_MAX, 2)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Make two interleaved chains over two dozen files, and cancel every third message."""
    bench = Bench(tmp_path / "s", small(timer_log_segment_bytes=FILE_BYTES))
    receipts = [
        bench.store.put("t", str(n).encode(), deliver_ms=NOW + (5 + n % 2) * SECOND)
        for n in range(COUNT)
    ]
    bench.turn()
    for receipt in receipts[::3]:
        assert bench.store.cancel(receipt)
    bench.turn()
    assert len(list((bench.root / "timerlog").iterdir())) > 12
    return bench


def assert_goes_on(bench: Bench) -> None:
    """Check that the store opens and delivers each pending message once."""
    with noted() as points:
        bench.open()
    assert "recover_rebuild_begun" not in points
    bench.turn(20 * SECOND)
    expected = sorted(str(n).encode() for n in range(COUNT) if n % 3)
    assert sorted(bench.bodies()) == expected
    bench.close()


def test_store_opens_with_few_maps_after_close(bench: Bench) -> None:
    bench.close()
    assert_goes_on(bench)


@pytest.mark.parametrize("point", ["close_checkpointed", "close_relinked", "close_buried"])
def test_store_opens_after_an_interrupted_close(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    copy = tmp_path / "copy"

    def stop(name: str) -> None:
        if name == point:
            shutil.copytree(bench.root, copy)
            raise _StopError

    monkeypatch.setattr(failpoints, "hook", stop)
    with pytest.raises(_StopError):
        bench.store.close()
    monkeypatch.undo()
    monkeypatch.setattr(*MAPS_MAX, 2)
    bench.root = copy
    assert_goes_on(bench)


def test_store_opens_with_few_maps_after_a_kill(bench: Bench, tmp_path: Path) -> None:
    """Units that were linked later are removed from the wheel."""
    bench.store.flush()
    inside(bench.store).checkpoint.run(is_clean=False)
    for n in range(COUNT):
        bench.store.put("u", str(n).encode(), deliver_ms=NOW + 5 * SECOND)
    bench.turn()
    bench.store.flush()
    bench.root = Path(shutil.copytree(bench.root, tmp_path / "copy"))
    killed = bench.store
    assert_goes_on(bench)
    bench.open()
    assert len(bench.bodies("u")) == COUNT
    bench.close()
    killed.close()
