"""Epochs: whether somebody still reads who began before a certain moment.

    a enters epoch 0    turn: 0 is past    b enters epoch 1    a leaves: 0 is over, though b reads

Threads:  whoever holds the lock of the owner.
Holds:    what was given up before `turn` is used by nobody once `is_over` says so, however many
          come meanwhile.
"""

from timerstore._engine.base.owner import Owner


class Epochs(Owner):
    """Counts readers by the epoch in which they came."""

    __slots__ = ("_counts", "now")

    def __init__(self) -> None:
        self.now = 0
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(self._counts.values())

    def enter(self) -> int:
        """Somebody begins to read; to be told to `leave`."""
        self._counts[self.now] = self._counts.get(self.now, 0) + 1
        return self.now

    def leave(self, epoch: int) -> None:
        """He reads no more."""
        left = self._counts[epoch] - 1
        if left:
            self._counts[epoch] = left
        else:
            del self._counts[epoch]

    def turn(self) -> int:
        """Who comes from here on is of another epoch; which one is past."""
        self.now += 1
        return self.now - 1

    def is_over(self, epoch: int) -> bool:
        """Whether all who came in it or before have left."""
        return min(self._counts, default=self.now + 1) > epoch
