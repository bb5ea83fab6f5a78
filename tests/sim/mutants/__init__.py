"""Planted bugs: the ancestor's weaknesses and others, each switched on in the tested engine.

    with planted("W-D1"): ...      # the engine has the bug in here

What the simulator does not kill is a hole in the simulator, or no bug in this design; the table
(MUTANTS.md, made by `python -m tests.sim.kill`) says which.
Ids: W-xx weaknesses of RocketMQ's timer; L-xx those of lab.py; E-xx found in this engine by the
simulator; LE, RP, RC, SP, PC, CM of leases, rounds of a key, what recurs, times that are drawn,
rates, many cancels; F-xx the far wheel; SH several shards;
P-xx a promise that the others leave untouched, by order of their making.
"""

from tests.sim.mutants import (  # noqa: F401 - each registers its own
    bursts,
    cancels,
    duplicates,
    far,
    found,
    groups,
    ids,
    keeping,
    lab,
    leases,
    levels,
    loss,
    many,
    order,
    promises,
    recurring,
    rounds,
    shards,
)
from tests.sim.mutants.planting import MUTANTS, Mutant, planted

__all__ = ["MUTANTS", "Mutant", "planted"]
