"""The fixed delays, as text and as numbers; where a message that waits for one goes."""

import re
from collections.abc import Mapping

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TOPIC = re.compile(r"[0-9A-Za-z%_|-]{1,255}")
_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


def parse_level_delays(text: str) -> list[int]:
    """Give the delay of each level, level 1 first, ms. The text was checked by StoreConfig."""
    return [int(part[:-1]) * _UNIT_MS[part[-1]] for part in text.split()]


def real_queue(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Give topic and queue that a level message goes to; None where it can never be delivered, as
    ts_level_usable (native/src/parse.h) has it.
    """
    topic, queue_id = properties.get("REAL_TOPIC", ""), properties.get("REAL_QID", "")
    level = properties.get("DELAY", "")
    if not (_TOPIC.fullmatch(topic) and queue_id.isdecimal() and level.isdecimal()):
        return None
    if topic == _HALF_TOPIC or int(level) < 1:
        return None
    return topic, int(queue_id)
