"""The components of an open store."""

from typing import Any


class Inside:
    """The components of one open store. Each is read at every access."""

    __slots__ = ("_store",)

    def __init__(self, store: Any) -> None:
        # A store that is reached in another way names the one in this process.
        self._store = vars(store).get("local", store)

    # --- storage ---

    @property
    def directory(self) -> Any:
        """The locked root directory: storage/directory.py."""
        return self._store._engine.directory

    @property
    def tree(self) -> Any:
        """The paths of all files: format/store_paths.py."""
        return self._store._engine.directory.tree

    @property
    def disk(self) -> Any:
        """storage/disk.py."""
        return self._store._engine.disk

    @property
    def metrics(self) -> Any:
        """metrics.py."""
        return self._store._engine.metrics

    @property
    def signals(self) -> Any:
        """The signals between components: base/signal.py."""
        return self._store._engine.signals

    # --- log and queues ---

    @property
    def log(self) -> Any:
        """The commit log: log/commit_log.py."""
        return self._store._engine.log

    @property
    def routes(self) -> Any:
        """queues/routes.py."""
        return self._store._engine.routes

    @property
    def dispatch(self) -> Any:
        """queues/dispatch.py."""
        return self._store._engine.dispatch

    @property
    def levels(self) -> Any:
        """The cursors of fixed delay levels: queues/level_cursors.py."""
        return self._store._engine.levels

    @property
    def timer_route(self) -> Any:
        """The queue of the messages that wait: the timer topic's."""
        return self._store._engine.timer_route

    @property
    def definitions(self) -> Any:
        """The definitions of recurring messages: recurring/planner.py."""
        return self._store._engine.definitions

    @property
    def ids(self) -> Any:
        """Message ids within the dedupe window: dedupe/."""
        return self._store._engine.ids

    @property
    def sync_rounds(self) -> Any:
        """Whose turn it is to sync the log: log/commit_log.py."""
        return self._store._engine.log.group_commit

    @property
    def removals(self) -> Any:
        """Timers that were removed and may still be seen: queues/dispatch.py."""
        return self._store._engine.rescheduler.removals

    @property
    def schedule(self) -> Any:
        """The hand-over of fixed delay levels: timer/level_delivery.py."""
        return self._store._engine.schedule

    # --- timer ---

    @property
    def wheel(self) -> Any:
        """timer/wheel.py."""
        return self._store._engine.wheel

    @property
    def timer_log(self) -> Any:
        """timer/timer_log.py."""
        return self._store._engine.timer_log

    @property
    def open_slot(self) -> Any:
        """timer/open_slot.py."""
        return self._store._engine.open_slot

    @property
    def far_wheel(self) -> Any:
        """timer/far_wheel.py."""
        return self._store._engine.far

    @property
    def states(self) -> Any:
        """The state of each timer: log/timer_states.py."""
        return self._store._engine.states

    @property
    def checkpoint(self) -> Any:
        """timer/checkpoint.py."""
        return self._store._engine.checkpoint

    @property
    def pipeline(self) -> Any:
        """The six services: timer/pipeline.py."""
        return self._store._engine.pipeline

    @property
    def retention(self) -> Any:
        """timer/timer_retention.py."""
        return self._store._engine.retention

    @property
    def pending(self) -> Any:
        """The reader of pending messages: timer/pending.py."""
        return self._store._engine.pending

    @property
    def canceller(self) -> Any:
        """write/cancel.py."""
        return self._store._engine.canceller

    @property
    def many_canceller(self) -> Any:
        """write/cancel.py."""
        return self._store._engine.many_canceller

    @property
    def calendar(self) -> Any:
        """The counts by time: introspection/calendar.py."""
        return self._store._engine.calendar

    # --- reading ---

    @property
    def puller(self) -> Any:
        """read/pull.py."""
        return self._store._engine.puller

    @property
    def long_polls(self) -> Any:
        """The table of pulls that wait."""
        return self._store._engine.puller.long_polls

    @property
    def group_offsets(self) -> Any:
        """The committed offsets of groups: read/consumer_offsets.py."""
        return self._store._engine.offsets

    @property
    def lease_progress(self) -> Any:
        """read/consumer_offsets.py."""
        return self._store._engine.lease_progress

    @property
    def groups(self) -> Any:
        """The groups that read: read/groups.py."""
        return self._store._engine.groups

    # --- writing ---

    @property
    def putting(self) -> Any:
        """write/append.py."""
        return self._store._engine.appender

    @property
    def putter(self) -> Any:
        """What makes quick puts, in C."""
        return self._store._putter

    @property
    def begin_put(self) -> Any:
        """The first step of a quick put."""
        return self._store._begin_put

    @property
    def slot_counts(self) -> Any:
        """The counts of flow control: timer/slot_counts.py."""
        return self._store._engine.slot_counts

    @property
    def replacing(self) -> Any:
        """replacing.py."""
        return self._store._engine.replace_writer

    @property
    def recurring(self) -> Any:
        """recurring_calls.py."""
        return self._store._engine.recurring

    @property
    def ingester(self) -> Any:
        """write/ingester.py."""
        return self._store._engine.ingester

    # --- the store itself ---

    @property
    def store_id(self) -> int:
        """The store's random number, which its receipts carry."""
        return int(self._store._engine.store_id)

    def fail_service(self, name: str, error: BaseException) -> None:
        """Do what a service's thread does with an error that is not retryable."""
        self._store._engine.fail_by(name, error)

    @property
    def imported(self) -> Any:
        """What opening found in a log that had to be read whole, or None: log/fold.py."""
        return self._store._engine.imported

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return bool(self._store._closed)


def inside(store: Any) -> Inside:
    """Open the door of an open store."""
    return Inside(store)
