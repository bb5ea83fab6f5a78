"""Command `pace`: deliver due messages, with a rate limit for some topics."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from timerstore._engine.snapshot.live_stats import counted, look
from timerstore._engine.storage.disk import Disk
from timerstore.cli.opening import Store, connected, opened, require, stores_in
from timerstore.cli.output import emit, note, say
from timerstore.cli.params import (
    SPAN,
    StorePlace,
    StoreUrl,
    config_of,
    config_option,
    json_option,
    store_argument,
)
from timerstore.cli.served import topics_of
from timerstore.cli.stopping import Stop, stopping
from timerstore.cli.text import plural
from timerstore.shards import cluster
from timerstore.shards.kinds import Kind
from timerstore.store import ConnectedStore
from timerstore.types.clock import SystemClock
from timerstore.types.config import StoreConfig, parse_topic_rates

_LOOK_S = 0.25


@click.command("pace")
@store_argument
@click.argument("rates", nargs=-1, required=True, metavar="TOPIC=RATE...")
@click.option("--for", "within", type=SPAN, help="Exit after this time.")
@click.option("--drain", is_flag=True, help="Exit when no message of these topics is due.")
@config_option
@json_option
def pace_command(
    path: StorePlace,
    rates: tuple[str, ...],
    within: timedelta | None,
    drain: bool,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Open the store and deliver at most RATE messages a second of each TOPIC, until Ctrl-C.

    Use it for a burst that came due while the store was closed. The limit delays messages and keeps
    their order; no message is early. Other topics are delivered when they are due. The limit
    applies while the command runs; the store does not keep it.

    No other process may have the store open. A process that has it open calls
    `store.pace(topic, rate)`, or opens it with `topic_rates`. With the address of its server the
    command sets the limits there, and removes them when it ends.
    """
    text, given = " ".join(rates), config_of(settings)
    with stopping() as stop:
        stop.end_within(within)
        if isinstance(path, StoreUrl):
            topics = parse_topic_rates(replace(StoreConfig(), topic_rates=text).topic_rates)
            before, delivered, left = _pace_served(path, given, topics, stop, drain=drain)
        else:
            config = _with_rates(path, text, given)
            topics = parse_topic_rates(config.topic_rates)
            before, _ = _counts(path)
            with opened(path, config) as store:
                _wait(store, topics, stop, drain=drain)
            delivered, left = _counts(path)
        for topic, rate in topics.items():
            counts = {"came": delivered[topic] - before[topic], "pending": left[topic]}
            if as_json:
                emit({"topic": topic, "per_second": rate, **counts})
            else:
                say(f"{topic}: {counts['came']:,} delivered, {counts['pending']:,} pending")


def _pace_served(
    place: StoreUrl,
    config: StoreConfig | None,
    topics: dict[str, float],
    stop: Stop,
    *,
    drain: bool,
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Limit the topics of a served store. Return the counts before, of deliveries and pending."""
    with connected(place, config) as store:
        before, _ = _served_counts(store)
        try:
            for topic, rate in topics.items():
                store.pace(topic, rate)
            _wait(store, topics, stop, drain=drain)
            return before, *_served_counts(store)
        finally:
            for topic in topics:
                store.pace(topic, None)


def _served_counts(store: ConnectedStore) -> tuple[Counter[str], Counter[str]]:
    found = topics_of(store)
    return (
        Counter({name: one.delivered for name, one in found.items()}),
        Counter({name: one.pending for name, one in found.items()}),
    )


def _wait(store: Store, topics: dict[str, float], stop: Stop, *, drain: bool) -> None:
    waiting = store.stats()["pending_by_topic"]
    count = sum(waiting.get(topic, 0) for topic in topics)
    rates = " ".join(f"{topic}={rate:g}" for topic, rate in topics.items())
    note(f"pacing {rates}: {plural(count, 'message')} pending; Ctrl-C ends")
    while not stop.wait(_LOOK_S):
        if drain and not _is_any_due(store, topics):
            return


def _with_rates(path: Path, rates: str, config: StoreConfig | None) -> StoreConfig:
    """Return the configuration with these rates; raise ConfigError if a rate is invalid."""
    if config is None:
        is_shards = require(path, Kind.STORE, Kind.SHARDS) is Kind.SHARDS
        config = cluster.require(Disk(), path).config if is_shards else StoreConfig()
    return replace(config, topic_rates=rates)


def _counts(path: Path) -> tuple[Counter[str], Counter[str]]:
    """Return the delivered and the pending messages of each topic."""
    delivered: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for one in stores_in(path).values():
        found = counted(look(one))
        for topic in found.topics:
            delivered[topic] += found.end(topic) or 0
            left[topic] += found.pending(topic) or 0
    return delivered, left


def _is_any_due(store: Store, topics: dict[str, float]) -> bool:
    end_ms = SystemClock().now_ms + 1
    return any(any(True for _ in store.pending(end_ms=end_ms, topic=topic)) for topic in topics)
