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
from collections import OrderedDict
from typing import Any, NamedTuple

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.format.ledger_json import Begun, ChunkHeader, Done, SourceState, read
from timerstore._engine.ingest.row_batch import IngestedVersions
from timerstore._engine.ingest.version_set import VersionSet
from timerstore.errors import CorruptError, FormatVersionError

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


class _Source(Owner):
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


class Ledger(Owner):
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
