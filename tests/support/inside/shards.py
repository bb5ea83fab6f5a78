"""Shards."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def shard_consumers(consumer: Any) -> Any:
    """The consumers of the shards, by shard, behind a consumer of all."""
    return consumer._consumers


def ingesters_of(shards: Any) -> Any:
    """What ingests committed versions, one for each shard."""
    return shards._ingest.ingesters


def is_ingested(shards: Any) -> Callable[[str, int], bool]:
    """The method that tells whether every shard has a version of a source."""
    found: Callable[[str, int], bool] = shards._ingest.is_ingested
    return found


def ingest_in_background(shards: Any) -> None:
    """Do what the shards' background does in one turn."""
    shards._ingest.run_and_clean()
