"""Runs the simulator against every planted bug, and writes the table of who was killed by what.

python -m tests.sim.kill                          all, up to 4000 schedules each: MUTANTS.md
python -m tests.sim.kill --only W-D1 --count 300
python -m tests.sim.kill --fast                   those that CI knows to die early
"""

import argparse
import json
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple

from tests.sim.mutants import MUTANTS, planted
from tests.sim.run import Outcome, run_schedule, run_seed
from tests.sim.shrink import REGRESSIONS, read_regression, signature

HERE = Path(__file__).parent
TABLE = HERE / "MUTANTS.md"
KILLS = HERE / "kills.json"

NOT_HERE = {
    "W-L2": "needs properties near 32 KiB: tests/unit/test_store_put.py, at the limit",
    "W-L3": "retention: not in the simulator yet",
    "W-L5": "retention: not in the simulator yet",
    "W-L13": "no call takes queues or topics away",
    "W-L14": "no replicas",
    "W-D3": "there is no path past the wheel: what is late has a unit, and an id in any case",
    "W-D5": "no roles",
    "W-D7": "message ids: not in the simulator yet",
    "W-S2": "no caller can put into the timer topic: tests/unit/test_fold.py has foreign records",
    "W-S4": "memory, not an answer: benchmarks",
    "W-S5": "arithmetic in C: tests/unit/native, precision 60,000 ms",
    "W-R2": "what is read from its slot has its state like everything else: W-R1",
    "W-R5": "the old form of delete records is never written: tests/unit/test_fold.py",
    "W-R6": "TIMER_DEL_UNIQKEY is refused in properties: tests/unit/test_arguments.py",
    "W-F5": "a level is in order by itself by design: decision 0014",
    "W-F6": "no step waits: there is nothing to give up on",
    "L-10": "the CRC is in C: T-FLIP flips every bit (issue 6, item 5)",
}
"""Bugs of the lists that cannot be planted or seen here, and where they are looked for instead."""


class Kill(NamedTuple):
    """What ended a planted bug."""

    schedules: int  # that it took, seeds from 0 on
    seed: int
    by: str


def hunt(name: str, count: int, first: int = 0) -> Kill | None:
    """Run seeds until one fails; None where none of so many does."""
    with planted(name):
        for at in range(count):
            outcome = run_seed(first + at)
            if outcome.error is not None:
                if isinstance(outcome.error, AttributeError | NameError | TypeError):
                    raise outcome.error  # the planting is broken
                return Kill(first + at + 1, first + at, _killer(outcome))
    return None


def replay(name: str) -> str | None:
    """Which committed regression fails with the bug; None where none does."""
    with planted(name):
        for path in sorted(REGRESSIONS.glob("*.json")):
            outcome = run_schedule(read_regression(path))
            if outcome.error is not None:
                return f"regressions/{path.name}: {_killer(outcome)}"
    return None


def _killer(outcome: Outcome) -> str:
    assert outcome.error is not None
    frame = traceback.extract_tb(outcome.error.__traceback__)[-1]
    text = str(outcome.error).split(":")[0].split("\n")[0]
    if frame.name in {"after_error", "step_one"}:
        text = str(outcome.error)[:70].split(";")[0]
    return f"{signature(outcome)}: {text[:70]}"


def read_kills() -> dict[str, Any]:
    return json.loads(KILLS.read_text()) if KILLS.exists() else {}


def table(found: dict[str, Any]) -> str:
    """What stands in MUTANTS.md."""
    killed = [name for name in MUTANTS if found.get(name, {}).get("by")]
    alive = [name for name in MUTANTS if name not in killed and not MUTANTS[name].equivalent]
    lines = [
        "# Planted bugs",
        "",
        "Made by `python -m tests.sim.kill`; how each is planted: `mutants.py`.",
        (
            f"{len(MUTANTS)} planted, {len(killed)} killed, "
            f"{sum(bool(m.equivalent) for m in MUTANTS.values())} no bug in this design, "
            f"{len(alive)} not killed."
        ),
        "",
        "| bug | what it does | schedules | killed by |",
        "|---|---|---|---|",
    ]
    for name, mutant in MUTANTS.items():
        one = found.get(name, {})
        if one.get("by"):
            count = one["schedules"] if "seed" in one else f"none in {one['schedules'] - 1}"
            row = f"{count} | {one['by']}"
        elif mutant.equivalent:
            row = f"none in {one.get('schedules', 0)} | equivalent: {mutant.equivalent}"
        else:
            row = f"none in {one.get('schedules', 0)} | **not killed**"
        lines.append(f"| {name} | {mutant.says} | {row} |")
    lines += ["", "Of the lists, not planted here:", "", "| bug | why |", "|---|---|"]
    lines += [f"| {name} | {why} |" for name, why in NOT_HERE.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.kill")
    parser.add_argument("--only", nargs="*", default=list(MUTANTS))
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    given = parser.parse_args()
    found = read_kills()
    for name in given.only:
        kill = hunt(name, given.count, given.first)
        replayed = replay(name) if kill is None else None
        print(name, kill or replayed or f"not killed in {given.count}", flush=True)
        if kill is not None:
            found[name] = kill._asdict()
        elif replayed is not None:
            found[name] = {"schedules": given.count + 1, "by": replayed}
        elif not found.get(name, {}).get("by"):
            found[name] = {"schedules": given.count}
    if not given.dry:
        KILLS.write_text(json.dumps(found, indent=1) + "\n")
        TABLE.write_text(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
