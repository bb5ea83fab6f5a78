"""Verify a store: every check once, on a view of an open store or of a directory.

    store_view.py     the view that checks read; live_view.py and at_rest_view.py implement it
    log               records, and their queue units and timer units   check_log, check_queues
    states            memory, side files and the fold of the log       check_states, check_side
    timer log, wheel  units, slots, chains, checksums                  check_timer_log, check_wheel
    far wheel         table, units, chains                             check_far
    index             the same bytes as one built again                check_index
    config/           files can be read, offsets within queues         check_config

Thread safety: any thread. The services of an open store go on.
Invariants: not one byte of a store is changed.
Raises: FailedError if an open store has failed. ConfigError if a directory is no store. Damage is
in the Report, never an exception.
"""

import os

from timerstore._engine.maintenance.at_rest_view import AtRestView, Progress
from timerstore._engine.maintenance.check_log import check_index, check_log
from timerstore._engine.maintenance.check_states import (
    check_config,
    check_offsets,
    check_states,
    check_watermark,
    read_offsets,
)
from timerstore._engine.maintenance.check_timer import (
    check_far,
    check_reached,
    check_timer_log,
    check_wheel,
)
from timerstore._engine.maintenance.live_view import LiveView
from timerstore._engine.maintenance.store_view import Findings, LiveStore, StoreView
from timerstore.errors import ConfigError
from timerstore.types.config import StoreConfig
from timerstore.types.reports import Report


def verify(view: StoreView) -> Report:
    """Run every check. A file that is read later can only have grown."""
    offsets = read_offsets(view)
    if not view.take():
        return view.findings.report()
    check_offsets(view, offsets)
    check_config(view)
    log = check_log(view)
    if view.is_built:
        check_states(view, log)
        check_watermark(view)
        check_index(view)
        check_timer_log(view, log)
        check_wheel(view)
        check_far(view)
        check_reached(view)
    return view.findings.report()


def check_store(engine: LiveStore) -> Report:
    """Check every invariant of an open store."""
    return verify(LiveView(Findings(), engine))


def verify_directory(
    path: str | os.PathLike[str],
    config: StoreConfig | None = None,
    *,
    progress: Progress | None = None,
) -> Report:
    """Read a whole store that no process needs to have open; report every damaged range of bytes.

    `config`: has the delays of the fixed levels, which no file contains. `progress` is called with
    the number of bytes of the commit log that were read, and of all. Nothing is changed.

    Raises:
        ConfigError: there is no store.
    """
    if config is not None and not isinstance(config, StoreConfig):
        raise ConfigError(f"config: wanted a StoreConfig, got {type(config).__name__}")
    return verify(AtRestView(Findings(), path, config, progress))
