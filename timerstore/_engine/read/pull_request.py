"""The arguments of one pull, as a value."""

from dataclasses import dataclass

from timerstore.errors import MessageError, plain, quoted


@dataclass(slots=True)
class PullRequest:
    """The arguments of StoreApi.pull."""

    topic: str
    queue_id: int
    offset: int
    max_count: int
    wait: float
    tags: str | None
    sql: str | None
    shard: int | None

    def __post_init__(self) -> None:
        self.topic, self.tags, self.sql = plain(self.topic), plain(self.tags), plain(self.sql)
        self.queue_id, self.offset = plain(self.queue_id), plain(self.offset)
        self.max_count, self.shard = plain(self.max_count), plain(self.shard)
        self.wait = plain(self.wait)


def refuse_shard(shard: object) -> None:
    """Raise MessageError if a shard is named to a store that has none."""
    if shard is not None:
        raise MessageError(f"shard: this store has no shards, got {quoted(shard)}")
