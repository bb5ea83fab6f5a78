"""Convert: a closed directory for RocketMQ's broker, or for us alone.

    to="rocketmq"      what waits on the far wheel gets units on the wheel, 52 bytes each, spread
                       over half the roll window: a broker delivers them, or rolls them on
    to="timerstore"    a broker's directory is taken over; what rolls goes to the far wheel when
                       its slot comes

Nothing is delivered meanwhile, and no body is written. Cut off, the directory is as a kill leaves
it: opened here, or converted again, it goes on.

Fails:    ConfigError where there is no store, or no broker would open one of its sizes; LockedError
          where it is open, FailedError where a broker would refuse what came of it, FullError where
          the disk is full.
Source:   docs/decisions/0003-timing-wheel.md.
"""

import os
from dataclasses import replace
from typing import Literal, NamedTuple

from timerstore._engine.base.config_check import check_config
from timerstore._engine.engine import Engine
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.format.wheel_slot import SLOT_BYTES
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.geometry import queue_bytes
from timerstore._engine.storage.paths import absolute_path
from timerstore.clock import Clock, SystemClock
from timerstore.config import StoreConfig
from timerstore.errors import ConfigError, FailedError, quoted

NO_SLOT = (
    "something that waits found no slot on the wheel; open it, have what is due delivered, and "
    "convert it then"
)
OUT_OF_TURN = (
    "a message of a fixed level came before one of its level that was put earlier and still waits "
    "(the clock was set back between the two), which a broker's cursor cannot tell: it would "
    "deliver one of them twice; convert it when both are delivered"
)


_QUEUE_BYTES_MIN = 40
"""Of a queue's file. A broker that opens (seen: 5.3.3) looks in the last one for units beyond the
log, and is done with it where its second or a later one says so: where there is but one, it takes
the same file again, without end.
"""


class ConvertReport(NamedTuple):
    """What became of a directory."""

    waiting: int  # messages that wait, those of fixed levels not counted
    moved: int  # of these, from the far wheel to the wheel
    far: int  # units that are on the far wheel still


def convert(
    path: str | os.PathLike[str],
    to: Literal["rocketmq", "timerstore"],
    config: StoreConfig | None = None,
    *,
    clock: Clock | None = None,
) -> ConvertReport:
    """Make a store's directory one that a broker opens, or one that is ours; durable on return.

    `config` as for `open`, but for its `far_wheel`.
    """
    if to not in ("rocketmq", "timerstore"):
        raise ConfigError(f"to: wanted 'rocketmq' or 'timerstore', got {quoted(to)}")
    check_config(config, clock)
    tree, disk = Tree(absolute_path("convert", path)), Disk()
    if not (disk.is_directory(tree.commit_log) or disk.exists(tree.watermark)):
        raise ConfigError(f"convert: wanted the directory of a store, got {tree.root}")
    if to == "rocketmq":
        _check_queues(disk, tree, config or StoreConfig())
    given = replace(config or StoreConfig(), far_wheel="shared" if to == "rocketmq" else "own")
    engine = Engine(tree.root, given, clock or SystemClock(), threads=False)
    try:
        waiting = int(engine.states.native.waiting)
    finally:
        engine.close()
    far = engine.far.count
    if to == "rocketmq":
        wanted = engine.config.wheel_slot_count * SLOT_BYTES
        if disk.file_bytes(tree.timer_wheel) != wanted:
            if engine.linker.refused is not None:
                raise engine.linker.refused
            why = OUT_OF_TURN if engine.levels.has_gaps else NO_SLOT
            raise FailedError(
                f"convert: a broker would refuse the directory, as {why}",
                where=tree.timer_wheel,
                wanted=f"{wanted} bytes",
                got=f"more, and {far} units on the far wheel",
            )
    return ConvertReport(waiting, engine.metrics.values()["far_moved_messages"], far)


def _check_queues(disk: Disk, tree: Tree, config: StoreConfig) -> None:
    found = queue_bytes(disk, tree)
    size = config.queue_segment_bytes if found is None else found
    if size < _QUEUE_BYTES_MIN:
        where = "" if found is None else f" in {tree.queues}"
        raise ConfigError(
            f"queue_segment_bytes: wanted {_QUEUE_BYTES_MIN} or more for a broker, which never "
            f"finishes opening queues of one unit a file, got {size}{where}; put what waits into "
            "a store that was made with more"
        )
