"""Families: what `stats()` says, in the words of those who scrape it: names, kinds, labels.

Names are `timerstore_` and the name in metrics.py; those of counters end in `_total`.

Threads:  any.
Holds:    every name in metrics.py is one family, and there is no other.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from timerstore._engine.base.metrics import COUNTERS, DISTRIBUTIONS, GAUGES, SINCE_OPENING
from timerstore.errors import ClosedError, ForkedError

TOPICS_MAX = 500
OTHER_TOPICS = "(other)"
"""The topic that stands for all but the largest: each is a series of its own where it is kept."""


class Family(NamedTuple):
    """A metric as it is exported."""

    name: str
    kind: str
    """counter, gauge or histogram."""
    help: str
    stat: str
    """Its name in `stats()`."""
    labels: tuple[str, ...] = ()


def _family(stat: str, kind: str, told: str) -> Family:
    name = f"timerstore_{stat}" + ("_total" if kind == "counter" else "")
    return Family(name, kind, told, stat, ("topic",) if stat == "pending_by_topic" else ())


FAMILIES = (
    *(_family(stat, "counter", told) for stat, told in COUNTERS.items()),
    *(
        _family(stat, "counter" if stat in SINCE_OPENING else "gauge", told)
        for stat, told in GAUGES.items()
    ),
    *(_family(stat, "histogram", told) for stat, (told, _) in DISTRIBUTIONS.items()),
)
"""All of them."""


def topics_of(by_topic: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Give the topics with most, and what the others have together."""
    ordered = sorted(by_topic.items(), key=lambda one: (-one[1], one[0]))
    yield from ordered[:TOPICS_MAX]
    if rest := ordered[TOPICS_MAX:]:
        yield OTHER_TOPICS, sum(count for _, count in rest)


def buckets_of(told: Mapping[Any, float]) -> list[tuple[str, float]]:
    """Give how many lie at or below each upper bound, as text; "+Inf" last."""
    sums, total = [], 0.0
    for bound, count in told.items():
        if bound != "sum":
            total += count
            sums.append(("+Inf" if bound is None else f"{float(bound)}", total))
    return sums


def has_ended(read: Callable[[], object]) -> bool:
    """Return whether a store, whose `stats` this is, was closed, or belongs to a parent process."""
    try:
        read()
    except (ClosedError, ForkedError):
        return True
    return False


def shards_of(stats: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Give the stats of each shard with its number, of one store with none."""
    if "by_shard" in stats:
        return [(str(number), one) for number, one in enumerate(stats["by_shard"])]
    return [("", stats)]


def metrics_page() -> str:
    """Write the table of metrics as the guide has it."""
    rows = [
        "# Metrics",
        "",
        "Written by `python -m timerstore.telemetry.prometheus metrics`; a test compares it with",
        "the code.",
        "Labels: `store` (the name that you give), `shard` (of a store of shards); by topic,",
        "`topic`, too.",
        "",
        "| metric | kind | in `stats()` | what |",
        "|---|---|---|---|",
    ]
    rows += [f"| `{one.name}` | {one.kind} | `{one.stat}` | {one.help} |" for one in FAMILIES]
    return "\n".join(rows) + "\n"
