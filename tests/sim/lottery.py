"""Decide which unsynced writes survive a power cut, at random or by a list of choices.

    disk.cut(Random(7))                              # one of many results, at random
    for chosen, image in every(disk.cut, ...): ...   # all results

Invariants:
    1. Drawn takes the same random numbers in the same order in every version, because regressions
       depend on them.
    2. Two Chosen with the same numbers give the same result for the same disk.
"""

from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any, Protocol, TypeVar

PAGE = 4096
SECTOR = 512
_SECTORS = range(0, PAGE, SECTOR)
_CHOICES = 100  # a cut of a few operations has at most this many choices

Of = TypeVar("Of")


class Lottery(Protocol):
    """Decide the length of each file, the state of each page, and the target of each name."""

    def begin(self) -> None:
        """Begin the next file."""

    def size(self, sizes: list[int]) -> int:
        """Choose one of the lengths that the file had. The one on the disk is first."""

    def page(self, states: list[bytes]) -> bytes:
        """Choose a state of the page, or mix sectors of several. The state on the disk is first."""

    def name(self, found: tuple[Of, Of]) -> Of:
        """Choose the present target of a name, or its target at the last sync of the directory."""


class Drawn:
    """Decide by random numbers. Most often nearly everything is lost, or nearly nothing."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self._kept = 0.0  # share of the unsynced writes that survives

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
    """Decide by a list of numbers, one for each choice.

    Number 0 stands for the state on the disk, and the last number or -1 for the latest write.
    Choices past the end of the list are 0. Equal states count as one. With `by_sector`, each sector
    of a page is a choice of its own.
    """

    def __init__(self, numbers: list[int], *, by_sector: bool) -> None:
        self.numbers = numbers
        self.by_sector = by_sector
        self.counts: list[int] = []  # number of states of each choice

    def _pick(self, found: Iterable[Of]) -> Of:
        states = list(dict.fromkeys(found))
        if len(states) == 1:
            return states[0]
        at = len(self.counts)
        self.counts.append(len(states))
        return states[self.numbers[at] % len(states) if at < len(self.numbers) else 0]

    def begin(self) -> None:
        """Do nothing: the choices do not depend on the file."""

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
    """Return the lottery that a schedule names, by a seed or by the result of Chosen.to_json."""
    if isinstance(end, dict):
        return Chosen(end["numbers"], by_sector=end["by_sector"])
    return Random(end)


def lottery_of(draw: Random | Lottery) -> Lottery:
    """Wrap random numbers in a lottery, and return a lottery as it is."""
    return Drawn(draw) if isinstance(draw, Random) else draw


def every(
    cut: Callable[[Chosen], Of], *, by_sector: bool, count_max: int
) -> list[tuple[Chosen, Of]] | None:
    """Return every result that a cut may have, or None if there are more than `count_max`."""
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
    """Yield `count` results of a cut: everything survives, nothing survives, and random mixes.

    The mixes are the same in every run.
    """
    draw = Random(0)
    for at in range(count):
        kept = (1.0, 0.0, 0.5, 0.9, 0.1)[at if at < 2 else 2 + at % 3]
        numbers = [-1 if draw.random() < kept else 0 for _ in range(_CHOICES)]
        if at % 4 == 3:
            # one choice takes an intermediate state
            numbers[draw.randrange(_CHOICES)] = draw.randrange(8)
        chosen = Chosen(numbers, by_sector=True)
        left = cut(chosen)
        del numbers[len(chosen.counts) :]
        yield chosen, left
