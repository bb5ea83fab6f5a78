"""The one door into the engine: what tests need of a store's inside, by the architecture's names.

No other test touches a private attribute: the linter's SLF001 is on for tests. Exempt are this file
and `tests/unit/fastpath`, the white-box tests of the fast path. When the engine changes, this is
the file to change.

    inside(store).log            a component of an open store
    wait_queue_of(table)         a private part of a component, one function each
"""

import struct
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from timerstore import arguments, replacing
from timerstore.backup.copying import Copier
from timerstore.beside import moment, room
from timerstore.commitlog import commit_log, recover, staging
from timerstore.dedupe import ids
from timerstore.delay_queue import DelayQueue
from timerstore.files import directory, guard, segments
from timerstore.ingest import cache, ingester
from timerstore.layout import backup_json, watermark
from timerstore.leases import leasing
from timerstore.leases.leases import Leases
from timerstore.leases.leasing import Leasing
from timerstore.pull import reading
from timerstore.pull.query import Querier
from timerstore.queues.dispatch import Dispatch
from timerstore.queues.routes import Routes
from timerstore.schedule import deliver
from timerstore.timer import cancel_many, dequeue_get, dequeue_put, due_queue, far, lanes, states
from timerstore.timer.pending import PendingReader


class Attribute(NamedTuple):
    """A private attribute or method that tests replace: its owner, and its name there.

    monkeypatch.setattr(*DISPATCH_READ, read)
    DISPATCH_READ.value        what is there now
    """

    owner: Any
    name: str

    @property
    def value(self) -> Any:
        """What the owner has under this name now."""
        return getattr(self.owner, self.name)


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
    def ids(self) -> Any:
        """Message ids within the dedupe window: dedupe/."""
        return self._store._opened.rooms.ids

    @property
    def sync_rounds(self) -> Any:
        """Whose turn it is to sync the log: commitlog/sync_rounds.py."""
        return self._store._opened.rooms.log._rounds

    @property
    def querier(self) -> Any:
        """pull/query.py."""
        return self._store._opened.querier

    @property
    def removals(self) -> Any:
        """Timers that were removed and may still be seen: queues/removals.py."""
        return self._store._opened.rescheduler.removals

    @property
    def schedule(self) -> Any:
        """The hand-over of fixed delay levels: schedule/deliver.py."""
        return self._store._opened.schedule

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
    def retention(self) -> Any:
        """timer/retain.py."""
        return self._store._opened.retention

    @property
    def pending(self) -> Any:
        """The reader of waiting messages: timer/pending.py."""
        return self._store._opened.pending

    @property
    def canceller(self) -> Any:
        """timer/cancel.py."""
        return self._store._opened.canceller

    @property
    def many_canceller(self) -> Any:
        """timer/cancel_many.py."""
        return self._store._opened.many_canceller

    @property
    def calendar(self) -> Any:
        """The counts by time: future/calendar.py."""
        return self._store._calendar

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

    @property
    def lease_progress(self) -> Any:
        """pull/lease_progress.py."""
        return self._store._opened.lease_progress

    @property
    def groups(self) -> Any:
        """The groups that read: pull/groups.py."""
        return self._store._groups

    # --- writing ---

    @property
    def putting(self) -> Any:
        """putting_many.py."""
        return self._store._putting

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
        return self._store._putting._counts

    @property
    def replacing(self) -> Any:
        """replacing.py."""
        return self._store._replacing

    @property
    def recurring(self) -> Any:
        """recurring_calls.py."""
        return self._store._recurring

    @property
    def definitions(self) -> Any:
        """The definitions of recurring messages: recurring/definitions.py."""
        return self._store._opened.definitions

    @property
    def ingester(self) -> Any:
        """ingest/ingester.py."""
        return self._store._ingester

    # --- the store itself ---

    @property
    def store_id(self) -> int:
        """The store's random number, which its receipts carry."""
        return int(self._store._opened.store_id)

    @property
    def imported(self) -> Any:
        """What opening found in a log that had to be read whole, or None: commitlog/fold.py."""
        return self._store._opened.imported

    @property
    def close_lock(self) -> Any:
        """The lock under which a store is closed."""
        return self._store._close_lock

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return bool(self._store._closed)


def inside(store: Any) -> Inside:
    """Open the door of an open store."""
    return Inside(store)


# --- parts that unit tests of services and of the store read ---


def service_event(service: Any) -> Any:
    """The event that wakes a service."""
    return service._event


def dispatch_batch(dispatch: Any) -> Attribute:
    """The method by which dispatch handles one batch."""
    return Attribute(dispatch, "_dispatch")


def flush_is_requested(flush: Any) -> bool:
    """Whether a sync was requested since the last step of flush."""
    return bool(flush._wanted)


def forget_flush_request(flush: Any) -> None:
    """Forget that a sync was requested."""
    flush._wanted = False


def flush_at_once(flush: Any) -> Attribute:
    """Whether each step of flush syncs, as where services are stepped by hand."""
    return Attribute(flush, "_at_once")


def set_unlinked_requests(enqueue_put: Any, requests: Any) -> None:
    """Set the requests that enqueue-put took and has not linked yet; None: there are none."""
    enqueue_put._rest = requests


def timer_records_read(enqueue_get: Any) -> Attribute:
    """The method by which enqueue-get reads requests that dispatch did not hand on."""
    return Attribute(enqueue_get, "_read")


def slots_in_reading(dequeue_get: Any) -> list[int]:
    """The wheel's slots that dequeue-get reads now."""
    found: list[int] = dequeue_get._slots.tolist()
    return found


def sync_of_cancels(store: Any) -> Attribute:
    """The method by which a cancel waits for its sync."""
    return Attribute(store, "_sync_cancels")


def is_error_of(store: Any, error: BaseException) -> bool:
    """Whether an error is one of the store's own files, which ends the store."""
    return bool(store._is_ours(error))


COPIER_CONFIG_TEXTS = Attribute(Copier, "_config_texts")
"""The method by which a backup reads the files of the config folder."""


def topics_checked_max() -> int:
    """How many topics the cache of valid topics holds, at most."""
    return arguments._TOPICS_CHECKED_MAX


def topics_checked_count() -> int:
    """How many topics the cache of valid topics holds."""
    return len(arguments._topics_checked)


# --- parts that unit tests of locks and signal handlers read ---


def log_write_lock(log: Any) -> Any:
    """The lock under which the staged end of the log is written to its file."""
    return log._write_lock


def offsets_write_lock(offsets: Any) -> Any:
    """The lock under which the committed offsets are written to their file."""
    return offsets._write_lock


def checkpoint_lock(checkpoint: Any) -> Any:
    """The lock under which a checkpoint is made."""
    return checkpoint._lock


def lock_of_key(replacing: Any, topic: str, key: str) -> Any:
    """The lock of one topic and key, over a put that replaces."""
    locks = replacing._locks
    return locks[zlib.crc32(f"{topic} {key}".encode()) % len(locks)]


def calendar_grow_lock(calendar: Any) -> Any:
    """The lock under which the calendar grows."""
    return calendar._grow_lock


def sync_leader(rounds: Any) -> int | None:
    """The thread that leads a round of syncs."""
    found: int | None = rounds._leader
    return found


def set_sync_leader(rounds: Any, thread: int) -> None:
    """Have a thread lead a round of syncs."""
    rounds._leader = thread


def sync_sleepers(rounds: Any) -> Any:
    """The list of callers that sleep until a round of syncs ends."""
    return rounds._sleepers


def set_sync_sleepers(rounds: Any, sleepers: list[Any]) -> None:
    """Replace the list of callers that sleep until a round of syncs ends."""
    rounds._sleepers = sleepers


DIRECTORY_HELD_LOCK = Attribute(directory, "_held_lock")
"""The lock of the table of directories that this process has locked."""

GUARD_LOCK = Attribute(guard, "_lock")
"""The lock of the table of mapped files that are watched."""


# --- parts that unit tests of files and the log read ---


def unwatch(memory: Any) -> None:
    """Have the guard of mapped files not watch this one any more."""
    memory._unwatch()


def segment_pointer(segments: Any) -> Attribute:
    """The method by which segments point a view at a file's memory."""
    return Attribute(segments, "_point")


def wheel_file_of(wheel: Any) -> Attribute:
    """The open file of the wheel."""
    return Attribute(wheel, "_file")


def staging_head() -> tuple[bytes, int]:
    """The magic of the staging file, and the bytes of its head."""
    return staging._MAGIC, staging._HEAD_BYTES


def watermark_magic() -> bytes:
    """The magic of a watermark slot."""
    return watermark._MAGIC


def old_watermark_slot(magic: bytes, fields: tuple[int, ...]) -> bytes:
    """One watermark slot as an older version wrote it."""
    older: struct.Struct = watermark._OLDER[magic]
    head = older.pack(magic, *fields)
    crc = watermark._CRC.pack(zlib.crc32(head))
    return (head + crc).ljust(watermark.SLOT_BYTES, b"\0")


def crc_of_backup(entries: dict[str, Any]) -> int:
    """The CRC of the entries of backup.json."""
    return backup_json._crc(entries)


# --- parts that unit tests of queues and routes read ---


def queue_segments(queue: Any) -> Any:
    """The files of one queue's units: files/segments.py."""
    return queue._segments


ROUTES_STEPS = {
    "let find": Attribute(Routes, "_let_find"),
    "rebuild": Attribute(Routes, "_rebuild"),
    "place": Attribute(Routes, "_place"),
}
"""The steps by which C learns of a new route."""

DISPATCH_READ = Attribute(Dispatch, "_read")
"""The method by which dispatch reads one batch from the log."""


def log_of(dispatch: Any) -> Any:
    """The commit log that dispatch reads."""
    return dispatch._log


def batch_end(dispatch: Any) -> int:
    """Where the batch that dispatch read last ends in the log."""
    return int(dispatch._next[0])


class BatchColumns(NamedTuple):
    """What dispatch found in a batch, one row each; views of its memory."""

    units: Any
    indexes: Any
    offsets: Any


def batch_columns(dispatch: Any, count: int) -> BatchColumns:
    """The columns of the batch that dispatch read last."""
    return BatchColumns(
        dispatch._units.reshape(-1, 20)[:count],
        dispatch._indexes[:count],
        dispatch._offsets[:count],
    )


def batch_requests(dispatch: Any) -> Any:
    """The timer requests of the batch that dispatch read last."""
    return dispatch._requests


def write_index_in_each_checkpoint(index: Any) -> None:
    """Have checkpoints write the index however little there is to write."""
    index._lag_bytes = 0


def forget_levels(levels: Any) -> None:
    """Forget how far each fixed delay level is delivered."""
    levels._queues.clear()


def forget_runs(schedule: Any) -> None:
    """Forget what the hand-over of fixed delay levels has read of its queues."""
    schedule._queues.clear()
    schedule._routes_seen = 0


# --- parts that unit tests of puts read ---


def append_of_many(putting: Any) -> Attribute:
    """The method that appends the records of a put of many."""
    return Attribute(putting, "_append_many")


def add_id(ids: Any, entry: Any) -> None:
    """Remember a message id, by its row in the table of ids."""
    ids._add(entry)


def encode_replacement(replacing: Any) -> Attribute:
    """The method that encodes the record of a put that replaces."""
    return Attribute(replacing, "_encode")


def known_keys(replacing: Any) -> Any:
    """The keys of which it is known in memory what waits."""
    return replacing._known


def counts_by_slot(slot_counts: Any) -> dict[int, int]:
    """How many messages flow control counts in each slot."""
    found: dict[int, int] = slot_counts._counts
    return found


def counted_slots(slot_counts: Any) -> Any:
    """The slots that flow control counts, as a queue by time."""
    return slot_counts._slots


def recount(slot_counts: Any) -> Attribute:
    """What gives flow control the due times of all that waits."""
    return Attribute(slot_counts, "_waiting")


def putting_of(recurring: Any) -> Any:
    """What puts the runs of recurring messages."""
    return recurring._putting


def planner_is_started(recurring: Any) -> bool:
    """Whether the planner of recurring messages has a thread."""
    return bool(recurring._is_started)


def doubt_header(ingester: Any, source: str) -> None:
    """Have the log hold a header of a source that may not be noted in memory."""
    ingester._doubted.add(source)


# --- parts that unit tests of the timer read ---


def placing_of_cancels(many_canceller: Any) -> Attribute:
    """The method that appends one part of a cancel of many."""
    return Attribute(many_canceller, "_place")


PENDING_DUE = Attribute(PendingReader, "_due")
"""The method by which the reader of waiting messages reads due times."""


def run_count(open_slot: Any) -> int:
    """How many sorted runs the open slot holds."""
    return len(open_slot._rest._runs)


def hand_over_chunk_count() -> int:
    """How many messages dequeue-put hands over in one hold of the append lock."""
    return dequeue_put._CHUNK


def make_lane(now_ns: int) -> Any:
    """Make the lane of one topic with a rate."""
    return lanes._Lane(now_ns)


DELAY_QUEUE_MAKE_BUCKETS = Attribute(DelayQueue, "_make_buckets")
"""The method by which a DelayQueue moves all its entries to buckets of another width."""


def opened_bucket(queue: Any, number: int) -> Any:
    """One sorted bucket of a DelayQueue."""
    return queue._opened[number]


def bucket_parts(queue: Any) -> list[Any]:
    """All buckets of a DelayQueue, sorted and not, with the marks in them."""
    return [*queue._buckets.values(), *queue._opened.values()]


def bucket_count(queue: Any) -> int:
    """How many buckets a DelayQueue has."""
    return len(queue._buckets)


def bucket_number_count(queue: Any) -> int:
    """How many numbers of buckets a DelayQueue holds, stale ones too."""
    return len(queue._numbers) + len(queue._new_numbers)


def bucket_width_ms(queue: Any) -> int:
    """How wide the buckets of a DelayQueue are."""
    return int(queue._width_ms)


# --- parts that unit tests of pulls and consumers read ---


def route_and_filter(store: Any, topic: str, queue_id: int, tags: str | None) -> tuple[Any, Any]:
    """The route of a queue, and the filter of a pull by tags."""
    route, *_, wanted = store._pull_arguments(topic, queue_id, 0, 1, 0.0, tags, None)
    return route, wanted


def text_reader(long_polls: Any) -> Attribute:
    """What reads the properties of new messages for pulls that wait behind a filter."""
    return Attribute(long_polls, "_read_texts")


def line_of(consumer: Any) -> Any:
    """The line in which the polls of a consumer wait: pull/line.py."""
    return consumer._member.line


def places_of(line: Any) -> list[Any]:
    """The polls that wait in a line."""
    return list(line._places)


def group_lock(consumer: Any) -> Any:
    """The lock of a consumer's group."""
    return consumer._group.lock


def consumer_pull(consumer: Any) -> Attribute:
    """The method by which a consumer pulls from one queue."""
    return Attribute(consumer, "_pull")


def consumer_fetch(consumer: Any) -> Attribute:
    """The method by which a consumer fetches messages for the poll whose turn it is."""
    return Attribute(consumer, "_fetch_next")


def consumer_seams(consumer: Any) -> Attribute:
    """The calls of the store that a consumer makes."""
    return Attribute(consumer, "_seams")


def store_of(consumer: Any) -> Any:
    """The store that a consumer reads."""
    return consumer._seams.call.__self__


def commits_asked(offsets: Any) -> list[Any]:
    """The commits that wait until they are written, and the last ones that were."""
    found: list[Any] = offsets._asked
    return found


def groups_by_topic(groups: Any) -> Mapping[str, Any]:
    """The groups that read, by topic."""
    found: Mapping[str, Any] = groups._by_topic
    return found


def page_buffers(page: Any) -> tuple[Any, Any]:
    """The buffers of a page's bodies and properties."""
    return page._bodies, page._properties


def kept_buffers(buffers: Any) -> list[Any]:
    """The buffers that are kept for later pages."""
    found: list[Any] = buffers._kept
    return found


QUERIER_STEPS = {
    "walk": Attribute(Querier, "_walk"),
    "waiting": Attribute(Querier, "_waiting"),
    "future": Attribute(Querier, "_future"),
    "read": Attribute(Querier, "_read"),
}
"""The steps of a query by key."""


def recent_removals(removals: Any) -> Any:
    """The removals that may not be durable yet."""
    return removals._recent


def readers_of_removals(removals: Any) -> list[Any]:
    """The queries that are told of removals."""
    found: list[Any] = removals._readers
    return found


def forget_sql_parser() -> None:
    """Have the next SQL filter make its parser again."""
    from timerstore.pull import sql

    sql._parser.cache_clear()


LEASING_ROW = Attribute(Leasing, "_row")
"""The method that makes the record of one lease."""

LEASES_MOVE = Attribute(Leases, "_move")
"""The method that extends or ends one lease."""


def body_of(message: Any) -> bytes:
    """The body of a message that is leased, inflated."""
    return leasing._body_of(message)


# --- parts that unit tests of timerstore.aio read ---


def bells_of(store: Any) -> Mapping[Any, Any]:
    """The bells of an AsyncTimerStore, by event loop."""
    found: Mapping[Any, Any] = store._bells
    return found


def aio_page_count() -> int:
    """How many waiting messages an AsyncTimerStore reads at a time."""
    from timerstore import aio

    return aio._PAGE


# --- parts that unit tests of a store that is read beside its owner read ---


def room_of(store: Any) -> Any:
    """The log and the queues of a ReadOnlyStore: beside/room.py."""
    return store._room


def read_only_lock(store: Any) -> Any:
    """The lock of a ReadOnlyStore."""
    return store._lock


def polling_of(store: Any) -> Any:
    """What the pulls of a ReadOnlyStore wait by: beside/polling.py."""
    return store._polling


def moments_of(room: Any) -> Any:
    """What looks for a store's newest moment: beside/moment.py."""
    return room._moments


def look_at_moment(room: Any) -> Any:
    """Look for the newest moment, and do not move the room on to it."""
    return room._moments.look(room._records_end)


def is_time_to_sync(moments: Any) -> bool:
    """Whether the log of a broker that has the store open is to be synced."""
    return bool(moments._is_time())


def log_at_moment(room: Any) -> Any:
    """The log's files as of the room's moment, to sync them."""
    return room._moments._log(room.moment.store)


def distrusted_version(room: Any) -> int | None:
    """As of which version a room does not believe the queues' files; None: it does."""
    found: int | None = room._distrusted
    return found


def units_in_memory(room: Any) -> int:
    """How many queue units a room holds in memory."""
    return int(room._tail_units)


def queue_files(queue: Any) -> Any:
    """The files of one queue, and the units in memory that follow them."""
    return queue._files


def moment_steps(room: Any) -> dict[str, Attribute]:
    """The steps by which a room moves on to a moment, in order."""
    return {
        "counts": Attribute(room._moments, "_counts"),
        "show": Attribute(room.log.segments, "show"),
        "covered": Attribute(room, "_covered_by_files"),
        "forget": Attribute(room.routes.by_index[0].queue, "forget"),
        "units": Attribute(room, "_add"),
    }


# --- parts that unit tests of shards read ---


def in_all_shards(shards: Any, call: Callable[[Any], Any]) -> list[Any]:
    """Call something for every shard, each in a thread of the pool."""
    found: list[Any] = shards._in_all(call)
    return found


def as_thread_of_pool(shards: Any) -> AbstractContextManager[Any]:
    """Have this thread count as one of the shards' pool."""
    found: AbstractContextManager[Any] = shards._here(shards._pool)
    return found


def shard_consumers(consumer: Any) -> Any:
    """The consumers of the shards, by shard, behind a consumer of all."""
    return consumer._consumers


def ingesters_of(shards: Any) -> Any:
    """What ingests committed versions, one for each shard."""
    return shards._ingesters


def is_ingested(shards: Any) -> Callable[[str, int], bool]:
    """The method that tells whether every shard has a version of a source."""
    found: Callable[[str, int], bool] = shards._is_ingested
    return found


def ingest_in_background(shards: Any) -> None:
    """Do what the shards' background does in one turn."""
    shards._look()


# --- parts that unit tests of tables, Spark, the page and the command line read ---


def ledger_of_part() -> Attribute:
    """The function that reads the headers of ingested chunks for the table of transactions."""
    from timerstore.columns import transactions

    return Attribute(transactions, "_ledger")


def late_by_bound(late: Any) -> tuple[int, ...]:
    """How many deliveries were late, by bound, and beyond the last one."""
    from timerstore.columns import pulse

    return pulse._by_bound(late)


def without_delivered(counts: Any, look: Any) -> Any:
    """The counts of what waits, without what was delivered since they were taken."""
    from timerstore.columns import pulse

    return pulse._without_delivered(counts, look)


def export_sync() -> Attribute:
    """The function by which an export syncs its file."""
    from timerstore.cli import tables

    return Attribute(tables, "_sync")


def root_of_write(options: Mapping[str, str]) -> Path:
    """The directory that the options of a Spark write mean."""
    from timerstore.spark import writing

    return writing._root_of(options)


def span_text(span_ms: int) -> str:
    """The label of a span of time in the pictures of a Spark job."""
    from timerstore.spark.jobs import plots

    return plots._span(span_ms)


def partitions_of_tasks(partitions: list[Any]) -> list[list[int]]:
    """Which partitions of a source each Spark task reads."""
    from timerstore.spark.jobs import source_tasks

    return source_tasks._together(partitions)


def event_stream_count(app: Any) -> int:
    """How many pages have a stream of events open."""
    return int(app._streams)


def set_event_stream_count(app: Any, count: int) -> None:
    """Have so many pages count as having a stream of events open."""
    app._streams = count


def store_of_page(source: Any) -> Any:
    """The store that a page shows."""
    return source._store


def clock_listeners(clock: Any) -> Any:
    """What a ManualClock calls when it is turned."""
    return clock._listeners


# --- batch sizes and limits that unit tests make small ---

SYNC_INTERVAL_NS = Attribute(moment, "_READ_ON_NS")
"""Time between two syncs of a log that a broker has open."""

TAIL_UNITS_MAX = Attribute(room, "_TAIL_UNITS")
"""Queue units in memory beyond which a room looks at the files again."""

CANCEL_CHUNK = Attribute(cancel_many, "_CHUNK")
"""Timers that a cancel of many handles at a time."""

CANCEL_HOLD = Attribute(cancel_many, "_HOLD")
"""Delete records that a cancel of many appends in one hold of the append lock."""

CANCEL_GAP_UNITS = Attribute(cancel_many, "_GAP_UNITS")
"""Units between two timers that a cancel of many reads together, at most."""

CANCEL_TEXTS_BYTES = Attribute(cancel_many, "_TEXTS_BYTES")
"""Bytes of property texts that a cancel of many holds."""

INGEST_CHUNK_ROWS = Attribute(ingester, "_CHUNK_ROWS")
"""Rows of one chunk of an ingest."""

LEDGER_BEHIND_MAX = Attribute(cache, "_BEHIND_MAX")
"""Ingest records that the cache of the ledger may be behind."""

PULL_STEP_UNITS_MAX = Attribute(reading, "_STEP_UNITS_MAX")
"""Units that a pull reads at a time, at most."""

PULL_BUFFER_BYTES_MAX = Attribute(reading, "_BUFFER_BYTES_MAX")
"""Bytes of messages that a pull reads at a time, at most."""

NOTE_COUNT = Attribute(commit_log, "_NOTES")
"""Notes that a put leaves for dispatch, at most."""

PAST_RANGES_MAX = Attribute(states, "_RANGES_MAX")
"""Ranges of past states that are kept, at most."""

LEVEL_BATCH = Attribute(deliver, "_BATCH")
"""Messages on fixed delay levels that are handed over in one step."""

MAPS_MAX = Attribute(segments, "_MAPS_MAX")
"""Files that are mapped at a time, at most."""

DEQUEUE_GET_BATCH = Attribute(dequeue_get, "_BATCH")
"""Units that dequeue-get reads in one step."""

DEQUEUE_GET_LOADED_MAX = Attribute(dequeue_get, "_LOADED_MAX")
"""Entries in the open slot beyond which dequeue-get begins no further slot."""

DEQUEUE_GET_LOADED_AHEAD_MAX = Attribute(dequeue_get, "_LOADED_AHEAD_MAX")
"""Entries of one slot beyond which dequeue-get does not read it ahead."""

SIDE_BY_SIDE_MAX = Attribute(dequeue_get, "_SIDE_BY_SIDE")
"""Units of slots that dequeue-get reads together, at most."""

FAR_BATCH = Attribute(far, "_BATCH")
"""Units that the far wheel moves in one step."""

DEQUEUE_PUT_BATCH = Attribute(dequeue_put, "_BATCH")
"""Entries that dequeue-put hands over in one step."""

DEQUEUE_PUT_SORTED = Attribute(dequeue_put, "_SORTED")
"""Entries that dequeue-put sorts by topic in one step, at most."""

RUN_MAX = Attribute(due_queue, "_RUN_MAX")
"""Entries of a sorted run beyond which it is not merged."""

DEQUEUE_GET_CROWD = Attribute(dequeue_get, "_CROWD")
"""Units for which dequeue-get begins a slot ahead of its time."""

DEQUEUE_GET_CROWD_PER_S = Attribute(dequeue_get, "_CROWD_PER_S")
"""Units that dequeue-get reads in a second, at least."""

RECOVER_BATCH = Attribute(recover, "_BATCH")
"""Records that recovery scans in one call."""

IDS_CAPACITY_MIN = Attribute(ids, "_CAPACITY_MIN")
"""Message ids for which the table has room at first."""

IDS_FILE_BYTES_MIN = Attribute(ids, "_FILE_BYTES_MIN")
"""Bytes below which the file of message ids is not rewritten."""

KNOWN_KEYS_MAX = Attribute(replacing, "_KNOWN_MAX")
"""Keys of which it is known in memory what waits, at most."""


def staging_gather_rows() -> Attribute:
    """Rows that a staged write gathers before it writes them."""
    from timerstore.shards import staging

    return Attribute(staging, "_GATHER_ROWS")


def demo_grace_s() -> Attribute:
    """How long the demo waits for messages that have not arrived."""
    from timerstore.cli import trying

    return Attribute(trying, "_GRACE_S")
