"""Delay levels: parse the configured delays, and find the destination of a delayed message."""

from collections.abc import Mapping

from timerstore._engine.format.store_paths import QUEUE_COUNT_MAX, can_have_queue, whole_number

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL_MAX = 2**31 - 1
_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


def parse_level_delays(text: str) -> list[int]:
    """Return the delay of each level in ms, level 1 first. StoreConfig has checked the text."""
    return [int(part[:-1]) * _UNIT_MS[part[-1]] for part in text.split()]


def real_queue(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Return topic and queue of a delay-level message; None if it can never be delivered.

    The rule is that of `ts_level_usable` (native/log/parse.h).
    """
    topic = properties.get("REAL_TOPIC", "")
    queue_id = whole_number(properties.get("REAL_QID", ""), QUEUE_COUNT_MAX - 1)
    level = whole_number(properties.get("DELAY", ""), _LEVEL_MAX)
    if topic == _HALF_TOPIC or level < 1 or not can_have_queue(topic, queue_id):
        return None
    return topic, queue_id
