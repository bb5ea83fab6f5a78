"""Shards."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from timerstore.shards.background_ingest import BackgroundIngest
from timerstore.shards.shard_ingest import every


def shard_consumers(consumer: Any) -> Any:
    """The consumers of the shards, by shard, behind a consumer of all."""
    return consumer._consumers


def ingesters_of(shards: Any) -> Any:
    """What ingests the versions of the directory, one for each shard."""
    return shards._ingest._places[0].ingesters


def is_ingested(shards: Any) -> Callable[[str, int], bool]:
    """The method that tells whether every shard has a version of a source."""
    found: Callable[[str, int], bool] = shards._ingest._places[0].is_ingested
    return found


def ingest_in_background(shards: Any) -> None:
    """Do what the background threads of all places do in one turn."""
    every(BackgroundIngest.run_and_clean, shards._ingest._places)
