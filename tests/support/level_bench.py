"""Helpers for tests of delay levels."""

import shutil
from typing import Any

from tests.support import disk_reader as disk
from tests.support.bench import Bench, small
from tests.support.inside import inside
from timerstore._engine.base.native import lib
from timerstore._engine.format.delay_levels import parse_level_delays, real_queue
from timerstore._engine.format.store_paths import SCHEDULE_TOPIC

DEFAULT = parse_level_delays(small().level_delays)


def levels(bench: Bench) -> Any:
    return inside(bench.store).levels


def no_side_files(bench: Bench) -> None:
    bench.close()
    shutil.rmtree(bench.root / "timerstore")
    bench.open()


def raw_level_put(bench: Bench, queue_id: int, properties: dict[str, str]) -> None:
    """Append a record to a level's queue with properties that our own `put` never writes."""
    routes = inside(bench.store).routes
    route = routes.make(SCHEDULE_TOPIC, queue_id, bench.clock.now_ms)
    text = disk.encode_properties(properties)
    now_ms, log = bench.clock.now_ms, inside(bench.store).log
    while lib.ts_put_one(log.native, route.native, b"x", 1, 0, text, len(text), now_ms) < 0:
        log.make_room(1000)
    if (real := real_queue(properties)) is not None:
        routes.make(*real, now_ms).native.level_pending += 1


HERE = {"REAL_TOPIC": "t", "REAL_QID": "0", "DELAY": "1", "UNIQ_KEY": "K"}
