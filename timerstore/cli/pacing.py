"""pace: deliver what is due, of some topics at most so fast, while the command runs."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from timerstore._engine.snapshot.store_summary import look
from timerstore._engine.storage.disk import Disk
from timerstore.cli.opening import Store, opened, require, stores_in
from timerstore.cli.output import emit, note, say
from timerstore.cli.params import SPAN, config_of, config_option, json_option, path_argument
from timerstore.cli.stopping import stopping
from timerstore.cli.text import plural
from timerstore.clock import SystemClock
from timerstore.config import StoreConfig, parse_topic_rates
from timerstore.shards import cluster
from timerstore.shards.kinds import Kind

_LOOK_S = 0.25


@click.command("pace")
@path_argument
@click.argument("rates", nargs=-1, required=True, metavar="TOPIC=RATE...")
@click.option("--for", "within", type=SPAN, help="End after this time.")
@click.option("--drain", is_flag=True, help="End when nothing of these topics is due any more.")
@config_option
@json_option
def pace_command(
    path: Path,
    rates: tuple[str, ...],
    within: timedelta | None,
    drain: bool,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Open the store and deliver, of each TOPIC at most RATE messages a second, until Ctrl-C.

    For a crowd that came due while nobody had the store open. Later, never early, in order; all
    other topics come when they are due. The store keeps no rate: it holds while this runs. A
    process that has the store open calls `store.pace(topic, rate)`, or opens it with `topic_rates`;
    this one gets exit code 3 then.
    """
    config = _paced(path, " ".join(rates), config_of(settings))
    topics = parse_topic_rates(config.topic_rates)
    with stopping() as stop:
        before, _ = _counts(path)
        with opened(path, config) as store:
            stop.end_within(within)
            waiting = store.stats()["pending_by_topic"]
            count = sum(waiting.get(topic, 0) for topic in topics)
            note(f"pacing {config.topic_rates}: {plural(count, 'message')} to come; Ctrl-C ends")
            while not stop.wait(_LOOK_S):
                if drain and not _is_any_due(store, topics):
                    break
        came, left = _counts(path)
        for topic, rate in topics.items():
            told = {"came": came[topic] - before[topic], "waiting": left[topic]}
            if as_json:
                emit({"topic": topic, "per_second": rate, **told})
            else:
                say(f"{topic}: {told['came']:,} came, {told['waiting']:,} wait")


def _paced(path: Path, rates: str, config: StoreConfig | None) -> StoreConfig:
    """The configuration with these rates from the first moment on; ConfigError on what is none."""
    if config is None:
        is_shards = require(path, Kind.STORE, Kind.SHARDS) is Kind.SHARDS
        config = cluster.require(Disk(), path).config if is_shards else StoreConfig()
    return replace(config, topic_rates=rates)


def _counts(path: Path) -> tuple[Counter[str], Counter[str]]:
    """How many came to each topic so far, and how many wait, as of the last checkpoint."""
    came: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for one in stores_in(path).values():
        counts = look(one).counts
        if counts is not None:  # else a broker's, or nothing was put yet
            came.update({topic: sum(ends.values()) for topic, ends in counts.ends.items()})
            left.update({topic: sum(some.values()) for topic, some in counts.pending.items()})
    return came, left


def _is_any_due(store: Store, topics: dict[str, float]) -> bool:
    end_ms = SystemClock().now_ms + 1
    return any(any(True for _ in store.pending(end_ms=end_ms, topic=topic)) for topic in topics)
