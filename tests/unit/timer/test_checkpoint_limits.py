"""Growth of the log that requests a checkpoint, or makes the caller complete one."""

from pathlib import Path

import pytest

from tests.support.bench import Bench, small
from tests.support.inside import inside

KIB = 1024


def _filled(path: Path, limit: int, limit_max: int) -> Bench:
    """Return a store whose log has grown by a fixed amount since its last checkpoint."""
    config = small(checkpoint_log_bytes=limit, checkpoint_log_bytes_max=limit_max)
    bench = Bench(path, config)
    for _ in range(10):
        bench.store.put("t", bytes(1000), delay=60)
    return bench


def _growth(bench: Bench) -> int:
    checkpoint = inside(bench.store).checkpoint
    return int(inside(bench.store).log.end - checkpoint.completed_log_end)


@pytest.fixture
def growth(tmp_path: Path) -> int:
    bench = _filled(tmp_path / "measured", 1 << 30, 1 << 30)
    found = _growth(bench)
    bench.close()
    assert found > 4 * KIB
    return found


@pytest.mark.parametrize(("more", "is_due"), [(0, True), (1, False)])
def test_checkpoint_is_due_when_the_log_has_grown_by_its_limit(
    tmp_path: Path, growth: int, more: int, is_due: bool
) -> None:
    bench = _filled(tmp_path / "s", growth + more, 1 << 30)
    assert _growth(bench) == growth
    assert inside(bench.store).checkpoint.has_grown is is_due
    bench.close()


@pytest.mark.parametrize(("more", "is_completed"), [(0, False), (-1, True)])
def test_caller_completes_a_checkpoint_when_the_log_has_grown_past_the_largest_limit(
    tmp_path: Path, growth: int, more: int, is_completed: bool
) -> None:
    bench = _filled(tmp_path / "s", 4 * KIB, growth + more)
    checkpoint = inside(bench.store).checkpoint
    assert _growth(bench) == growth
    before = checkpoint.completed_number
    checkpoint.wait()
    assert (checkpoint.completed_number > before) is is_completed
    bench.close()
