"""Ingest committed rows into open shards, on request or periodically, and remove old staging.

Thread safety: any thread may call; one pass runs at a time.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from timerstore._engine.base.closing import weakly
from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import Owner
from timerstore.clock import SystemClock
from timerstore.errors import ClosedError
from timerstore.shards.janitor import clean, prune
from timerstore.shards.shard_ingest import Ingested, IngestService, ShardIngester
from timerstore.store import TimerStore

_CLEAN_EVERY_NS = 3600 * 10**9

Pass = Callable[[TimerStore], list[Ingested]]


class BackgroundIngest(Owner):
    """The ingest of all shards of one directory."""

    def __init__(
        self,
        root: Path,
        stores: Sequence[TimerStore],
        call_some: Callable[[dict[int, Pass]], list[list[Ingested]]],
    ) -> None:
        self._root = root
        self._stores = stores
        self._call_some = call_some
        self.ingesters = [ShardIngester(root, {shard: store}) for shard, store in enumerate(stores)]
        self._lock = Lock()
        self._clean_ns = 0  # the next clean-up, by the machine's monotonic clock
        self._service: IngestService | None = None

    def start(self, every_s: float) -> None:
        """Run a pass every `every_s` seconds, in a thread of its own."""
        self._service = IngestService(weakly(self.run_and_clean), every_s)
        self._service.start()

    def run(self) -> list[Ingested]:
        """Run one pass over all shards at once."""
        with self._lock:
            now_ms = SystemClock().now_ms
            found = self._call_some(
                {shard: partial(_run, one, now_ms) for shard, one in enumerate(self.ingesters)}
            )
        return [one for part in found for one in part]

    def run_and_clean(self) -> None:
        """Run one pass, and remove old staging once an hour. Clean up even if the pass failed: the
        error of one source may last for days.
        """
        try:
            self.run()
        except ClosedError:
            raise
        except Exception as error:
            try:
                self._clean_up()
            except Exception as other:  # noqa: BLE001 - one error can be raised
                error.add_note(f"and then: {other!r}")
            raise
        self._clean_up()

    def _clean_up(self) -> None:
        now_ns = SystemClock().monotonic_ns
        if now_ns >= self._clean_ns:
            self._clean_ns = now_ns + _CLEAN_EVERY_NS
            clean(self._root)
            prune(self._root, self.is_ingested)

    def is_ingested(self, source: str, version: int) -> bool:
        """Return whether every shard has all its rows of a version."""
        return all(version in store.ingested(source) for store in self._stores)

    def wake(self) -> None:
        """Start the next pass of the thread now."""
        if self._service is not None:
            self._service.wake()

    @property
    def error(self) -> str:
        """The error of the last pass of the thread, or ""."""
        return "" if self._service is None else self._service.error

    def stop(self) -> None:
        """Stop the thread, and end a running pass early. Wait for it."""
        self._stop_passes()
        if self._service is not None:
            self._service.stop()

    def request_stop(self) -> None:
        """Stop the thread, and end a running pass early. Do not wait."""
        self._stop_passes()
        if self._service is not None:
            self._service.request_stop()

    def _stop_passes(self) -> None:
        for one in self.ingesters:
            one.stop()


def _run(ingester: ShardIngester, now_ms: int, _store: TimerStore) -> list[Ingested]:
    return ingester.run(now_ms)
