"""The one door into the engine: what tests need of a store's inside, by the architecture's names.

No other test touches a private attribute: the linter's SLF001 is on for tests. Exempt are this
folder and `tests/unit/fastpath`, the white-box tests of the fast path. When the engine changes,
this is the folder to change.

    inside(store).log            a component of an open store
    wait_queue_of(table)         a private part of a component, one function each

parts.py      the same, for the simulator and for tests of crashes, properties and files
engine.py     the engine's modules and classes that planted faults and seams replace
methods.py    its private methods that tests replace
sizes.py      its batch sizes, small
"""

from typing import Any


class Inside:
    """The components of one open store. Each is read anew at every access."""

    __slots__ = ("_store",)

    def __init__(self, store: Any) -> None:
        self._store = store

    # --- storage ---

    @property
    def directory(self) -> Any:
        """The locked root directory: files/directory.py."""
        return self._store._opened.directory

    @property
    def tree(self) -> Any:
        """The paths of all files: layout/tree.py."""
        return self._store._opened.directory.tree

    @property
    def disk(self) -> Any:
        """files/disk.py."""
        return self._store._opened.disk

    @property
    def metrics(self) -> Any:
        """metrics.py."""
        return self._store._opened.metrics

    # --- log and queues ---

    @property
    def log(self) -> Any:
        """The commit log: commitlog/commit_log.py."""
        return self._store._opened.rooms.log

    @property
    def routes(self) -> Any:
        """queues/routes.py."""
        return self._store._opened.rooms.routes

    @property
    def dispatch(self) -> Any:
        """queues/dispatch.py."""
        return self._store._opened.rooms.dispatch

    @property
    def levels(self) -> Any:
        """The cursors of fixed delay levels: queues/level_cursors.py."""
        return self._store._opened.rooms.levels

    @property
    def timer_route(self) -> Any:
        """The queue of the messages that wait: the timer topic's."""
        return self._store._opened.timer_route

    @property
    def definitions(self) -> Any:
        """The definitions of recurring messages: recurring/definitions.py."""
        return self._store._opened.definitions

    @property
    def ids(self) -> Any:
        """Message ids within the dedupe window: dedupe/."""
        return self._store._opened.rooms.ids

    # --- timer ---

    @property
    def wheel(self) -> Any:
        """timer/wheel.py."""
        return self._store._opened.rooms.wheel

    @property
    def timer_log(self) -> Any:
        """timer/timer_log.py."""
        return self._store._opened.rooms.timer_log

    @property
    def open_slot(self) -> Any:
        """timer/open_slot.py."""
        return self._store._opened.rooms.open_slot

    @property
    def far_wheel(self) -> Any:
        """timer/far.py."""
        return self._store._opened.rooms.far

    @property
    def states(self) -> Any:
        """The state of each timer: timer/states.py."""
        return self._store._opened.rooms.states

    @property
    def checkpoint(self) -> Any:
        """timer/checkpoint.py."""
        return self._store._opened.checkpoint

    @property
    def pipeline(self) -> Any:
        """The six services: timer/pipeline.py."""
        return self._store._opened.pipeline

    @property
    def schedule(self) -> Any:
        """The hand-over of fixed delay levels: schedule/deliver.py."""
        return self._store._opened.schedule

    @property
    def retention(self) -> Any:
        """timer/retain.py."""
        return self._store._opened.retention

    # --- reading ---

    @property
    def puller(self) -> Any:
        """pull/pull.py."""
        return self._store._opened.puller

    @property
    def long_polls(self) -> Any:
        """The table of pulls that wait."""
        return self._store._opened.puller.holds

    @property
    def group_offsets(self) -> Any:
        """The committed offsets of groups: pull/offsets.py."""
        return self._store._opened.offsets

    # --- the store itself ---

    @property
    def store_id(self) -> int:
        """The store's random number, which its receipts carry."""
        return int(self._store._opened.store_id)

    def fail_service(self, name: str, error: BaseException) -> None:
        """Do what a service's thread does with an error that is not retryable."""
        self._store._opened._failed(name, error)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return bool(self._store._closed)


def inside(store: Any) -> Inside:
    """Open the door of an open store."""
    return Inside(store)
