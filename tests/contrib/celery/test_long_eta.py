"""A task whose `eta` is twice as far as any lease and timeout, with four workers.

With timerstore it runs once. With Redis it waits in a worker, and after the visibility timeout
another worker gets it, too. So it runs more often, which shows that the test can tell.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.celery_plant import Plant
from timerstore.contrib.celery.held_leases import LEASE_S

pytestmark = [pytest.mark.more, pytest.mark.timeout(600)]

WORKERS = 4
COUNTDOWN_S = 2 * LEASE_S + 1
LATER_S = 5.0  # the other runs have come by then


class RedisPlant(Plant):
    """The same workers with Redis. Its visibility timeout is as long as our lease.

    By default workers look for such tasks every 100 s only. Here they look every second.
    """

    options: ClassVar[Mapping[str, Any]] = {
        "visibility_timeout": LEASE_S,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }

    def _prepare(self) -> str:
        pytest.importorskip("redis", reason="NOT RUN: Redis for comparison: pip install redis")
        if shutil.which("redis-server") is None:
            pytest.skip("NOT RUN: Redis for comparison: no redis-server in PATH")
        return f"redis+socket://{self.folder}/x.sock"

    def serve(self) -> None:
        place = str(self.folder / "x.sock")
        storage = ("--save", "", "--dir", str(self.folder))
        self.server = self._start("redis-server", "--port", "0", "--unixsocket", place, *storage)
        self.wait(Path(place).exists)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[type[Plant]], Plant]]:
    plants: list[Plant] = []

    def started(kind: type[Plant]) -> Plant:
        plants.append(kind(tmp_path))
        return plants[-1]

    yield started
    for one in plants:
        one.close()


@pytest.mark.parametrize(("kind", "runs_once"), [(Plant, True), (RedisPlant, False)])
def test_eta_of_twice_the_lease_runs_the_task_once_unlike_with_redis(
    start: Callable[[type[Plant]], Plant], kind: type[Plant], runs_once: bool
) -> None:
    plant = start(kind)
    for _ in range(WORKERS):
        plant.worker("-c", "1")
    plant.send("work", 1, countdown=COUNTDOWN_S)
    plant.wait(lambda: plant.notes("number"), 2 * COUNTDOWN_S)
    time.sleep(LATER_S)
    runs = len(plant.notes("number"))
    assert runs == 1 if runs_once else runs > 1
