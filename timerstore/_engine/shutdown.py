"""Close a store: stop the services, complete the last checkpoint, let a broker open the directory.

Invariants:
    1. The files say that the store was closed only after everything that they need is durable.
    2. A broker can open the directory only if everything pending is on the wheel. Otherwise the
       wheel's file stays 32 bytes longer, which a broker refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timerstore._engine.base.failpoints import reach
from timerstore._engine.levels.broker_offsets import write_for_brokers as write_level_offsets
from timerstore._engine.timer import chain_compaction
from timerstore._engine.timer.broker_export import write_for_brokers
from timerstore.errors import CorruptError, TimerStoreError

if TYPE_CHECKING:
    from timerstore._engine.engine import Engine


def close(engine: Engine) -> None:
    """Close every component; the directory's lock is released whatever fails."""
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
        engine.note_damage(error)
        raise
    finally:
        try:
            _close_files(engine, is_clean=is_clean)
        finally:  # whatever the disk says to the last calls, too
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
    compaction.bury()  # also where a broker is kept out: no later closing finds them all
    reach("close_buried")
    engine.checkpoint.record_wheel_writes()
    write_for_brokers(
        disk, tree, engine.config, clock, engine.log, engine.dispatch, engine.checkpoint,
    )  # fmt: skip
    reach("close_written_for_brokers")
    write_level_offsets(disk, tree, clock, engine.routes, engine.levels)


def _read_back(engine: Engine) -> None:
    """Have the wheel read no further than the present: a broker continues from there."""
    wheel, open_slot = engine.wheel, engine.open_slot
    now_slot = max(1, engine.clock.now_ms // engine.config.precision_ms)
    with wheel.lock:
        if wheel.read_back(now_slot, open_slot.outstanding):
            open_slot.follow_back(wheel.read_slot, wheel.back_count)


def _link_rest(engine: Engine) -> None:
    """Link what is in the timer topic, as far as the wheel and the disk take it."""
    pipeline = engine.pipeline
    services = (engine.dispatch, pipeline.enqueue_get, pipeline.enqueue_put)
    try:
        while sum(service.step() for service in services):
            pass
    except TimerStoreError as error:
        engine.linker.refuse(error)


def _empty_far_wheel(engine: Engine) -> None:
    """Move what is on the far wheel to the wheel, as far as the wheel and the disk take it."""
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
    # A broker would never deliver what is not on the wheel, and would deliver again what was
    # delivered past a level's cursor.
    linked, put = engine.timer_log.linked_offset, engine.timer_route.native.next_offset
    is_plain = linked == put and not engine.levels.has_gaps and not engine.far.count
    engine.wheel.close(as_broker_wants=is_clean and is_plain)
    if is_clean:
        reach("close_wheel_restored")
        engine.directory.mark_closed()
