"""The interface of a data source for the page, and the JSON that all sources share.

Raises: MessageError for an invalid request, and the errors of the store.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from timerstore._engine.base.metrics import GROUP_GAUGES, GROUP_SEPARATOR
from timerstore.errors import MessageError
from timerstore.types.clock import Clock
from timerstore.types.messages import Int64Array

Json = dict[str, Any]

TOPICS_SHOWN = 100


class RingTurn(NamedTuple):
    """One revolution of the ring: `places` of `unit_ms` each."""

    unit_ms: int
    places: int


TURNS: Mapping[str, RingTurn] = {
    "1m": RingTurn(1000, 60),
    "1h": RingTurn(60_000, 60),
    "6h": RingTurn(300_000, 72),
    "24h": RingTurn(900_000, 96),
}


def turn_of(name: str) -> RingTurn:
    """Return a turn by its name."""
    found = TURNS.get(name)
    if found is None:
        raise MessageError(f"turn: wanted one of {', '.join(TURNS)}, got {name!r:.40}")
    return found


class DashboardSource(ABC):
    """A store as the page shows it."""

    clock: Clock

    @abstractmethod
    def about(self) -> Json:
        """Return the facts that do not change while the page is open."""

    @abstractmethod
    def check_alive(self) -> None:
        """Raise FailedError if the store has failed and must be opened again."""

    @abstractmethod
    def now(self, turn: str, topic: str | None) -> Json:
        """Return the current statistics."""


def ring_of(turn: str, begin_ms: int, counts: Int64Array) -> Json:
    """Return the number of pending messages at each place of a ring."""
    return {
        "turn": turn,
        "begin_ms": begin_ms,
        "unit_ms": TURNS[turn].unit_ms,
        "counts": counts.tolist(),
    }


def groups_of(stats: Mapping[str, Any]) -> Json:
    """Return the backlogs of groups: topic, group, ready, leased, in back-off, dead, oldest in ms.

    The groups with the most messages to receive come first.
    """
    rows = [
        [*key.split(GROUP_SEPARATOR), *(stats[name][key] for name in GROUP_GAUGES)]
        for key in stats["group_ready_messages"]
    ]
    rows.sort(key=lambda one: (-one[2], one[0], one[1]))
    return {"groups": rows[:TOPICS_SHOWN], "more_groups": len(rows[TOPICS_SHOWN:])}


def topics_of(waiting: Mapping[str, int]) -> Json:
    """Return the pending messages by topic, largest first; small topics are summed."""
    order = sorted(waiting.items(), key=lambda one: (-one[1], one[0]))
    rest = order[TOPICS_SHOWN:]
    return {
        "topics": [list(one) for one in order[:TOPICS_SHOWN]],
        "more_topics": len(rest),
        "more_pending": sum(count for _, count in rest),
    }
