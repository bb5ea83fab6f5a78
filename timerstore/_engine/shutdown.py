"""Close a store: stop the services, complete the last checkpoint, let a broker open the directory.

Invariants:
    1. The directory is marked as closed only after everything it needs is durable.
    2. A broker can open the directory only if every pending message is on the wheel. Otherwise the
       wheel's file stays 32 bytes longer, and a broker rejects it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timerstore._engine.base.failpoints import reach
from timerstore._engine.timer import chain_compaction
from timerstore._engine.timer.broker_export import write_for_brokers, write_level_offsets
from timerstore.errors import CorruptError, TimerStoreError

if TYPE_CHECKING:
    from timerstore._engine.engine import Engine


def close(engine: Engine) -> None:
    """Close every component. The directory's lock is released in any case."""
    engine.recurring.planner.stop()
    engine.puller.close()
    engine.retention.stop()
    engine.schedule.stop()
    engine.pipeline.stop()
    engine.dispatch.stop()
    is_clean = False
    try:
        if engine.log.failed is None:
            _complete(engine)
            is_clean = True
            reach("close_levels_written")
    except CorruptError as error:
        engine.record_damage(error)
        raise
    finally:
        try:
            _close_files(engine, is_clean=is_clean)
        finally:  # also if closing the files fails
            engine.directory.release()


def _complete(engine: Engine) -> None:
    """Make everything durable, and write the files that a broker reads."""
    disk, tree, clock = engine.disk, engine.directory.tree, engine.clock
    _read_back(engine)
    _link_rest(engine)
    engine.retention.finish()
    _empty_far_wheel(engine)
    engine.checkpoint.run(is_clean=True)
    reach("close_checkpointed")
    compaction = chain_compaction.ChainCompactor(
        engine.wheel,
        engine.timer_log,
        engine.log,
        engine.states,
        engine.far,
        engine.open_slot,
        engine.pending,
    )
    compaction.relink()
    reach("close_relinked")
    compaction.bury()  # even if a broker cannot open the directory: no later closing finds them all
    reach("close_buried")
    engine.checkpoint.record_wheel_writes()
    write_for_brokers(
        disk, tree, engine.config, clock, engine.log, engine.dispatch, engine.checkpoint,
    )  # fmt: skip
    reach("close_written_for_brokers")
    write_level_offsets(disk, tree, clock, engine.routes, engine.levels)


def _read_back(engine: Engine) -> None:
    """Set the wheel's read slot back to the current time: a broker continues from there."""
    wheel, open_slot = engine.wheel, engine.open_slot
    now_slot = max(1, engine.clock.now_ms // engine.config.precision_ms)
    with wheel.lock:
        if wheel.read_back(now_slot, open_slot.outstanding):
            open_slot.follow_back(wheel.read_slot, wheel.back_count)


def _link_rest(engine: Engine) -> None:
    """Link every message of the timer topic, unless the wheel or the disk is full."""
    pipeline = engine.pipeline
    services = (engine.dispatch, pipeline.enqueue_get, pipeline.enqueue_put)
    try:
        while sum(service.step() for service in services):
            pass
    except TimerStoreError as error:
        engine.linker.refuse(error)


def _empty_far_wheel(engine: Engine) -> None:
    """Move every message of the far wheel to the wheel, unless the wheel or the disk is full."""
    linker = engine.linker
    try:
        linker.tidier.drop_overflow()
        if engine.config.far_wheel == "own" or linker.empty_far_wheel():
            linker.end_log(engine.timer_route)
    except TimerStoreError as error:
        linker.refuse(error)


def _close_files(engine: Engine, *, is_clean: bool) -> None:
    for service in engine.services:
        service.end(engine.directory.root)
    engine.checkpoint.close()
    engine.log.close()
    engine.routes.close()
    if engine.dispatch.index is not None:
        engine.dispatch.index.close()
    engine.timer_log.segments.close()
    engine.far.close()
    engine.states.close()
    # A broker would never deliver messages that are not on the wheel, and would deliver messages
    # again that were delivered out of order, after a level's cursor.
    linked, put = engine.timer_log.linked_offset, engine.timer_route.native.next_offset
    is_complete = linked == put and not engine.levels.has_gaps and not engine.far.count
    engine.wheel.close(as_broker_wants=is_clean and is_complete)
    if is_clean:
        reach("close_wheel_restored")
        engine.directory.mark_closed()
