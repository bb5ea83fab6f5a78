"""Run every workload of a few operations with every possible death in its last operation.

    python -m tests.sim.exhaustive --depth 2            all of one and two operations
    python -m tests.sim.exhaustive --depth 3 --choices 4 --seconds 900
    python -m tests.sim.exhaustive --depth 3 --resume --seconds 1500 --ledger
    python -m tests.sim.exhaustive --only "later tick"  one workload, in all settings

Before each disk call of the last operation, and after its answer, the process is killed and the
power is cut. After a cut, every possible result is opened: every mix of names, lengths and sectors
if there are at most 1,024 mixes. Otherwise it is every mix of whole pages, if there are at most as
many, and random mixes of sectors up to that number. Each result is opened, compared with the model,
and run to its end. A failure is printed as a schedule, which tests.sim --replay takes.

Invariants:
    1. A result is skipped only if another one of this run had the same bytes and the same knowledge
       of the model. The engine then behaves in the same way.
"""

import argparse
import logging
import pickle
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from hashlib import blake2b
from io import BytesIO
from random import Random
from threading import Lock
from typing import Any, NamedTuple

from tests.sim.disk import SimDisk
from tests.sim.drawing import Op
from tests.sim.files import Node
from tests.sim.lottery import Chosen, every, some
from tests.sim.operations import Operations
from tests.sim.run import run_schedule
from tests.sim.schedule import Schedule
from tests.sim.seams import Allocations, replaced_seams
from tests.sim.shrink import regression_text
from tests.sim.workloads import Workload, workloads
from tests.support import ledger
from tests.support.inside import inside
from timerstore import StoreConfig
from timerstore._engine.base import failpoints

SUITE = "exhaustive workloads"
CHOICES_MAX = 1024
_SEED = 1  # of message ids; no schedule with this seed checks crash images
_NOTHING = ["nothing"]
_TEXT_MAX = 300
_FAILURES_MAX = 10  # failures that are printed
_TOLD_EACH = 20  # number of workloads
_GONE = ("store", "services", "stepper", "disk", "images", "counts", "reached", "_next", "_lottery")


class Left(NamedTuple):
    """The disk as it was at one call."""

    call: int  # number of the next call of the operation
    disk: SimDisk
    durable: int  # end of the durable log, as far as the process knows


class Twin(Operations):
    """A world that can be copied after its process died."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _GONE}

    def known(self) -> bytes:
        """Return the knowledge of the model and of the callers, pickled. Each copy unpickles it."""
        self.clock.forget_listeners()
        found = BytesIO()
        pickler = pickle.Pickler(found)
        pickler.dispatch_table = {type(Lock()): lambda _lock: (Lock, ())}  # listeners of a clock
        pickler.dump(self)
        return found.getvalue()

    def watch(self, op: Op) -> list[Left]:
        """Run an operation, and return the disk at each of its calls, without equal neighbours."""
        found: list[Left] = []
        last = b""
        begin = self.disk.count

        def note() -> None:
            nonlocal last
            self.disk.crash_at = self.disk.count + 1
            if op[0] == "reopen" and self._is_open:
                return  # the operation is done, and its visible messages are read
            durable = inside(self.store).log.durable if self._is_open else self._durable
            now = digest(self.disk, is_whole=True) + durable.to_bytes(8, "big")
            if now != last:
                found.append(Left(self.disk.count - begin, self.disk.killed(), durable))
                last = now

        self.disk.on_crash, self.disk.crash_at = note, begin + 1
        getattr(self, f"op_{op[0]}")(*op[1:])
        self.disarm()
        return found

    def die(self, trigger: Op, end: Op, deaths: list[Op], call: Callable[[], None]) -> None:
        """Start dead: the present disk is never opened."""
        del deaths
        self.arm(trigger, end)
        call()
        self.end_life()

    def live_again(self, left: Left, image: SimDisk, *, is_cut: bool) -> None:
        """Open the disk that is left, as a copy of the world, and run to the end."""
        self.counts, self.reached, self.images = {}, {}, []
        self._lottery, self._next = Random(0), image
        self.was_cut, self._durable = is_cut, left.durable
        failpoints.hook = self._reach
        self.bury()
        self.raise_again([])
        self.finish(is_thorough=False)

    def end_ticks(self) -> None:
        """Do nothing: there are no recurring messages."""

    def unpace(self) -> None:
        """Do nothing: no topic has a rate."""

    def ingest_rest(self) -> None:
        """Do nothing: there is no ingestion."""

    def finish_leases(self) -> None:
        """Do nothing: there are no leases."""


class Failure(NamedTuple):
    """A failure, with a schedule that reproduces it."""

    schedule: Schedule
    text: str

    def __str__(self) -> str:
        error = run_schedule(self.schedule).error
        how = "--replay this" if error is not None else "by itself it does not fail"
        says = self.text.strip().splitlines()[-1][:_TEXT_MAX]
        return f"FAILED ({how}):\n{self.text}\n{regression_text(self.schedule, says, '')}"


class Totals:
    """The sums over many workloads."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.by_depth: Counter[int] = Counter()  # number of workloads
        self.failures: list[Failure] = []
        self.seconds = 0.0  # CPU seconds of one core
        self.told = 0  # the first failures

    @property
    def runs(self) -> int:
        return self.by_depth.total()

    def __str__(self) -> str:
        depths = ", ".join(f"{n:,} of depth {depth}" for depth, n in self.by_depth.items())
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        return (
            f"{self.runs:,} workloads ({depths}): {counts}; {len(self.failures)} failures; "
            f"{self.seconds:.0f} s of one core"
        )


class Explorer:
    """Go through workloads one after the other, with at most `choices_max` mixes for each cut."""

    def __init__(self, choices_max: int = CHOICES_MAX) -> None:
        self.totals = Totals()
        self._choices_max = choices_max
        self._met: set[bytes] = set()  # digests of the disks left, with the knowledge of the model
        self._world: Any = None

    # --- one workload ---

    def explore(self, workload: Workload) -> None:
        """Die at every call of the last operation, and after it."""
        begin = time.process_time()
        before = workload.before
        # _NOTHING is last: the process dies after the answer, and after the visible messages were
        # read
        for op in (*workload.last, _NOTHING):
            try:
                self._die_in(workload, before, op)
            except Exception as error:  # noqa: BLE001 - a failure without a death counts, too
                self._fail(workload, [*before, op], error)
                break
            before = [*before, op]
        self.totals.by_depth[len(workload.names)] += 1
        self.totals.seconds += time.process_time() - begin

    def _die_in(self, workload: Workload, before: list[Op], op: Op) -> None:
        with self._seams(workload):
            world = self._begin(workload, before)
            if op == _NOTHING:
                moments = [Left(1, world.disk.killed(), inside(world.store).log.durable)]
            else:
                moments = world.watch(op)
        if not moments:
            return  # the operation makes no call
        with self._seams(workload) as draw:
            world = self._begin(workload, before)
            world.do(["die", ["call", 1], ["kill", 0, 0], [], op])
            known, drawn = world.known(), draw.getstate()
            model = blake2b(known, digest_size=16).digest()
            for left in moments:
                self.totals.counts["moments"] += 1
                for how, lottery, image in self._ends(left.disk):
                    self.totals.counts["ends"] += 1
                    durable = left.durable.to_bytes(8, "big")
                    key = b"".join((digest(image), how.encode(), durable, model))
                    if key in self._met:
                        continue
                    self._met.add(key)
                    self.totals.counts["stores opened"] += 1
                    draw.setstate(drawn)
                    error = self._open(pickle.loads(known), left, image, how)
                    if error is not None:
                        end = ["die", ["call", left.call], [how, lottery, 0], [], op]
                        self._fail(workload, [*before, end], error)

    def _seams(self, workload: Workload) -> AbstractContextManager[Random]:
        SimDisk.last_number = 0
        return replaced_seams(
            _SEED, lambda: self._world.disk, None, is_small=workload.variant.is_small
        )

    def _begin(self, workload: Workload, ops: list[Op]) -> Twin:
        variant = workload.variant
        config = StoreConfig(**variant.config)
        self._world = world = Twin(config, Allocations(), is_small=variant.is_small)
        world.begin()
        for op in ops:
            world.do(op)
        return world

    def _ends(self, left: SimDisk) -> Iterator[tuple[str, Any, SimDisk]]:
        """Yield how the process dies, the name of that in a schedule, and the disk that is left."""
        left.note_shared()
        for chosen, image in self._cuts(left):
            yield "cut", chosen.to_json(), image
        yield "kill", 0, left  # last, because the run continues on this very disk

    def _cuts(self, left: SimDisk) -> list[tuple[Chosen, SimDisk]]:
        found = every(left.cut, by_sector=True, count_max=self._choices_max)
        if found is not None:
            self.totals.counts["cuts in every mix of sectors"] += 1
            return found
        found = every(left.cut, by_sector=False, count_max=self._choices_max)
        if found is not None:
            self.totals.counts["cuts in every mix of pages"] += 1
        else:
            self.totals.counts["cuts in drawn mixes"] += 1
            found = []
        return [*found, *some(left.cut, self._choices_max - len(found))]

    def _open(self, world: Twin, left: Left, image: SimDisk, how: str) -> Exception | None:
        """Open the disk that is left, and return the error if one occurs."""
        self._world = world
        try:
            world.live_again(left, image, is_cut=how != "kill")
        except Exception as error:  # noqa: BLE001 - every kind of error counts as a failure
            return error
        return None

    def _fail(self, workload: Workload, ops: list[Op], error: Exception) -> None:
        variant = workload.variant
        schedule = Schedule(_SEED, variant.config, variant.is_small, ops)
        text = "".join(traceback.format_exception(error)[-3:])
        self.totals.failures.append(Failure(schedule, text))


def explore(
    given: Iterable[Workload],
    choices_max: int = CHOICES_MAX,
    seconds: float = float("inf"),
    tell: Callable[[Totals], None] = lambda _totals: None,
) -> Totals:
    """Go through as many workloads as fit into the CPU time, and call `tell` after each."""
    explorer = Explorer(choices_max)
    for workload in given:
        if explorer.totals.seconds >= seconds:
            break
        explorer.explore(workload)
        tell(explorer.totals)
    return explorer.totals


def digest(disk: SimDisk, *, is_whole: bool = False) -> bytes:
    """Return a digest of the files that a process finds.

    With `whole`, include all that a cut may leave.
    """
    found = blake2b(digest_size=16)
    numbers: dict[int, int] = {}
    for folders in (disk.names, disk.synced) if is_whole else (disk.names,):
        for folder in sorted(folders):
            for name, node in sorted(folders[folder].items()):
                number = -1 if node is None else numbers.setdefault(node.number, len(numbers))
                found.update(f"{folder} {name} {number};".encode())
                if node is not None and number == len(numbers) - 1:
                    _digest_node(found, node, is_whole=is_whole)
    return found.digest()


def _digest_node(found: Any, node: Node, *, is_whole: bool) -> None:
    found.update(f"{len(node.cache)} {sorted(node.taken)};".encode())
    found.update(node.cache)
    if is_whole:
        found.update(f"{node.sizes} {len(node.platter)};".encode())
        found.update(node.platter)
        for page, states in sorted(node.versions.items()):
            found.update(f"{page} {len(states)};".encode())
            for state in states:
                found.update(state)


def suite(choices_max: int) -> str:
    """Return the name of this run in the ledger.

    Few mixes prove less than all, so they are named apart.
    """
    return SUITE if choices_max == CHOICES_MAX else f"{SUITE}, {choices_max} mixes a cut"


def note(totals: Totals, depth: int, choices_max: int) -> None:
    """Add to the ledger how many of all workloads ran, so that it shows the remainder."""
    there = Counter(len(one.names) for one in workloads(depth))
    counts = {f"of {there[count]:,} of depth {count}": totals.by_depth[count] for count in there}
    ledger.add(suite(choices_max), totals.runs, totals.seconds, {**counts, **totals.counts})


def _tell(totals: Totals) -> None:
    """Print failures and progress as they occur, so that an interrupted run loses none."""
    for failure in totals.failures[totals.told : _FAILURES_MAX]:
        print(failure, flush=True)
    totals.told = len(totals.failures)
    if totals.runs % _TOLD_EACH == 0:
        print(totals, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim.exhaustive", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--only", metavar="NAMES", help="of a workload")
    parser.add_argument("--first", type=int, default=0, help="so many are passed over")
    parser.add_argument("--resume", action="store_true", help="where the ledger says it ended")
    parser.add_argument("--choices", type=int, default=CHOICES_MAX, help="of one power cut")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of one core")
    parser.add_argument("--ledger", action="store_true")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    found = [one for one in workloads(given.depth) if given.only in (None, " ".join(one.names))]
    first = given.first
    if given.resume:
        before = ledger.sums().get(suite(given.choices))
        first = before.runs % len(found) if before is not None else 0
    print(f"{len(found):,} workloads, from {first} on, commit {ledger.commit()}", flush=True)
    totals = explore(found[first:], given.choices, given.seconds, _tell)
    print(totals)
    left = len(found) - first - totals.runs
    if left:
        print(f"NOT RUN: {left:,} of depth {given.depth}; go on with --first {first + totals.runs}")
    if given.ledger and given.only is None:
        note(totals, given.depth, given.choices)
    return bool(totals.failures)


if __name__ == "__main__":
    sys.exit(main())
