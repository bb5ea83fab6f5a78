"""The chains of timer units on the far wheel: one chain, and a copy of the table of all chains."""

from typing import NamedTuple

from timerstore._engine.timer.timer_arrays import Records


class Chain(NamedTuple):
    """The units of a far slot. Units are added at the newest end and taken from there.

    Each unit has the number of the one before it; the oldest has -1.
    """

    newest: int = -1
    oldest: int = -1
    size: int = 0


class Chains(NamedTuple):
    """A copy of the table."""

    rows: Records
    begin: int
    end: int
    ordered_from: int
