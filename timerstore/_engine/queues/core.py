"""`Core`: the values that nearly every component of an open store needs.

A component receives `core`, and beyond it the two or three components that it uses. Nothing in here
does work for others; a test limits the fields to ten.
"""

from typing import NamedTuple

from timerstore._engine.base.metrics import Metrics
from timerstore._engine.base.signal import Signals
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.log.timer_states import TimerStates
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.storage.disk import Disk
from timerstore.types.clock import Clock
from timerstore.types.config import StoreConfig


class Core(NamedTuple):
    """Values and the log of one open store."""

    config: StoreConfig
    clock: Clock
    metrics: Metrics
    signals: Signals
    disk: Disk
    log: CommitLog
    routes: Routes
    states: TimerStates
    timer_route: Route  # the queue of wheel_timer
    store_id: int
