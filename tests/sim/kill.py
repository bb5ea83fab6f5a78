"""Run the simulator against every planted bug, and write the table of bugs and killers.

    python -m tests.sim.kill                          all, up to 4000 schedules each: MUTANTS.md
    python -m tests.sim.kill --only W-D1 --count 300
    python -m tests.sim.kill --fast                   only the bugs that CI knows to be found early

A killer is a schedule that fails with the bug and passes without it.
"""

import argparse
import json
import logging
import sys
import traceback
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from tests.sim.mutants import MUTANTS, planted
from tests.sim.run import Outcome, run_schedule
from tests.sim.schedule import make_schedule
from tests.sim.shrink import REGRESSIONS, Shrinker, read_regression, regression_text, signature

HERE = Path(__file__).parent
TABLE = HERE / "MUTANTS.md"
KILLS = HERE / "kills.json"
KILLERS = HERE / "killers"
SHRINK_TRIES = 60  # a killer need not be minimal, but it must be quick

NOT_HERE = {
    "W-L2": "needs properties near 32 KiB: tests/unit/write/test_put.py",
    "W-L13": "no call removes queues or topics",
    "W-L14": "no replicas",
    "W-D3": "no path bypasses the wheel: a late message has a timer unit and a timer id",
    "W-D5": "no roles",
    "W-S2": "no caller can put into the timer topic; foreign records: log/test_fold_by_id.py",
    "W-S4": "concerns memory, not results: benchmarks",
    "W-S5": "arithmetic in C: tests/unit/native, precision 60,000 ms",
    "W-R2": "a message that was read from its slot still has a state: W-R1",
    "W-R5": "the old form of delete records is never written: unit/log/test_fold_by_matching.py",
    "W-R6": "put rejects TIMER_DEL_UNIQKEY: tests/unit/base/test_validation.py",
    "W-F5": "each level is ordered by itself, by design (docs/decisions/0007-delay-levels.md)",
    "W-F6": "no step waits, so nothing times out",
    "L-10": "the CRC is in C: tests/corruption flips every bit",
}
"""Known bugs that cannot be planted or detected here, and the tests that look for them."""

_LEGEND = """\
| prefix | subject |
|---|---|
| W-D, W-L, W-R, W-S, W-F | bugs of the RocketMQ timer: duplicates, loss, recall, order, levels |
| L | bugs of an earlier prototype |
| E | bugs that the simulator found in this engine |
| F, PK | far wheel, overflow and slot reuse |
| CW, PC, SP | bursts, rate limits, spread |
| LE, RC, RP, CM, HM | leases, recurring messages, keyed puts, cancel_many, half messages |
| SH | several shards |
| P | other guarantees |
"""


class Kill(NamedTuple):
    """The result of the search for one planted bug."""

    schedules: int  # number of schedules that were needed, counted from the first seed
    seed: int
    by: str


def hunt(name: str, count: int, first: int = 0) -> Kill | None:
    """Run seeds until one fails. Return None if none of `count` seeds does."""
    needs = MUTANTS[name].needs
    with planted(name):
        for at in range(count):
            schedule = make_schedule(first + at)
            if needs not in json.dumps(schedule.to_json()):
                continue  # the schedule never reaches the code with the bug
            outcome = run_schedule(schedule)
            if outcome.error is not None:
                if isinstance(outcome.error, AttributeError | NameError | TypeError):
                    raise outcome.error  # the planting itself is broken
                return Kill(at + 1, first + at, _killer(outcome))
    return None


def killer_path(name: str) -> Path:
    """Return the path of the schedule that detects a bug."""
    return KILLERS / f"{name}.json"


def keep_killer(name: str, seed: int) -> bool:
    """Shrink the schedule that detected a bug, and store it.

    Return False if it fails without the bug.
    """
    with planted(name):
        shrinker = Shrinker(make_schedule(seed), tries_max=SHRINK_TRIES)
        best = shrinker.shrink()
        says = str(run_schedule(best).error)[:200]
    if run_schedule(best).error is not None:
        return False
    KILLERS.mkdir(exist_ok=True)
    killer_path(name).write_text(regression_text(best, says, MUTANTS[name].says))
    return True


def replay(name: str) -> str | None:
    """Find a committed schedule that fails with the bug, and store it as its killer.

    Return None if no committed schedule fails.
    """
    own = [killer_path(name)] if killer_path(name).exists() else []
    with planted(name):
        for path in [*own, *sorted(REGRESSIONS.glob("*.json"))]:
            outcome = run_schedule(read_regression(path))
            if outcome.error is not None:
                if path.parent == REGRESSIONS:
                    killer_path(name).write_text(path.read_text())
                return f"{path.parent.name}/{path.name}: {_killer(outcome)}"
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
    """Return the text of MUTANTS.md."""
    killed = [name for name in MUTANTS if found.get(name, {}).get("by")]
    alive = [name for name in MUTANTS if name not in killed and not MUTANTS[name].equivalent]
    lines = [
        "# Planted bugs",
        "",
        "Bugs that are planted in the engine to test the simulator. Written by",
        "`python -m tests.sim.kill`; `mutants/` has their code. *Schedules* is the number of seeds",
        "until one failed. That schedule, shrunk, is in `killers/`, and every test run replays it.",
        '"By hand": the schedule was written for this bug. "None in n": no seed of n detected it,',
        "but the named schedule does. *Detected by* is the failed check, as file and function.",
        "",
        (
            f"{len(MUTANTS)} planted, {len(killed)} detected, "
            f"{sum(bool(m.equivalent) for m in MUTANTS.values())} equivalent (no bug in this "
            f"design), {len(alive)} not detected."
        ),
        "",
        _LEGEND,
        "| bug | effect | schedules | detected by |",
        "|---|---|---|---|",
    ]
    for name, mutant in MUTANTS.items():
        one = found.get(name, {})
        if one.get("by"):
            count = one["schedules"] if "seed" in one else f"none in {one['schedules']}"
            count = count if one["schedules"] else "by hand"
            row = f"{count} | {one['by']}"
        elif mutant.equivalent:
            row = f"none in {one.get('schedules', 0)} | equivalent: {mutant.equivalent}"
        else:
            row = f"none in {one.get('schedules', 0)} | **not detected**"
        lines.append(f"| {name} | {mutant.says} | {row} |")
    lines += ["", "## Not planted here", "", "| bug | reason |", "|---|---|"]
    lines += [f"| {name} | {why} |" for name, why in NOT_HERE.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.kill")
    parser.add_argument("--only", nargs="*", default=list(MUTANTS))
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    with get_context("fork").Pool(given.jobs) as pool:
        asked = [(name, given.count, given.first, given.dry) for name in given.only]
        for name, found in pool.imap_unordered(_hunted, asked):
            print(name, found.get("by") or f"not killed in {found['schedules']}", flush=True)
            if not given.dry:
                _keep(name, found)
    return 0


def _hunted(asked: tuple[str, int, int, bool]) -> tuple[str, dict[str, Any]]:
    """Search for one bug, in a worker process."""
    name, count, first, is_dry = asked
    logging.disable(logging.CRITICAL)
    kill = hunt(name, count, first)
    if kill is not None and (is_dry or keep_killer(name, kill.seed)):
        return name, kill._asdict()
    if kill is not None:
        return name, {"schedules": kill.schedules, "by": "", "why": "it fails without the bug, too"}
    replayed = replay(name)
    return name, {"schedules": count, **({"by": replayed} if replayed else {})}


def _keep(name: str, found: dict[str, Any]) -> None:
    """Record the result for one bug.

    A bug that was detected stays so until it is detected again.
    """
    kills = read_kills()
    if found.get("by") or not kills.get(name, {}).get("by"):
        kills[name] = found
    KILLS.write_text(json.dumps({n: kills[n] for n in MUTANTS if n in kills}, indent=1) + "\n")
    TABLE.write_text(table(kills))


if __name__ == "__main__":
    sys.exit(main())
