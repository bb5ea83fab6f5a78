"""Requests of pulls: the arguments of one call, as a value."""

from dataclasses import dataclass

from timerstore.errors import MessageError, quoted


@dataclass(slots=True)
class PullRequest:
    """Messages of one queue from an offset on. Fields are those of StoreApi.pull."""

    topic: str
    queue_id: int
    offset: int
    max_count: int
    wait: float
    tags: str | None
    sql: str | None
    shard: int | None


def refuse_shard(shard: object) -> None:
    """Raise MessageError if a shard is named to a store that has none."""
    if shard is not None:
        raise MessageError(f"shard: this store has no shards, got {quoted(shard)}")
