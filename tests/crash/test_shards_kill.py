"""Kill a child at each step of staging, committing and ingesting. Each row is delivered once."""

import multiprocessing
import os
import signal
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

pa = pytest.importorskip("pyarrow")

import timerstore  # noqa: E402
from tests.crash import shard_child  # noqa: E402
from tests.support.shards import bodies_of  # noqa: E402
from timerstore import shards  # noqa: E402
from timerstore.testing import Stepper  # noqa: E402


@pytest.fixture(scope="module")
def context() -> multiprocessing.context.BaseContext:
    """Return a context whose children are forks of a server that has imported everything."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["tests.crash.shard_child"])
    return found


class Life:
    """One directory, with children that work on it one after the other."""

    def __init__(self, tmp_path: Path, context: multiprocessing.context.BaseContext) -> None:
        self.root = tmp_path / "shards"
        self.context = context
        timerstore.open_shards(
            self.root, shard_child.SHARDS, shard_child.CONFIG, threads=False
        ).close()

    def child(self, first: int, last: int, point: str | None = None, nth: int = 1) -> int | None:
        """Run a child, and return its exit code."""
        process = self.context.Process(  # type: ignore[attr-defined]
            target=shard_child.run, args=(str(self.root), first, last, point, nth)
        )
        process.start()
        process.join(120)
        code: int | None = process.exitcode
        return code

    def check(self, last: int) -> None:
        """Check that every row of every version is in its topic, once, and no other row."""
        with timerstore.open_shards(self.root, threads=False) as store:
            assert store.ingest() == []
            for one in store.stores:
                Stepper(one).settle()
            found = Counter(body[:8] for one in store.stores for body in bodies_of(one, "t"))
            for report in store.verify():
                assert report.clean, report
            for one in store.stores:
                assert list(one.ingested("q")) == list(range(last + 1))
        wanted = (last + 1) * shard_child.ROWS
        missing = [k for k in range(wanted) if b"%08d" % k not in found]
        doubled = {body: count for body, count in found.items() if count > 1}
        assert (missing[:9], dict(list(doubled.items())[:9])) == ([], {})
        assert found.total() == wanted
        shards.clean(self.root, old_ms=-3_600_000)
        left = [str(one) for one in (self.root / "_ingest/staging").rglob("*.arrow")]
        assert left == []


def test_kill_at_every_step_loses_and_doubles_no_row(
    tmp_path: Path, context: multiprocessing.context.BaseContext
) -> None:
    life = Life(tmp_path, context)
    version = 0
    later = ("stage_file_written", "ingest_chunk_appended", "shard_ingest_durable")
    for point, nth in [(p, 1) for p in shard_child.POINTS] + [(p, 2) for p in later]:
        code = life.child(0, version, point, nth)
        assert code == -signal.SIGKILL, f"{point} {nth}: exit {code}"
        version += 1
    assert life.child(0, version) == 0
    life.check(version)


@pytest.mark.deep
def test_kill_at_random_loses_and_doubles_no_row(
    tmp_path: Path, context: multiprocessing.context.BaseContext
) -> None:
    seed = int(os.environ.get("TIMERSTORE_CRASH_SEED", "5"))
    random = Random(seed)
    life = Life(tmp_path, context)
    kills = int(os.environ.get("TIMERSTORE_SHARD_KILLS", "60"))
    last = kills // 3  # one more version after every third kill
    for kill in range(kills):
        process = context.Process(  # type: ignore[attr-defined]
            target=shard_child.run_at_random, args=(str(life.root), 0, kill // 3, 60.0)
        )
        process.start()
        time.sleep(random.random() * 0.6)
        process.kill()
        process.join()
    assert life.child(0, last) == 0
    life.check(last)
