"""The arguments of one pull, as a value."""

from dataclasses import dataclass
from typing import Any

from timerstore._engine.base.argument_types import whole
from timerstore.errors import MessageError, quoted


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

    def numbers(self) -> tuple[Any, Any, Any]:
        """Return queue_id, offset and max_count: whole numbers of any type as int.

        Other values are returned unchanged; the check of the arguments rejects them.
        """
        queue_id, offset, max_count = (
            one if type(one) is int or (number := whole(one)) is None else number
            for one in (self.queue_id, self.offset, self.max_count)
        )
        return queue_id, offset, max_count


def refuse_shard(shard: object) -> None:
    """Raise MessageError if a shard is named to a store that has none."""
    if shard is not None:
        raise MessageError(f"shard: this store has no shards, got {quoted(shard)}")
