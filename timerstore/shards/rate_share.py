"""Divide a rate limit among shards, so that all shards together stay below it.

    100 a second, 4 shards    25 each        topic_rates, pace
    1 a second, 3 shards      0.333 each     rounded down

Invariants: all shares are equal, and their sum is at most the rate. Shards do not know of one
another, so a share that one shard does not use is not available to others.
Raises: MessageError or ConfigError if a share is below the smallest rate of a store.
"""

from dataclasses import replace
from decimal import ROUND_FLOOR, Decimal

from timerstore.errors import ConfigError, MessageError
from timerstore.types.config import RATE_MIN, StoreConfig, parse_topic_rates

_STEP = Decimal("0.001")


def share_of(per_second: float, shard_count: int) -> float:
    """Return one shard's messages a second, rounded down to thousandths."""
    share = (Decimal(repr(per_second)) / shard_count).quantize(_STEP, ROUND_FLOOR)
    if share < Decimal(repr(RATE_MIN)):
        raise MessageError(
            f"per_second: wanted at least {RATE_MIN} for each of {shard_count} shards, got "
            f"{per_second}"
        )
    return float(share)


def shared_out(config: StoreConfig, shard_count: int) -> StoreConfig:
    """Return the configuration of one shard, with its share of `topic_rates`."""
    if not config.topic_rates:
        return config
    shares, problems = [], []
    for topic, rate in parse_topic_rates(config.topic_rates).items():
        try:
            shares.append(f"{topic}={share_of(rate, shard_count):.3f}")
        except MessageError as error:
            problems.append(str(error).replace("per_second:", f"topic_rates: {topic}:", 1))
    if problems:
        raise ConfigError(problems)
    return replace(config, topic_rates=" ".join(shares))
