"""Call several shards at once, and close them.

Thread safety: any thread may call. Calls to several shards run in a small thread pool; ingest
brings a pool of its own, because it may take long.
Raises: as TimerStore; errors name the shard. Of several errors, the first is raised after all calls
have ended.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from timerstore._engine.base.owner import Closing
from timerstore.errors import ClosedError, MessageError, TimerStoreError, quoted
from timerstore.store import TimerStore
from timerstore.types.clock import Clock

Answer = TypeVar("Answer")

WORKERS_MAX = 8


class ShardCalls(Closing):
    """The open shards of a directory, and the thread pools that call them."""

    def __init__(self, stores: Sequence[TimerStore], clock: Clock) -> None:
        self.stores = tuple(stores)
        """The store of each shard, by number."""
        self._clock = clock
        workers = min(len(self.stores), WORKERS_MAX)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="timerstore-shards")

    @property
    def shard_count(self) -> int:
        """The number of shards."""
        return len(self.stores)

    def _in(self, shard: int, call: Callable[[TimerStore], Answer]) -> Answer:
        """Call one shard."""
        try:
            return call(self.stores[shard])
        except TimerStoreError as error:
            raise named(error, shard) from error.__cause__

    def _in_all(self, call: Callable[[TimerStore], Answer]) -> list[Answer]:
        """Call every shard at once. Return the results by shard."""
        return self._in_some(dict.fromkeys(range(len(self.stores)), call))

    def _in_some(
        self,
        calls: Mapping[int, Callable[[TimerStore], Answer]],
        pool: ThreadPoolExecutor | None = None,
    ) -> list[Answer]:
        """Call some shards at once. Return the results in the order of `calls`."""
        if len(calls) == 1:
            return [self._in(shard, call) for shard, call in calls.items()]
        self.stores[0].topics()  # raises if closed or forked: a forked child has no pool
        pool = pool if pool is not None else self._pool
        futures: list[Future[Answer]] = []
        try:
            for shard, call in calls.items():
                futures.append(self._start(pool, shard, call))
        except ClosedError:
            for future in futures:
                future.exception()  # waits until it has ended
            raise
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def _start(
        self, pool: ThreadPoolExecutor, shard: int, call: Callable[[TimerStore], Answer]
    ) -> "Future[Answer]":
        """Call a shard in the pool. While the interpreter ends, pools accept no work although other
        threads still run: then call in this thread. Raise ClosedError if the store is closed.
        """
        try:
            return pool.submit(self._in, shard, call)
        except RuntimeError:
            self.stores[0].topics()
            return _completed(partial(self._in, shard, call))

    def _checked(self, shard: object) -> int:
        if type(shard) is not int or not 0 <= shard < len(self.stores):
            raise MessageError(f"shard: wanted 0 to {len(self.stores) - 1}, got {quoted(shard)}")
        return shard

    def _shut_pool(self) -> None:
        self._pool.shutdown()


def named(error: TimerStoreError, shard: int) -> TimerStoreError:
    """Prefix the text of an error with its shard, unless it names one already."""
    text = str(error)
    if not text.startswith("shard "):
        error.args = (f"shard {shard}: {text}",)
    return error


def close_all(stores: Iterable[TimerStore]) -> list[BaseException]:
    """Close each store, whatever closing another one raises. Return the errors."""
    errors: list[BaseException] = []
    for shard, store in enumerate(stores):
        try:
            store.close()
        except TimerStoreError as error:
            errors.append(named(error, shard))
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            errors.append(error)
    return errors


def _completed(call: Callable[[], Answer]) -> "Future[Answer]":
    """Call in this thread, and return the result as a completed future."""
    future: Future[Answer] = Future()
    try:
        future.set_result(call())
    except Exception as error:  # noqa: BLE001 - of one shard: the others are called as well
        future.set_exception(error)
    return future
