"""What a power cut leaves of what was not synced: drawn, or chosen.

    disk.cut(Random(7))                              # one of many, drawn
    for chosen, image in every(disk.cut, ...): ...   # all

Holds:    (1) Drawn takes the same random numbers in the same order for ever: regressions name
          them; (2) two Chosen with the same numbers, of the same disk, leave the same.
"""

from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any, Protocol, TypeVar

PAGE = 4096
SECTOR = 512
_SECTORS = range(0, PAGE, SECTOR)
_CHOICES = 100  # no cut of a few operations has more

Of = TypeVar("Of")


class Lottery(Protocol):
    """Decides for each file how long it is and which state of a page is there, and for each name
    whether it is.
    """

    def begin(self) -> None:
        """The next file."""

    def size(self, sizes: list[int]) -> int:
        """Of those that it had, the one on the disk first."""

    def page(self, states: list[bytes]) -> bytes:
        """Of those that it had, the one on the disk first; or sectors of several."""

    def name(self, found: tuple[Of, Of]) -> Of:
        """What a name stands for now, or stood for when its directory was synced."""


class Drawn:
    """By random numbers: most often nearly all is lost, or nearly nothing."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self._kept = 0.0  # how much of what was not synced is there

    def begin(self) -> None:
        self._kept = self._draw.choice((0.0, 0.1, 0.5, 0.9, 1.0))

    def size(self, sizes: list[int]) -> int:
        return self._draw.choice(sizes) if len(sizes) > 1 else sizes[0]

    def page(self, states: list[bytes]) -> bytes:
        if self._draw.random() >= 0.25:
            return self._one(states)
        return b"".join(self._one(states)[at : at + SECTOR] for at in _SECTORS)

    def _one(self, states: list[bytes]) -> bytes:
        if self._draw.random() >= self._kept:
            return states[0]
        return states[-1] if self._draw.random() < 0.7 else self._draw.choice(states)

    def name(self, found: tuple[Of, Of]) -> Of:
        return self._draw.choice(found)


class Chosen:
    """By a list of numbers, one for each choice that there is: 0 is what the disk had before, the
    last is what was written last; -1, too. What is beyond the list is 0.

    What looks alike is one choice. `by_sector`: a page's sectors are lost each by itself.
    """

    def __init__(self, numbers: list[int], *, by_sector: bool) -> None:
        self.numbers = numbers
        self.by_sector = by_sector
        self.counts: list[int] = []  # of what there was to choose from, choice by choice

    def _pick(self, found: Iterable[Of]) -> Of:
        states = list(dict.fromkeys(found))
        if len(states) == 1:
            return states[0]
        at = len(self.counts)
        self.counts.append(len(states))
        return states[self.numbers[at] % len(states) if at < len(self.numbers) else 0]

    def begin(self) -> None:
        """Each choice stands for itself."""

    def size(self, sizes: list[int]) -> int:
        return self._pick(sizes)

    def page(self, states: list[bytes]) -> bytes:
        if not self.by_sector:
            return self._pick(states)
        return b"".join(
            self._pick([state[at : at + SECTOR] for state in states]) for at in _SECTORS
        )

    def name(self, found: tuple[Of, Of]) -> Of:
        return self._pick(reversed(found))

    def to_json(self) -> dict[str, Any]:
        return {"numbers": self.numbers, "by_sector": self.by_sector}


def of_schedule(end: Any) -> "Random | Chosen":
    """What an end names: a seed, or what Chosen.to_json gave."""
    if isinstance(end, dict):
        return Chosen(end["numbers"], by_sector=end["by_sector"])
    return Random(end)


def lottery_of(draw: Random | Lottery) -> Lottery:
    """Have random numbers decide, where nobody else does."""
    return Drawn(draw) if isinstance(draw, Random) else draw


def every(
    cut: Callable[[Chosen], Of], *, by_sector: bool, count_max: int
) -> list[tuple[Chosen, Of]] | None:
    """Everything that a cut may leave; None where that is more than so many."""
    found: list[tuple[Chosen, Of]] = []
    numbers: list[int] = []
    while len(found) < count_max:
        chosen = Chosen(numbers, by_sector=by_sector)
        found.append((chosen, cut(chosen)))
        counts = chosen.counts
        numbers = numbers[: len(counts)] + [0] * (len(counts) - len(numbers))
        while numbers and numbers[-1] == counts[len(numbers) - 1] - 1:
            numbers.pop()
        if not numbers:
            return found
        numbers[-1] += 1
    return None


def some(cut: Callable[[Chosen], Of], count: int) -> Iterator[tuple[Chosen, Of]]:
    """So many of what a cut may leave: all, nothing, and others, drawn alike each time."""
    draw = Random(0)
    for at in range(count):
        kept = (1.0, 0.0, 0.5, 0.9, 0.1)[at if at < 2 else 2 + at % 3]
        numbers = [-1 if draw.random() < kept else 0 for _ in range(_CHOICES)]
        if at % 4 == 3:
            numbers[draw.randrange(_CHOICES)] = draw.randrange(8)  # one from in between
        chosen = Chosen(numbers, by_sector=True)
        left = cut(chosen)
        del numbers[len(chosen.counts) :]
        yield chosen, left
