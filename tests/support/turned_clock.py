"""A clock turned by hand that remembers every time it showed."""

from timerstore.testing import ManualClock


class TurnedClock(ManualClock):
    """A clock that keeps its highest time, in all or since a mark."""

    __slots__ = ("latest_ms", "turns")

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.latest_ms = now_ms
        self.turns = [now_ms]

    def _turn(self, ms: int, *, relative: bool) -> None:
        super()._turn(ms, relative=relative)
        self.latest_ms = max(self.latest_ms, self.now_ms)
        self.turns.append(self.now_ms)

    def mark(self) -> int:
        """Return a mark for the present."""
        return len(self.turns) - 1

    def highest_since(self, mark: int) -> int:
        """Return the highest time since a mark."""
        return max(self.turns[mark:])
