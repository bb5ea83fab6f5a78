"""Cache: the ledger in a side file, so that an opening reads the last headers only.

Threads:  opening; then whoever completed a checkpoint, one at a time.
Locks:    `_lock` over a save.
Holds:    what is saved is a fold of records that are durable: never of what an ingest has appended
          and not synced.
Fails:    nothing: without room on the disk it stays as it was, and the next checkpoint tries again.
"""

from timerstore.errors import FullError
from timerstore.failpoint import reach
from timerstore.ingest.ledger import Ledger
from timerstore.layout import ledger_cache, queue_unit
from timerstore.layout.ledger_cache import LedgerCache
from timerstore.layout.tree import INGEST_TOPIC
from timerstore.native import Lock
from timerstore.opening import Opened
from timerstore.owner import Owner
from timerstore.queues.routes import Route

_READ_COUNT = 4096
_BEHIND_MAX = 1024  # records that an opening may find behind the file


class Cache(Owner):
    """The side file of one store's ledger."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._lock = Lock(wide=True)
        self._path = opened.directory.tree.ingest_ledger
        self._saved_offset = 0

    def load(self, ledger: Ledger) -> int:
        """Fold everything that is known into an empty ledger; the queue offset behind it."""
        cache = ledger_cache.read(self._opened.disk.read_small(self._path))
        offset = 0
        if cache is not None and self._fits(cache):
            for state in cache.sources:
                ledger.restore(state)
            offset = self._saved_offset = cache.queue_offset
        return self.read(ledger, offset)

    def read(self, ledger: Ledger, offset: int) -> int:
        """Fold the durable records from a queue offset on; where they end."""
        route = self._route
        while route is not None:
            page = self._opened.puller.batch(route, offset, _READ_COUNT, 0.0)
            for message in page:
                ledger.fold(message.body)
            if page.next_offset <= offset:
                break
            offset = page.next_offset
        return offset

    @property
    def _route(self) -> Route | None:
        return self._opened.rooms.routes.get(INGEST_TOPIC, 0)

    def _fits(self, cache: LedgerCache) -> bool:
        """Whether it is of this store, and of this queue: a log that was put back has a shorter
        one, or another record there. Of what retention dropped nothing can be asked.
        """
        route, last = self._route, cache.queue_offset - 1
        if route is None or cache.store_id != self._opened.store_id or last >= route.queue.count:
            return False
        if last < route.queue.min_offset:
            return True
        (found,) = queue_unit.read(route.queue.read(last, 1))
        return int(found["log_offset"]) == cache.log_offset

    def completed(self) -> None:
        """A checkpoint is complete: save where it is worth it."""
        route, mark = self._route, self._opened.checkpoint.completed
        if route is None or mark is None or not self._lock.acquire(blocking=False):
            return
        try:
            behind = route.queue.count - self._saved_offset
            if behind > _BEHIND_MAX or (mark.is_clean and behind):
                self._save(route)
        except FullError:
            pass
        finally:
            self._lock.release()

    def _save(self, route: Route) -> None:
        ledger = Ledger()  # a second one: what is known beyond what is durable is not in it
        offset = self.load(ledger)
        if offset <= self._saved_offset:
            return
        units = queue_unit.read(route.queue.read(offset - 1, 1))
        states = tuple(ledger.state(source) for source in ledger.sources())
        cache = LedgerCache(self._opened.store_id, offset, int(units["log_offset"][0]), states)
        self._opened.disk.write_small(self._path, ledger_cache.write(cache))
        self._saved_offset = offset
        reach("ingest_ledger_saved")
