"""Convert a closed directory for a RocketMQ broker, or back for this engine alone.

    to="rocketmq"      messages on the far wheel get units on the wheel, 52 bytes each, spread over
                       half the roll window: a broker delivers them, or rolls them again
    to="timerstore"    the directory of a broker is taken over: a message that rolls goes to the far
                       wheel when its slot is read

A conversion delivers no message and writes no body. If it is interrupted, the directory is in the
state after a crash: it can be opened here, or converted again.

Raises: ConfigError if there is no store, or one of its sizes is not possible for a broker.
    LockedError if the store is open. FailedError if a broker would reject the result. FullError if
    the disk is full.
See also: docs/decisions/0003-timing-wheel.md.
"""

import os
from dataclasses import replace
from typing import Literal, NamedTuple

from timerstore._engine.base.argument_types import check_config
from timerstore._engine.engine import Engine
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.format.wheel_slot import SLOT_BYTES
from timerstore._engine.storage.anchor import absolute_path
from timerstore._engine.storage.disk import Disk
from timerstore._engine.storage.geometry import queue_bytes
from timerstore.errors import ConfigError, FailedError, quoted
from timerstore.types.clock import Clock, SystemClock
from timerstore.types.config import StoreConfig

NO_SLOT = (
    "a pending message found no slot on the wheel; open the store, let it deliver due messages, "
    "and convert it after that"
)
OUT_OF_TURN = (
    "a delay-level message was delivered before an earlier one of its level, which is still "
    "pending (the clock was set back between the two puts); a broker's cursor cannot represent "
    "this, so a broker would deliver one of them twice; convert the store when both are delivered"
)


_QUEUE_BYTES_MIN = 40
"""Smallest file of a queue for a broker. At opening a broker (5.3.3) searches the last file for
units past the end of the log. It ends the search at the second or a later unit of a file; with one
unit in a file it reads the same file again, without end.
"""


class ConvertReport(NamedTuple):
    """The result of a conversion."""

    pending: int  # pending messages, without those of delay levels
    moved: int  # messages moved from the far wheel to the wheel
    far: int  # units that are still on the far wheel


def convert(
    path: str | os.PathLike[str],
    to: Literal["rocketmq", "timerstore"],
    config: StoreConfig | None = None,
    *,
    clock: Clock | None = None,
) -> ConvertReport:
    """Convert a store's directory for a broker or for this engine; durable on return.

    config: as for `open`; its `far_wheel` is ignored.
    clock: as for `open`.

    Raises:
        ConfigError: there is no store, or a broker cannot use its sizes.
        LockedError: the store is open.
        FailedError: a broker would reject the result.
        FullError: the disk is full.
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
        pending = int(engine.states.native.pending)
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
    return ConvertReport(pending, engine.metrics.values()["far_moved_messages"], far)


def _check_queues(disk: Disk, tree: Tree, config: StoreConfig) -> None:
    found = queue_bytes(disk, tree)
    size = config.queue_segment_bytes if found is None else found
    if size < _QUEUE_BYTES_MIN:
        where = "" if found is None else f" in {tree.queues}"
        raise ConfigError(
            f"queue_segment_bytes: wanted {_QUEUE_BYTES_MIN} or more for a broker, which never "
            f"finishes opening queues of one unit a file, got {size}{where}; put the pending "
            "messages into a store that was made with more"
        )
