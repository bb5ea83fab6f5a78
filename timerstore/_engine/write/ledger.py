"""The ledger: the complete versions of each source, and the progress of incomplete ones.

Thread safety: any thread. `ingested` may run concurrently with an ingest.
Locking: `_lock` for the table; no lock is taken under it. An ingest holds the source's `turn`.
Invariants:
    1. The ledger is derived from the headers in the log, in their order. Each header was appended
       in one atomic group with its rows, so the ledger describes exactly the rows in the log.
Raises: FormatVersionError on a record of a later release.
On-disk format: format/ledger_json.py, in the queue of a system topic.
"""

import logging
from bisect import bisect_right
from collections import OrderedDict
from typing import Any, NamedTuple

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.format import ledger_cache, queue_unit
from timerstore._engine.format.ledger_cache import LedgerCache
from timerstore._engine.format.ledger_json import Begun, ChunkHeader, Done, SourceState, read
from timerstore._engine.format.store_paths import INGEST_TOPIC
from timerstore._engine.queues.core import Core
from timerstore._engine.queues.routes import Route
from timerstore._engine.read.pull import Puller, batch_of
from timerstore._engine.storage.directory import Directory
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore._engine.write.row_batch import IngestedVersions
from timerstore.errors import CorruptError, FormatVersionError, FullError

# --- version set ---
# A set of versions, stored as ranges: any number of adjacent versions takes one range.


class VersionSet:
    """A set of integers of 0 and above."""

    __slots__ = ("_begins", "_ends")

    def __init__(self) -> None:
        self._begins: list[int] = []  # ascending; ranges are [begin, end) and not adjacent
        self._ends: list[int] = []

    def __contains__(self, version: int) -> bool:
        at = bisect_right(self._begins, version)
        return at > 0 and version < self._ends[at - 1]

    def add(self, version: int) -> None:
        """Add a version."""
        self.add_range(version, version + 1)

    def add_range(self, begin: int, end: int) -> None:
        """Add [begin, end)."""
        if begin >= end:
            return
        low = bisect_right(self._ends, begin - 1)  # the first range that ends at begin or later
        high = bisect_right(self._begins, end)  # the first range that begins after end
        if low < high:
            begin = min(begin, self._begins[low])
            end = max(end, self._ends[high - 1])
        self._begins[low:high] = [begin]
        self._ends[low:high] = [end]

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Return the ranges [begin, end), ascending."""
        return tuple(zip(self._begins, self._ends, strict=True))

    def __bool__(self) -> bool:
        return bool(self._begins)


# --- ledger ---


_log = logging.getLogger("timerstore.ingest")

DONE_KEPT = 256
"""Number of complete versions of a source whose row count and digest are kept: the highest ones and
the last completed one. Of all others, only the version number is kept."""


class Known(NamedTuple):
    """The progress of one version."""

    is_complete: bool
    chunk_count: int = 0
    row_count: int = 0
    digest: int = 0
    end: int = 0  # the log offset up to which the log must be durable


NOTHING = Known(is_complete=False)


class _Source(NotCopyable):
    def __init__(self) -> None:
        self.turn = Lock()
        self.complete = VersionSet()
        self.details: OrderedDict[int, Known] = OrderedDict()  # of the last complete versions
        self.begun: dict[int, Known] = {}

    def find(self, version: int) -> Known | None:
        if version in self.complete:
            return self.details.get(version, Known(is_complete=True, row_count=-1))
        return self.begun.get(version)

    def note(self, version: int, known: Known) -> None:
        before = self.begun.get(version, NOTHING)
        if version in self.complete or before.chunk_count >= known.chunk_count > 0:
            return
        if not known.is_complete:
            self.begun[version] = known
            return
        self.begun.pop(version, None)
        self.complete.add(version)
        self.details[version] = known
        if len(self.details) > DONE_KEPT:
            # Keep the version that was just completed: its end is needed until it is durable.
            del self.details[min(one for one in self.details if one != version)]


class Ledger(NotCopyable):
    """The ledger of one store."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sources: dict[str, _Source] = {}

    def turn(self, source: str) -> Any:
        """Return the lock that an ingest of this source holds."""
        with self._lock:
            return self._sources.setdefault(source, _Source()).turn

    def find(self, source: str, version: int) -> Known | None:
        """Return the progress of a version, None if it is unknown.

        A row count of -1 means that the version is complete and its details are not kept.
        """
        with self._lock:
            one = self._sources.get(source)
            return one.find(version) if one is not None else None

    def note(self, header: ChunkHeader, end: int) -> Known:
        """Enter a chunk that is in the log and ends at log offset `end`."""
        known = Known(header.last, header.chunk + 1, header.rows_so_far, header.digest, end)
        with self._lock:
            self._sources.setdefault(header.source, _Source()).note(header.version, known)
        return known

    def fold(self, body: bytes) -> None:
        """Enter the next durable record of the ledger's topic.

        A record that a client of a broker put there is ignored, with a warning.
        """
        try:
            record = read(body)
        except FormatVersionError:
            raise
        except CorruptError as error:
            _log.warning("event=stranger error=%s", error)
            return
        if isinstance(record, ChunkHeader):
            self.note(record, 0)
        else:
            self.restore(record)

    def restore(self, state: SourceState) -> None:
        """Add the saved state of a source. Versions that are known already stay."""
        with self._lock:
            one = self._sources.setdefault(state.source, _Source())
            for done in state.done:
                one.note(done.version, Known(True, 0, done.row_count, done.digest))
            for begin, end in state.versions:
                one.complete.add_range(begin, end)
            for begun in state.open:
                one.note(begun.version, Known(False, *begun[1:]))

    def state(self, source: str) -> SourceState:
        """Return the state of a source."""
        with self._lock:
            one = self._sources[source]
            return SourceState(
                source,
                one.complete.ranges(),
                tuple(Done(v, k.row_count, k.digest) for v, k in sorted(one.details.items())),
                tuple(
                    Begun(v, k.chunk_count, k.row_count, k.digest)
                    for v, k in sorted(one.begun.items())
                ),
            )

    def sources(self) -> list[str]:
        """Return the names of all sources with a version."""
        with self._lock:
            return sorted(n for n, one in self._sources.items() if one.complete or one.begun)

    def ingested(self, source: str, durable: int) -> IngestedVersions:
        """Return the complete versions of a source that are durable below log offset `durable`."""
        with self._lock:
            one = self._sources.get(source)
            if one is None:
                return IngestedVersions(source, (), {})
            pending = {v for v, k in one.details.items() if k.end > durable}
            begun = {v: k.row_count for v, k in one.begun.items()}
            begun.update({v: one.details[v].row_count for v in pending})
            ranges = _without(one.complete.ranges(), pending)
        return IngestedVersions(source, tuple(range(b, e) for b, e in ranges), begun)


def _without(ranges: tuple[tuple[int, int], ...], versions: set[int]) -> list[tuple[int, int]]:
    found = []
    for begin, end in ranges:
        at = begin
        for version in sorted(v for v in versions if begin <= v < end):
            if at < version:
                found.append((at, version))
            at = version + 1
        if at < end:
            found.append((at, end))
    return found


# --- ledger side file ---
# Save the ledger in a side file, so that opening a store reads only the last headers.
#
# Thread safety: used while a store is opened; then by the thread that completed a checkpoint.
# Locking: `_lock` during a save.
# Invariants:
#     1. The saved ledger covers only records below the log end of a completed checkpoint. So these
#        are durable, whatever `visibility` the store has.
#     2. A file that does not fit the queue is removed at opening, durably, before anything is
#        appended. Otherwise later records could make it seem to fit.
# Raises: nothing. On a full disk the file stays as it was, and the next checkpoint tries again.


_READ_COUNT = 4096
_LAG_MAX = 1024  # records past the file that an opening may have to read


class LedgerSideFile(NotCopyable):
    """The side file of one store's ledger."""

    def __init__(
        self, core: Core, puller: Puller, checkpoint: Checkpoint, directory: Directory
    ) -> None:
        self._lock = Lock()
        self._path = directory.tree.ingest_ledger
        self._saved_offset = 0
        self._log = core.log
        self._routes = core.routes
        self._disk = core.disk
        self._puller = puller
        self._store_id = core.store_id
        self._checkpoint = checkpoint

    def load(self, ledger: Ledger) -> int:
        """Read all durable records into an empty ledger; return the next queue offset."""
        offset = self._saved_offset = self._restore(ledger)
        if not offset and self._disk.exists(self._path):
            self._disk.unlink(self._path)
            self._disk.sync_directory(self._path.parent)
        return self.read(ledger, offset, self._log.durable)

    def _restore(self, ledger: Ledger) -> int:
        """Load the file; return the next queue offset, 0 if the file does not fit."""
        cache = ledger_cache.read(self._disk.read_small(self._path))
        if cache is None or not self._fits(cache):
            return 0
        for state in cache.sources:
            ledger.restore(state)
        return cache.queue_offset

    def read(self, ledger: Ledger, offset: int, durable: int) -> int:
        """Read the records from a queue offset on, up to the durable end; return the next offset.

        durable: log offset below which the log is durable. A pull does not respect it: with
        visibility="written" it also returns records that no sync has covered.
        """
        route = self._route
        end = 0 if route is None else route.queue.visible(durable)
        while route is not None and offset < end:
            count = min(end - offset, _READ_COUNT)
            page = self._puller.pull(batch_of, route, offset, count, 0.0)
            for message in page:
                ledger.fold(message.body)
            if page.next_offset <= offset:
                break
            offset = page.next_offset
        return offset

    @property
    def _route(self) -> Route | None:
        return self._routes.get(INGEST_TOPIC, 0)

    def _fits(self, cache: LedgerCache) -> bool:
        """Return whether the file belongs to this store and its queue.

        A restored log has a shorter queue, or another record at the last offset. Records that
        retention removed cannot be compared.
        """
        route, last = self._route, cache.queue_offset - 1
        if route is None or cache.store_id != self._store_id or last >= route.queue.count:
            return False
        if last < route.queue.min_offset:
            return True
        (found,) = queue_unit.read(route.queue.read(last, 1))
        return int(found["log_offset"]) == cache.log_offset

    def completed(self) -> None:
        """Save the ledger after a checkpoint, if enough records were added."""
        route, mark = self._route, self._checkpoint.completed
        if route is None or mark is None or not self._lock.acquire(blocking=False):
            return
        try:
            lag = route.queue.count - self._saved_offset
            if lag > _LAG_MAX or (mark.is_clean and lag):
                self._save(route, mark.log_end)
        except FullError:
            pass
        finally:
            self._lock.release()

    def _save(self, route: Route, durable: int) -> None:
        ledger = Ledger()  # not the store's own, which includes records that are not durable
        offset = self.read(ledger, self._restore(ledger), durable)
        if offset <= self._saved_offset:
            return
        units = queue_unit.read(route.queue.read(offset - 1, 1))
        states = tuple(ledger.state(source) for source in ledger.sources())
        cache = LedgerCache(self._store_id, offset, int(units["log_offset"][0]), states)
        self._disk.write_small(self._path, ledger_cache.write(cache))
        self._saved_offset = offset
        reach("ingest_ledger_saved")
