"""`Snapshot`: the sizes of one store's files, and how far each file is read.

A Snapshot is a value. `position.py` makes it; a Spark driver sends it to its workers.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from timerstore._engine.format.store_paths import Tree
from timerstore._engine.snapshot.log_walk import segments_of
from timerstore._engine.snapshot.log_windows import Windows
from timerstore.config import StoreConfig
from timerstore.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One store, as far as it is read."""

    root: Path
    precision_ms: int
    log_segment_bytes: int
    timer_log_segment_bytes: int
    queue_segment_bytes: int
    wheel_slot_count: int
    log_begin: int
    log_end: int
    timer_log_begin: int
    timer_log_end: int
    store_id: int | None
    """The store's id from its watermark; None for files that a broker wrote."""
    as_of_ms: int | None = field(default=None, compare=False)
    """When the files had this state, ms since 1970: the time at which the checkpoint was written,
    or, for a broker's store and for records after the last checkpoint, at which the files were
    read. None: not known."""

    @property
    def tree(self) -> Tree:
        """The names of its files."""
        return Tree(self.root)

    @property
    def as_of(self) -> str | None:
        """The time of this state, as ISO 8601 in UTC."""
        if self.as_of_ms is None:
            return None
        return datetime.fromtimestamp(self.as_of_ms / 1000, UTC).isoformat(timespec="milliseconds")

    def log(
        self,
        *,
        verify: bool = True,
        end: int | None = None,
        window_bytes: int | None = None,
    ) -> Windows:
        """Return the commit log up to the limit, or up to `end`."""
        return Windows(
            self.tree.commit_log,
            self.log_segment_bytes,
            self.log_end if end is None else end,
            verify=verify,
            window_bytes=window_bytes,
        )

    def timer_log(self, *, end: int | None = None) -> Windows:
        """Return the timer log up to the limit, or up to `end`."""
        limit = self.timer_log_end if end is None else end
        return Windows(self.tree.timer_log, self.timer_log_segment_bytes, limit)

    @property
    def timer_log_begin_now(self) -> int:
        """The begin of the first file of the timer log, which retention may have moved."""
        return timer_log_begin(self.tree, self.timer_log_segment_bytes)

    def pinned(
        self, log_end: int, timer_log_end: int | None, as_of_ms: int | None = None
    ) -> "Snapshot":
        """Return the same store with earlier limits. Without a limit of the timer log, none of it
        is read. `as_of_ms`: when the store had these limits.

        Raises:
            ConfigError: a limit lies past the end of the store's file.
        """
        timers = self.timer_log_begin if timer_log_end is None else timer_log_end
        for name, given, end in (
            ("log", log_end, self.log_end),
            ("timer log", timers, self.timer_log_end),
        ):
            if not 0 <= given <= end:
                raise ConfigError(
                    f"as_of: the {name} of {self.root} ends at {end}, asked for {given}; "
                    "it was taken of another store, or this one was restored from a copy"
                )
        return replace(
            self,
            log_end=log_end,
            log_begin=min(self.log_begin, log_end),
            timer_log_end=timers,
            timer_log_begin=min(self.timer_log_begin, timers),
            as_of_ms=as_of_ms,
        )


def timer_log_begin(tree: Tree, segment_bytes: int) -> int:
    """Return where the timer log begins. Only its files tell: the watermark does not."""
    begins = segments_of(tree.timer_log, segment_bytes)
    return begins[0] if begins else 0


def limits(
    root: Path,
    config: StoreConfig,
    log: tuple[int, int] = (0, 0),
    timer_log: tuple[int, int] = (0, 0),
    store_id: int | None = None,
) -> Snapshot:
    """Return a Snapshot with the sizes of `config`, of [begin, end) of each log."""
    return Snapshot(
        root=root,
        precision_ms=config.precision_ms,
        log_segment_bytes=config.commit_log_segment_bytes,
        timer_log_segment_bytes=config.timer_log_segment_bytes,
        queue_segment_bytes=config.queue_segment_bytes,
        wheel_slot_count=config.wheel_slot_count,
        log_begin=log[0],
        log_end=log[1],
        timer_log_begin=timer_log[0],
        timer_log_end=timer_log[1],
        store_id=store_id,
    )


def empty(root: Path) -> Snapshot:
    """Return the Snapshot of a store that was never opened: it holds nothing."""
    return limits(root, StoreConfig())
