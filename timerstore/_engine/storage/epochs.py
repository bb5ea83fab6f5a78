"""Count readers by epoch, to know when a retired resource has no reader left.

    reader A enters epoch 0    advance: epoch 0 is past    reader B enters epoch 1
    A leaves: epoch 0 is over, although B still reads

Thread safety: calls are made under the owner's lock.
Invariants:
    1. A resource retired before `advance` has no reader once `is_over` returns True for the
       epoch that `advance` returned. Later readers do not delay this.
"""

from timerstore._engine.base.owner import Owner


class Epochs(Owner):
    """Counts readers by the epoch in which they started."""

    __slots__ = ("_counts", "now")

    def __init__(self) -> None:
        self.now = 0
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(self._counts.values())

    def enter(self) -> int:
        """Count a reader; return its epoch, which it passes to `leave`."""
        self._counts[self.now] = self._counts.get(self.now, 0) + 1
        return self.now

    def leave(self, epoch: int) -> None:
        """Remove a reader of an epoch."""
        left = self._counts[epoch] - 1
        if left:
            self._counts[epoch] = left
        else:
            del self._counts[epoch]

    def advance(self) -> int:
        """Begin a new epoch; return the one that ends."""
        self.now += 1
        return self.now - 1

    def is_over(self, epoch: int) -> bool:
        """Return whether every reader of this epoch and of earlier ones has left."""
        return min(self._counts, default=self.now + 1) > epoch
