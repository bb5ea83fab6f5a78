"""One shard of a ShardedStore, with its model.

Invariants:
    1. Every put of this object goes to this shard: numbers of bodies, names and keys are chosen to
       lead there.
    2. Disk, clock and death are those of the whole.
"""

import zlib
from typing import Any

from tests.sim.operations import Operations
from tests.sim.shards.facet import Facet
from tests.sim.shards.readers import PartOfReaders
from tests.support.driver import key_of
from tests.support.models.dedupe import Onces
from tests.support.models.messages import Queue
from timerstore import StoreConfig

_NAMES = 8  # more ids than one shard gives in a schedule


def _of_whole(name: str) -> Any:
    """The state that all shards share."""
    return property(
        lambda self: getattr(self.cluster, name),
        lambda self, value: setattr(self.cluster, name, value),
    )


class Shard(Operations):
    """A world that shares disk, clock and death with others."""

    allocations, clock, disk = _of_whole("allocations"), _of_whole("clock"), _of_whole("disk")
    is_dead, _is_open = _of_whole("is_dead"), _of_whole("_is_open")
    counts, reached = _of_whole("counts"), _of_whole("reached")
    may_scan_all, shown_ms = _of_whole("may_scan_all"), _of_whole("shown_ms")
    _number = _of_whole("number")

    def __init__(self, cluster: Any, shard: int, config: StoreConfig, *, is_small: bool) -> None:
        self.cluster = cluster
        self.shard = shard
        super().__init__(config, cluster.allocations, is_small=is_small)
        self.readers: Any = PartOfReaders(cluster.readers, shard)
        self.onces: Onces = cluster.onces
        self._named: dict[bytes, str] = {}  # a message without a key is routed by its id

    def _begin_life(self, allocations: Any) -> None:
        self.was_cut = self.has_failed = False

    def store_path(self) -> Any:
        return super().store_path() / f"shard-{self.shard:05d}"

    def after_error(self, error: Exception, seed: int) -> None:
        raise AssertionError("the whole takes errors") from error

    # --- routing ---

    def leads_here(self, key: str) -> bool:
        """Return whether a key leads to this shard, by the rule that the API promises."""
        return zlib.crc32(key.encode()) % len(self.cluster.shards) == self.shard

    def new_body(self, size: int) -> bytes:
        while not self.leads_here(key_of(body := super().new_body(size))):
            pass
        return body

    def any_body(self, size: int, name: str = "") -> bytes:
        """Return a body without a key. Its number leads to no shard, because its id decides."""
        body = super().new_body(size)
        self.note_name(body, name)
        return body

    def note_name(self, body: bytes, name: str) -> None:
        """Record a message id, which is the only key of its message."""
        self._named[body] = name

    def _key_of(self, body: bytes) -> str:
        return self._named.get(body) or super()._key_of(body)

    def first_here(self, name: str) -> str:
        names = (f"{name}-{k}" for k in range(10_000))
        return next(one for one in names if self.leads_here(one))

    def _round_key(self, queue: Queue, which: int) -> str:
        return self.first_here(super()._round_key(queue, which))

    def _job_name(self, which: int) -> str:
        return self.first_here(super()._job_name(which))

    def op_put_once(self, queue: list[Any], which: int, due: Any, size: Any) -> None:
        super().op_put_once(queue, which + _NAMES * self.shard, due, size)

    def op_put_many_once(self, queue: list[Any], items: list[Any]) -> None:
        own = [[which + _NAMES * self.shard, due, size] for which, due, size in items]
        super().op_put_many_once(queue, own)

    # --- deaths, common to all shards ---

    def opened(self, *, was_cut: bool, has_failed: bool) -> None:
        """Continue after all shards were opened again."""
        self.was_cut |= was_cut
        self.has_failed |= has_failed

    @property
    def facet(self) -> Facet:
        """Return the ShardedStore as this shard."""
        found: Any = self.store
        assert isinstance(found, Facet)
        return found

    # --- operations of the whole ---

    def _limit_turns(self) -> None:
        self.clock.turn_ms_max = min(one.ticks.turn_ms_max for one in self.cluster.shards)

    def readers_finish(self) -> None:
        """Do nothing: the whole group reads all shards."""
