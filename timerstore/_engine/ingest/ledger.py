"""Ledger: which versions of which source are in the log, and how far those are that were begun.

Data:     format/ledger_json.py, in the queue of a system topic.
Threads:  any; `ingested` may run beside an ingest.
Locks:    `_lock` for the table, nothing else under it; a source's `turn` for a whole ingest.
Holds:    it is the fold of the headers in the log, in their order, and each header was appended in
          one group with its rows; so what it says is in the log is, and nothing else.
Fails:    FormatVersionError on a record of a later release.
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
"""Complete versions of a source of which row count and digest are kept, the highest ones and the
last completed one; of all others only that they are complete."""


class Known(NamedTuple):
    """What is known of one version."""

    is_complete: bool
    chunk_count: int = 0
    row_count: int = 0
    digest: int = 0
    end: int = 0  # log offset: durable when the log is, up to here


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
            # Not of the one that was just completed: its end says that it is not durable yet.
            del self.details[min(one for one in self.details if one != version)]


class Ledger(Owner):
    """Every source of one store."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sources: dict[str, _Source] = {}

    def turn(self, source: str) -> Any:
        """Give the lock that an ingest of this source holds: one at a time."""
        with self._lock:
            return self._sources.setdefault(source, _Source()).turn

    def find(self, source: str, version: int) -> Known | None:
        """Give what is known of a version; a row count of -1: complete, and no more is kept."""
        with self._lock:
            one = self._sources.get(source)
            return one.find(version) if one is not None else None

    def note(self, header: ChunkHeader, end: int) -> Known:
        """A chunk is in the log, up to the offset `end`."""
        known = Known(header.last, header.chunk + 1, header.rows_so_far, header.digest, end)
        with self._lock:
            self._sources.setdefault(header.source, _Source()).note(header.version, known)
        return known

    def fold(self, body: bytes) -> None:
        """Take in the next record of the ledger's topic; it is durable. What a client of a broker
        put there is left alone.
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
        """Take in what was known of a source; nothing that is known already is taken back."""
        with self._lock:
            one = self._sources.setdefault(state.source, _Source())
            for done in state.done:
                one.note(done.version, Known(True, 0, done.row_count, done.digest))
            for begin, end in state.versions:
                one.complete.add_range(begin, end)
            for begun in state.open:
                one.note(begun.version, Known(False, *begun[1:]))

    def state(self, source: str) -> SourceState:
        """Give all that is known of a source."""
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
        """Name every source of which anything is known."""
        with self._lock:
            return sorted(n for n, one in self._sources.items() if one.complete or one.begun)

    def ingested(self, source: str, durable: int) -> IngestedVersions:
        """Give the versions that are complete, as far as they are durable."""
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
