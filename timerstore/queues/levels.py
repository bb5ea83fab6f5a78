"""The fixed delays, as text and as numbers."""

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_level_delays(text: str) -> list[int]:
    """Give the delay of each level, level 1 first, ms. The text was checked by StoreConfig."""
    return [int(part[:-1]) * _UNIT_MS[part[-1]] for part in text.split()]
