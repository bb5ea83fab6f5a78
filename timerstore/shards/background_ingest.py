"""Ingest committed rows into open shards, on request or periodically, and remove old staging.

Thread safety: any thread may call; one pass runs at a time.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable, weakly
from timerstore.errors import BucketError, ClosedError, ConfigError, quoted
from timerstore.shards.bucket_binding import BucketSource
from timerstore.shards.folder_staging import FolderStaging
from timerstore.shards.janitor import clean, prune
from timerstore.shards.shard_calls import WORKERS_MAX
from timerstore.shards.shard_ingest import Ingested, IngestService, ShardIngester, every
from timerstore.shards.staging_area import CommittedVersions, StagingArea
from timerstore.store import TimerStore
from timerstore.types.clock import SystemClock

_log = logging.getLogger("timerstore.shards")

_CLEAN_EVERY_NS = 3600 * 10**9

Pass = Callable[[TimerStore], list[Ingested]]
CallSome = Callable[[dict[int, Pass], ThreadPoolExecutor], list[list[Ingested]]]


class BackgroundIngest(NotCopyable):
    """The ingest of all shards from one place."""

    def __init__(
        self,
        root: Path,
        stores: Sequence[TimerStore],
        call_some: CallSome,
        bucket: BucketSource | None = None,
    ) -> None:
        """`bucket`: ingest from there instead of from the directory."""
        self._area: StagingArea = bucket.area if bucket is not None else FolderStaging(root)
        self._bucket = bucket
        self._stores = stores
        self._call_some = call_some
        self._pool = ThreadPoolExecutor(
            min(len(stores), WORKERS_MAX), thread_name_prefix="timerstore-ingest"
        )
        self.ingesters = [
            ShardIngester(root, {shard: store}, self._area) for shard, store in enumerate(stores)
        ]
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
            if self._bucket is not None:
                self._bucket.bind()
            now_ms = SystemClock().now_ms
            # One listing of a bucket serves all shards: each is paid for.
            committed = self._area.committed()
            found = self._call_some(
                {
                    shard: partial(_run, one, now_ms, committed)
                    for shard, one in enumerate(self.ingesters)
                },
                self._pool,
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
        if self._bucket is not None and not self._bucket.is_bound:
            return  # it may belong to another directory, whose ledger this one does not have
        now_ns = SystemClock().monotonic_ns
        if now_ns >= self._clean_ns:
            self._clean_ns = now_ns + _CLEAN_EVERY_NS
            clean(self._area)
            prune(self._area, self.is_ingested)

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

    def shut_pool(self) -> None:
        """End the threads that ingest, when the shards are closed."""
        self._pool.shutdown()

    def request_stop(self) -> None:
        """Stop the thread, and end a running pass early. Do not wait."""
        self._stop_passes()
        if self._service is not None:
            self._service.request_stop()

    def _stop_passes(self) -> None:
        for one in self.ingesters:
            one.stop()


def _run(
    ingester: ShardIngester, now_ms: int, committed: CommittedVersions, _store: TimerStore
) -> list[Ingested]:
    return ingester.run(now_ms, committed)


class IngestOfAll(NotCopyable):
    """The ingest of all shards, from their directory and from a bucket.

    Each place has a thread of its own: a bucket that does not answer delays only its own rows.
    """

    def __init__(
        self,
        root: Path,
        stores: Sequence[TimerStore],
        call_some: CallSome,
        bucket: BucketSource | None,
    ) -> None:
        self._bucket = bucket
        self._places = [BackgroundIngest(root, stores, call_some)]
        if bucket is not None:
            self._places.append(BackgroundIngest(root, stores, call_some, bucket))

    def bind(self) -> None:
        """Bind the bucket. If it does not answer, the next pass does it."""
        if self._bucket is None:
            return
        try:
            self._bucket.bind()
        except BucketError as error:
            if not error.retryable:
                raise
            _log.warning("event=bucket_unreachable error=%s", error)

    def start(self, every_s: float) -> None:
        """Run a pass over each place every `every_s` seconds."""
        for one in self._places:
            one.start(every_s)

    def run(self) -> list[Ingested]:
        """Run one pass over each place. Raise the first error after all of them."""
        return [done for part in every(BackgroundIngest.run, self._places) for done in part]

    def wake(self) -> None:
        """Start the next passes now."""
        for one in self._places:
            one.wake()

    @property
    def error(self) -> str:
        """The error of the last pass of a thread, or ""."""
        return next((one.error for one in self._places if one.error), "")

    def stop(self) -> None:
        """Stop the threads, and end running passes early. Wait for them."""
        self.request_stop()
        for one in self._places:
            one.stop()

    def shut_pools(self) -> None:
        """End the threads that ingest, when the shards are closed."""
        for one in self._places:
            one.shut_pool()

    def request_stop(self) -> None:
        """Stop the threads, and end running passes early. Do not wait."""
        for one in self._places:
            one.request_stop()


def check_interval(every_s: object) -> None:
    """Raise ConfigError unless this is a valid `ingest_every`."""
    is_number = isinstance(every_s, int | float) and not isinstance(every_s, bool)
    if every_s is not None and not (is_number and 0.01 <= every_s <= 86_400):  # type: ignore[operator]
        raise ConfigError(f"ingest_every: wanted 0.01 to 86400 s or None, got {quoted(every_s)}")
