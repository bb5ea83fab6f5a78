"""Plant bugs in the tested engine, known weaknesses of RocketMQ's timer and others.

    with planted("W-D1"): ...      # the engine has the bug in this block

A bug that the simulator does not detect shows a gap in the simulator, or it is no bug in this
design. The table (MUTANTS.md, written by `python -m tests.sim.kill`) says which of the two.

| ids | subject |
|---|---|
| W-xx | weaknesses of RocketMQ's timer |
| L-xx | the bugs of lab.py |
| E-xx | bugs that the simulator found in this engine |
| LE, RP, RC, HM | leases, keyed puts, recurring messages, half messages |
| SP, PC, CM | spread times, rates, cancels of many messages |
| F-xx | the far wheel |
| SH-xx | several shards |
| P-xx | promises without another bug, numbered in the order of their making |
"""

from tests.sim.mutants import (  # noqa: F401 - each module registers its bugs
    bursts,
    cancels,
    duplicates,
    far,
    found,
    groups,
    halves,
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
