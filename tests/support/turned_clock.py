"""A clock turned by hand that remembers every time it showed."""

from timerstore.testing import ManualClock


class TurnedClock(ManualClock):
    """Knows how late it ever was, in all or since a moment."""

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
        """Name this moment."""
        return len(self.turns) - 1

    def highest_since(self, mark: int) -> int:
        """How late it ever was since a moment."""
        return max(self.turns[mark:])
