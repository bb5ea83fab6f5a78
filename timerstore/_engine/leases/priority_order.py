"""Choose the order in which a group takes the messages of a topic with priorities.

    1. The highest priority that has messages comes first.
    2. Each 10th message that the group takes is of the priority that has messages and was served
       least recently; of several, the lowest.
    3. Within a priority, new messages and retries take turns, each in the order of its queue.

Thread safety: one thread at a time.
Invariants:
    1. No priority starves: of 10 n messages that the group takes while n priorities have messages,
       each of them has at least one.
See also: docs/decisions/0017-dead-letters-and-priorities.md.
"""

from collections.abc import Mapping
from typing import NamedTuple

TURN_EVERY = 10
"""Of so many messages, one is of the priority that was served least recently."""

Source = tuple[int, int]
"""A priority, or the rank of a queue of none, and the side: 0 for retries, 1 for the topic."""


class PriorityRun(NamedTuple):
    """Messages that are taken one after another from one queue."""

    source: Source
    size: int


class PriorityOrder:
    """The order of one group and topic."""

    def __init__(self) -> None:
        self._taken_count = 0
        self._last_side = 0
        self._served: dict[int, int] = {}  # by priority: the number of its last message

    def turn_count(self, count: int) -> int:
        """Return how many of the next `count` messages rule 2 chooses."""
        return (self._taken_count + count) // TURN_EVERY - self._taken_count // TURN_EVERY

    def plan(self, available: Mapping[Source, int], count: int) -> list[PriorityRun]:
        """Return the next runs, `count` messages together or all that there are.

        available: how many messages there are, by source.
        """
        left = {source: n for source, n in available.items() if n > 0}
        runs: list[PriorityRun] = []
        number, side, served = self._taken_count, self._last_side, dict(self._served)
        for _ in range(min(count, sum(left.values()))):
            number += 1
            priorities = {priority for priority, _ in left}
            if number % TURN_EVERY:
                priority = max(priorities)
            else:
                priority = min(priorities, key=lambda one: (served.get(one, 0), one))
            side = 1 - side if (priority, 1 - side) in left else side
            source = priority, side
            if runs and runs[-1].source == source:
                runs[-1] = PriorityRun(source, runs[-1].size + 1)
            else:
                runs.append(PriorityRun(source, 1))
            served[priority] = number
            left[source] -= 1
            if not left[source]:
                del left[source]
        return runs

    def taken(self, source: Source, count: int) -> None:
        """Record that messages of a run were taken."""
        if count:
            self._taken_count += count
            self._last_side = source[1]
            self._served[source[0]] = self._taken_count
