"""The parts of an open store that a check reads."""

from typing import Protocol

from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.dispatch import Dispatch
from timerstore._engine.queues.level_cursors import LevelCursors
from timerstore._engine.queues.routes import Routes
from timerstore._engine.timer.far_wheel import FarWheel
from timerstore._engine.timer.open_slot import OpenSlot
from timerstore._engine.timer.timer_log import TimerLog
from timerstore._engine.timer.timer_states import TimerStates
from timerstore._engine.timer.wheel import Wheel


class LiveStore(Protocol):
    """An open store, as far as checks read it. The engine is one."""

    log: CommitLog
    routes: Routes
    dispatch: Dispatch
    states: TimerStates
    wheel: Wheel
    timer_log: TimerLog
    open_slot: OpenSlot
    levels: LevelCursors
    far: FarWheel
