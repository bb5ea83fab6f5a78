"""Shards."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def shard_consumers(consumer: Any) -> Any:
    """Return the consumers of the shards, by shard, of a consumer of all."""
    return consumer._consumers


def ingesters_of(shards: Any) -> Any:
    """Return the ingesters of committed versions, one for each shard."""
    return shards._ingesters


def is_ingested(shards: Any) -> Callable[[str, int], bool]:
    """Return the method that tests whether every shard has a version of a source."""
    found: Callable[[str, int], bool] = shards._is_ingested
    return found


def ingest_in_background(shards: Any) -> None:
    """Run one turn of the shards' background thread."""
    shards._look()
