"""Run the simulator: run seeds, replay one, or shrink one.

    python -m tests.sim --count 1000                    seeds 0 to 999
    python -m tests.sim --seconds 600 --jobs 2 --fresh  random new seeds, for ten minutes
    python -m tests.sim --seed 42 --trace               one seed, with all its events
    python -m tests.sim --seed 42 --until 17            its first 17 operations
    python -m tests.sim --seed 42 --shrink              a minimal schedule that fails the same way
    python -m tests.sim --seed 42 --shrink --write "why it failed"    store it in regressions/
    python -m tests.sim --replay tests/sim/regressions/42.json

`--ledger` adds the amounts of this run to tests/amounts.jsonl. The terms (seed, schedule, death,
crash image) are explained in tests/sim/README.md.
"""

import argparse
import logging
import math
import secrets
import sys
import time
import traceback
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

from tests.sim import audit
from tests.sim.run import Outcome, run_schedule, run_seed
from tests.sim.schedule import Schedule, make_schedule
from tests.sim.shrink import Shrinker, read_regression, regression_text, write_regression
from tests.support import ledger

_PART = 25  # seeds that a worker runs before it reports
_DAY_MS = 86_400_000
_TEXT_MAX = 2000  # of the text of a failure: message bodies are long


class Totals:
    """The sums over many runs."""

    def __init__(self) -> None:
        self.runs = 0
        self.seconds = 0.0  # CPU seconds of one core
        self.counts: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()
        self.failures: list[tuple[int, int, str]] = []
        self.clock_ms = 0
        self.told = 0  # how many failures were printed

    def take(self, outcome: Outcome) -> None:
        self.runs += 1
        self.counts.update(outcome.counts)
        self.reached.update(outcome.reached)
        self.clock_ms += outcome.clock_ms
        if outcome.error is not None:
            text = "".join(traceback.format_exception(outcome.error)[-3:])
            self.failures.append((outcome.seed, outcome.step, text))

    def add(self, other: "Totals") -> None:
        self.runs += other.runs
        self.seconds += other.seconds
        self.counts.update(other.counts)
        self.reached.update(other.reached)
        self.failures += other.failures
        self.clock_ms += other.clock_ms

    @property
    def deaths(self) -> int:
        return sum(self.counts[how] for how in ("kill", "cut", "kill_then_cut"))

    def __str__(self) -> str:
        cuts = self.counts["cut"] + self.counts["kill_then_cut"]
        return (
            f"{self.runs:,} schedules, {self.deaths:,} deaths ({cuts:,} power cuts, "
            f"{self.counts['deaths_in_recovery']:,} in recovery), "
            f"{self.counts['images']:,} crash images, "
            f"{sum(n for k, n in self.counts.items() if k.startswith('fault met')):,} faults met, "
            f"{self.clock_ms // _DAY_MS:,} days on the clock; {len(self.failures)} failures; "
            f"{self.runs / max(self.seconds, 1e-9):.1f} schedules a second of one core"
        )


def run_part(seeds: range) -> Totals:
    """Run some seeds, in this process or in a worker process."""
    logging.disable(logging.CRITICAL)  # stores log each fault and recovery
    totals = Totals()
    begin = time.process_time()
    for seed in seeds:
        totals.take(run_seed(seed))
    totals.seconds = time.process_time() - begin
    return totals


def run_many(first: int, count: int, jobs: int = 1, seconds: float = math.inf) -> Totals:
    """Run `count` seeds starting with `first`, and stop early after `seconds` of wall time."""
    totals, end = Totals(), time.monotonic() + seconds
    parts = (range(at, min(at + _PART, first + count)) for at in range(first, first + count, _PART))
    if jobs == 1:
        for part in parts:
            totals.add(run_part(part))
            _tell_failures(totals)
            if time.monotonic() >= end:
                break
        return totals
    with get_context("fork").Pool(jobs) as pool:
        for found in pool.imap_unordered(run_part, parts):
            totals.add(found)
            _tell_failures(totals)
            if time.monotonic() >= end:
                pool.terminate()
                break
    return totals


def _tell_failures(totals: Totals) -> None:
    """Print the failures as they occur, so that an interrupted run loses none."""
    for seed, step, text in totals.failures[totals.told :]:
        print(f"FAILED: python -m tests.sim --seed {seed} --trace   (step {step})", flush=True)
        print(text[:_TEXT_MAX], flush=True)
    totals.told = len(totals.failures)


def note(totals: Totals, suite: str = "simulator") -> None:
    """Add the totals to the ledger."""
    ledger.add(
        suite, totals.runs, totals.seconds,
        {
            "deaths": totals.deaths,
            "power cuts": totals.counts["cut"] + totals.counts["kill_then_cut"],
            "deaths in recovery": totals.counts["deaths_in_recovery"],
            "crash images": totals.counts["images"],
            "faults met": sum(n for k, n in totals.counts.items() if k.startswith("fault met")),
            "simulated days": totals.clock_ms // _DAY_MS,
        },
    )  # fmt: skip


def _run_one(given: argparse.Namespace) -> int:
    if given.replay is not None:
        schedule = read_regression(Path(given.replay))
    else:
        schedule = make_schedule(given.seed)
    if given.shrink:
        return _shrink(schedule, given.write)
    outcome = run_schedule(schedule, until=given.until, trace=given.trace, is_hashed=True)
    if given.trace:
        print(schedule.config, f"is_small={schedule.is_small}")
        print("".join(outcome.lines), end="")
    _tell(outcome, schedule)
    return outcome.error is not None


def _tell(outcome: Outcome, schedule: Schedule) -> None:
    if outcome.error is None:
        print(f"seed {outcome.seed}: {outcome.step} operations, trace {outcome.trace}: fine")
        return
    op = schedule.ops[outcome.step] if outcome.step < len(schedule.ops) else "at the end"
    print(f"seed {outcome.seed} step {outcome.step} commit {ledger.commit()}: {op}")
    traceback.print_exception(outcome.error)


def _shrink(schedule: Schedule, why: str | None) -> int:
    shrinker = Shrinker(schedule)
    best = shrinker.shrink()
    says = str(run_schedule(best).error)
    print(regression_text(best, says, why or ""))
    print(f"{len(schedule.ops)} operations became {len(best.ops)}, {shrinker.tries} tries")
    if why is not None:
        print(write_regression(best, says, why))
    return 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seed", type=int)
    parser.add_argument("--replay", metavar="FILE")
    parser.add_argument("--until", type=int)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--write", metavar="WHY")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--fresh", action="store_true", help="begin at a seed drawn at random")
    parser.add_argument("--count", type=int, default=10**12)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--ledger", action="store_true")
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    if given.seed is not None or given.replay is not None:
        return _run_one(given)
    if given.count == 10**12 and given.seconds == float("inf"):
        given.count = 1000
    first = secrets.randbelow(1 << 40) if given.fresh else given.first
    print(f"seeds from {first} on, commit {ledger.commit()}", flush=True)
    totals = run_many(first, given.count, given.jobs, given.seconds)
    print(totals)
    for name in audit.missing(dict(totals.counts), dict(totals.reached), 1):
        print(f"not met: {name}")
    if given.ledger:
        note(totals)
    return bool(totals.failures)


if __name__ == "__main__":
    sys.exit(main())
