"""Save the ledger in a side file, so that opening a store reads only the last headers.

Thread safety: used while a store is opened; then by the thread that completed a checkpoint.
Locking: `_lock` during a save.
Invariants:
    1. The saved ledger covers only records below the log end of a completed checkpoint. So these
       are durable, whatever `visibility` the store has.
    2. A file that does not fit the queue is removed at opening, durably, before anything is
       appended. Otherwise later records could make it seem to fit.
Raises: nothing. On a full disk the file stays as it was, and the next checkpoint tries again.
"""

from timerstore._engine.base.failpoints import reach
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore._engine.format import ledger_cache, queue_unit
from timerstore._engine.format.ledger_cache import LedgerCache
from timerstore._engine.format.store_paths import INGEST_TOPIC
from timerstore._engine.ingest.ledger import Ledger
from timerstore._engine.log.commit_log import CommitLog
from timerstore._engine.queues.routes import Route, Routes
from timerstore._engine.read.pull import Puller
from timerstore._engine.storage.directory import Directory
from timerstore._engine.storage.disk import Disk
from timerstore._engine.timer.checkpoint import Checkpoint
from timerstore.errors import FullError

_READ_COUNT = 4096
_LAG_MAX = 1024  # records past the file that an opening may have to read


class LedgerSideFile(Owner):
    """The side file of one store's ledger."""

    def __init__(
        self,
        log: CommitLog,
        routes: Routes,
        disk: Disk,
        puller: Puller,
        store_id: int,
        checkpoint: Checkpoint,
        directory: Directory,
    ) -> None:
        self._lock = Lock()
        self._path = directory.tree.ingest_ledger
        self._saved_offset = 0
        self._log = log
        self._routes = routes
        self._disk = disk
        self._puller = puller
        self._store_id = store_id
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
            page = self._puller.batch(route, offset, count, 0.0)
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
