"""Requests of pulls: the arguments of one call, as a value."""

from dataclasses import dataclass


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
