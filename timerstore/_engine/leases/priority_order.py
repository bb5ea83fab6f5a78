"""Choose the order in which a group takes the messages of a topic with priorities.

    1. The highest priority that has messages comes first.
    2. Each 10th message that the group takes is of the lowest priority that has messages.
    3. Within a priority, new messages and retries take turns, each in the order of its queue.

Thread safety: one thread at a time.
Invariants:
    1. No priority starves: rule 2 serves the lowest one, until it has no messages; then the next.
See also: docs/decisions/0017-dead-letters-and-priorities.md.
"""

from collections.abc import Mapping
from typing import NamedTuple

LOWEST_EVERY = 10
"""Of so many messages, one is of the lowest priority that has messages."""

Source = tuple[int, int]
"""A priority, and the side: 0 for retries, 1 for the topic itself."""


class Run(NamedTuple):
    """Messages that are taken one after another from one queue."""

    source: Source
    size: int


class PriorityOrder:
    """The order of one group and topic."""

    def __init__(self) -> None:
        self._taken_count = 0
        self._last_side = 0

    def lowest_count(self, count: int) -> int:
        """Return how many of the next `count` messages rule 2 chooses."""
        return (self._taken_count + count) // LOWEST_EVERY - self._taken_count // LOWEST_EVERY

    def plan(self, available: Mapping[Source, int], count: int) -> list[Run]:
        """Return the next runs, `count` messages together or all that there are.

        available: how many messages there are, by source.
        """
        left = {source: n for source, n in available.items() if n > 0}
        runs: list[Run] = []
        number, side = self._taken_count, self._last_side
        for _ in range(min(count, sum(left.values()))):
            number += 1
            choose = min if number % LOWEST_EVERY == 0 else max
            priority = choose(one for one, _ in left)
            side = 1 - side if (priority, 1 - side) in left else side
            source = priority, side
            if runs and runs[-1].source == source:
                runs[-1] = Run(source, runs[-1].size + 1)
            else:
                runs.append(Run(source, 1))
            left[source] -= 1
            if not left[source]:
                del left[source]
        return runs

    def taken(self, source: Source, count: int) -> None:
        """Record that messages of a run were taken."""
        self._taken_count += count
        self._last_side = source[1]
