"""What every benchmark shares: clock, seeds, percentiles, memory, disk, one JSON line a result.

Data:     results are JSON lines on standard output, and appended to a file with --json.
Threads:  none.
Holds:    (1) a line carries a digest of the work done: two runs with one digest did the same;
          (2) what a program prepares or checks is outside the time it reports.
Fails:    WorkError when the work done is not the work asked for: such a time is worth nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import json
import math
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from timerstore import StoreConfig

SEED = 20131
"""Seed of every random number here; with equal parameters two runs do equal work."""

START_MS = 1_700_000_000_000
"""Where turned clocks start: a fixed day, a multiple of the wheel's precision."""

_OVERHEAD_BYTES = 800  # of a message, beyond twice its body; rounded up

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


class WorkError(RuntimeError):
    """The store, or a peer, did other work than it was asked for."""


def filled_bytes(n: int, body: int) -> int:
    """What `n` messages fill on disk at most, from their put to after their delivery."""
    return n * (2 * body + _OVERHEAD_BYTES)


def need(condition: bool, what: str) -> None:
    """Raise WorkError(what) unless the condition holds; stays under python -O."""
    if not condition:
        raise WorkError(what)


# ---------------------------------------------------------------- time and figures


class Stopwatch:
    """Adds up the seconds spent in `with watch:` blocks; keeps each lap."""

    def __init__(self) -> None:
        self.laps_ns: list[int] = []
        self._since_ns = 0

    def __enter__(self) -> Self:
        self._since_ns = time.perf_counter_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.laps_ns.append(time.perf_counter_ns() - self._since_ns)

    @property
    def seconds(self) -> float:
        """Sum of the laps."""
        return sum(self.laps_ns) / 1e9


class Spread(NamedTuple):
    """Median, 99th percentile and maximum of a sample, in the sample's unit."""

    p50: float
    p99: float
    max: float


def spread(sample: Sequence[float] | NDArray[Any]) -> Spread:
    """Of nothing: three NaN. Percentiles are members of the sample, never between two."""
    values = np.asarray(sample, dtype=np.float64)
    if values.size == 0:
        return Spread(float("nan"), float("nan"), float("nan"))
    p50, p99 = np.percentile(values, [50, 99], method="higher")
    return Spread(float(p50), float(p99), float(values.max()))


def histogram(sample: Sequence[float] | NDArray[Any]) -> list[tuple[float, int]]:
    """Upper edges, doubling from 1, and how many lie at or below each but above the last."""
    values = np.asarray(sample, dtype=np.float64)
    if values.size == 0:
        return []
    top = max(1, int(np.ceil(np.log2(max(1.0, float(values.max()))))))
    edges = [0.0, *(2.0**power for power in range(top + 1))]
    places = np.bincount(np.searchsorted(edges, values), minlength=len(edges))
    return [(edge, int(count)) for edge, count in zip(edges, places, strict=False) if count]


# ---------------------------------------------------------------- the work


class Work(NamedTuple):
    """Messages to schedule: row i is body i of `buffer`, due at due_ms[i].

    A body starts with its row as a little-endian u64; the rest is noise that does not compress.
    """

    n: int
    body_bytes: int
    buffer: bytes
    offsets: Int64
    due_ms: Int64

    def bodies(self, begin: int, end: int) -> list[bytes]:
        """Rows begin to end as separate bytes objects."""
        size = self.body_bytes
        return [self.buffer[at * size : (at + 1) * size] for at in range(begin, end)]

    def part(self, begin: int, end: int) -> tuple[memoryview, Int64]:
        """Rows begin to end as one buffer and its offsets, n + 1 of them."""
        size = self.body_bytes
        view = memoryview(self.buffer)[begin * size : end * size]
        return view, self.offsets[begin : end + 1] - self.offsets[begin]

    def due_order(self) -> Int64:
        """Rows in the order in which they must come out: by due time, then as put."""
        return np.argsort(self.due_ms, kind="stable").astype(np.int64)


def make_work(n: int, body_bytes: int, horizon_ms: int, *, start_ms: int = START_MS) -> Work:
    """Due times are uniform in (start, start + horizon]."""
    need(body_bytes >= 8, "a body must hold its row number: 8 bytes")
    random = np.random.default_rng(SEED)
    matrix = random.integers(0, 256, size=(n, body_bytes), dtype=np.uint8)
    matrix[:, :8] = np.arange(n, dtype="<u8").view(np.uint8).reshape(n, 8)
    due = start_ms + random.integers(1, horizon_ms + 1, size=n, dtype=np.int64)
    offsets = np.arange(n + 1, dtype=np.int64) * body_bytes
    return Work(n, body_bytes, matrix.tobytes(), offsets, due)


def rows_of(bodies: bytes | bytearray | memoryview, body_bytes: int) -> Int64:
    """Row numbers from bodies of one length that lie side by side."""
    matrix = np.frombuffer(bodies, dtype=np.uint8).reshape(-1, body_bytes)
    return np.ascontiguousarray(matrix[:, :8]).view("<u8").reshape(-1).astype(np.int64)


def digest(*parts: bytes | bytearray | memoryview | NDArray[Any] | str) -> str:
    """Sixteen hex digits over the parts, their order and their lengths."""
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, str):
            data: bytes | memoryview = part.encode()
        elif isinstance(part, np.ndarray):
            data = np.ascontiguousarray(part).tobytes()
        else:
            data = memoryview(part)
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


# ---------------------------------------------------------------- memory and disk


def peak_rss_bytes(*, children: bool = False) -> int:
    """Highest resident set of this process, or of a child that ended, mapped files included."""
    who = resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF
    return resource.getrusage(who).ru_maxrss * 1024


class Memory(NamedTuple):
    """Resident bytes of this process now: all, anonymous, and pages of files under a root."""

    rss_bytes: int
    anonymous_bytes: int
    root_bytes: int

    @property
    def beyond_bytes(self) -> int:
        """Resident, and not a page of a file under the root."""
        return self.rss_bytes - self.root_bytes


def memory(root: Path) -> Memory:
    """Read /proc/self/smaps. Anonymous pages of a private mapping under root are not root's."""
    gc.collect()
    prefix = os.fsencode(os.path.realpath(root)) + b"/"
    rss = anonymous = inside = 0
    under = False
    mapped = 0
    with Path("/proc/self/smaps").open("rb") as smaps:
        for line in smaps:
            key, _, rest = line.partition(b":")
            if b" " in key:  # a header: address range, permissions, ..., path
                under = prefix in line
            elif key == b"Rss":
                mapped = int(rest.split()[0]) * 1024
                rss += mapped
                inside += mapped if under else 0
            elif key == b"Anonymous":
                private = int(rest.split()[0]) * 1024
                anonymous += private
                inside -= private if under else 0
    return Memory(rss, anonymous, inside)


class Disk(NamedTuple):
    """Files under a directory, their lengths and the blocks they take."""

    files: int
    apparent_bytes: int
    allocated_bytes: int


def disk(root: Path) -> Disk:
    """Walk the tree once; links are not followed. What goes meanwhile, as what a running server
    replaces, does not count.
    """
    files = apparent = allocated = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                status = Path(folder, name).lstat()
            except FileNotFoundError:
                continue
            files += 1
            apparent += status.st_size
            allocated += status.st_blocks * 512
    return Disk(files, apparent, allocated)


def place(directory: Path | None) -> Path:
    """A folder that exists on the file system on which `workspace` would make a directory."""
    there = Path(tempfile.gettempdir()) if directory is None else directory.resolve()
    while not there.exists():
        there = there.parent
    return there


@contextlib.contextmanager
def heeding_sigterm() -> Iterator[None]:
    """SIGTERM ends what runs in here as Ctrl-C does, with exit status 143: what is to be removed is
    removed. Whoever heeds it himself goes on doing so.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminated(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one would cut off what the first has begun
    raise SystemExit(128 + number)


@contextlib.contextmanager
def workspace(directory: Path | None, *, keep: bool = False) -> Iterator[Path]:
    """A directory for a run: the one given, which must be empty or new, or a temporary one.

    It is removed at the end, also where that is SIGTERM, unless keep is set.
    """
    with heeding_sigterm(), _workspace(directory, keep=keep) as root:
        yield root


@contextlib.contextmanager
def _workspace(directory: Path | None, *, keep: bool) -> Iterator[Path]:
    if directory is None:
        root = Path(tempfile.mkdtemp(prefix="timerstore-bench-"))
    else:
        root = directory.resolve()  # a server may look from elsewhere; a link is not removed
        root.mkdir(parents=True, exist_ok=True)
        need(not any(root.iterdir()), f"{root} is not empty: give a new directory")
    try:
        yield root
    finally:
        if not keep:
            shutil.rmtree(root, ignore_errors=True)


def small_config(**changes: Any) -> StoreConfig:
    """Geometry for smoke runs: files of a mebibyte, so that opening costs nothing."""
    fields: dict[str, Any] = {
        "commit_log_segment_bytes": 1 << 20,
        "queue_segment_bytes": 20 * 4096,
        "timer_log_segment_bytes": 52 * 4096,
        "wheel_slot_count": 1024,
        "index_slot_count": 4096,
        "index_entry_count": 65_536,
        "roll_window_slots": 512,
    }
    fields.update(changes)
    return StoreConfig(**fields)


_PATIENCE_S = 10.0  # for a child that is to end and may have servers to stop


def isolated(job: Callable[[], Result], *, fork: bool = True, folder: Path | None = None) -> Result:
    """Run the job in a forked child, so that no run inherits another's heap; here if not fork.

    The parent must hold no open store. Raises what the job raises, WorkError if the child dies.
    `folder`: where it works. Whatever ends the parent ends the child, too.
    """
    if not fork:
        return job()
    with heeding_sigterm():
        return _in_child(job, folder)


def _in_child(job: Callable[[], Result], folder: Path | None) -> Result:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(sender, job))
    child.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        answer = None
    except BaseException:
        child.terminate()
        child.join(_PATIENCE_S)
        child.kill()
        child.join()
        raise
    child.join()
    if isinstance(answer, Result):
        return answer
    if isinstance(answer, BaseException):
        raise answer
    raise WorkError(_why_ended(child.exitcode or 0, folder))


def _why_ended(status: int, folder: Path | None) -> str:
    """What became of a child that has given no result; below 0: the signal that ended it."""
    if status >= 0:
        return f"a child ended with {status} and without a result"
    what = f"a child was ended by {signal.Signals(-status).name}"
    if -status == signal.SIGKILL:
        return f"{what} (as the system does where memory is short)"
    if -status != signal.SIGBUS:
        return what
    what = f"{what} (a file that it had mapped could not be written, as on a full disk)"
    free = "" if folder is None else f": {shutil.disk_usage(folder).free} bytes are free there"
    return f"{what}{free}"


def _answer(sender: Connection, job: Callable[[], Result]) -> None:
    try:
        sender.send(job())
    except Exception as error:  # the parent raises it again
        sender.send(WorkError(f"{type(error).__name__}: {error}"))
        raise
    finally:
        sender.close()


# ---------------------------------------------------------------- results


@dataclass(frozen=True, slots=True)
class Result:
    """One line. p50, p99 and max are of the unit named; figures holds what only this line has."""

    name: str
    parameters: Mapping[str, Any]
    n: int
    rate: float
    unit: str
    spread: Spread
    flush: str
    work: str
    figures: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """JSON on one line; what is not a number there is null."""
        record: dict[str, Any] = {
            "name": self.name,
            "parameters": dict(self.parameters),
            "n": self.n,
            "rate": _rounded(self.rate),
            "unit": self.unit,
            "p50": _rounded(self.spread.p50),
            "p99": _rounded(self.spread.p99),
            "max": _rounded(self.spread.max),
            "flush": self.flush,
            "work": self.work,
        }
        record.update({key: _rounded(value) for key, value in self.figures.items()})
        return json.dumps(record)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return None if not math.isfinite(value) else float(f"{value:.6g}")
    if isinstance(value, np.generic):
        return _rounded(value.item())
    return value


def emit(results: Iterable[Result], out: Path | None) -> list[Result]:
    """Print each line as it comes, append it to the file if there is one, give all back."""
    done = []
    for result in results:
        print(result.line(), flush=True)
        if out is not None:
            with out.open("a", encoding="utf-8") as lines:
                lines.write(result.line() + "\n")
        done.append(result)
    return done


def table(results: Sequence[Result]) -> str:
    """The lines for people: name, parameters that differ, rate, spread."""
    head = ("benchmark", "parameters", "rate/s", "unit", "p50", "p99", "max", "flush")
    rows: list[tuple[str, ...]] = [head]
    for result in results:
        told = " ".join(f"{key}={value}" for key, value in result.parameters.items())
        figures = (f"{value:,.6g}" if math.isfinite(value) else "-" for value in result.spread)
        rate = f"{result.rate:,.0f}" if math.isfinite(result.rate) else "-"
        rows.append((result.name, told, rate, result.unit, *figures, result.flush))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    right = {2, 4, 5, 6}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def medians(results: Sequence[Result]) -> list[Result]:
    """Of the runs that differ in nothing but their round, the one with the median rate."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        key = (result.name, json.dumps(dict(result.parameters), sort_keys=True))
        groups.setdefault(key, []).append(result)
    return [
        sorted(group, key=lambda result: result.rate)[(len(group) - 1) // 2]
        for group in groups.values()
    ]


def arguments(description: str | None, full: Mapping[str, Any]) -> argparse.ArgumentParser:
    """A parser with --smoke, --directory, --json, and an option for each number in `full`."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="tiny values: does it still run?")
    parser.add_argument("--directory", type=Path, help="where stores are made (default: temporary)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="append the lines to a file too")
    for name, value in full.items():
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, type=given_as(type(value)), help=f"default {value}")
    return parser


def given_as(kind: type) -> Callable[[str], Any]:
    """What reads an option: a number is above 0."""
    if kind not in (int, float):
        return kind

    def read(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"wanted more than 0, got {text}")
        return value

    read.__name__ = kind.__name__  # argparse tells it
    return read


def chosen(
    options: argparse.Namespace, full: Mapping[str, Any], smoke: Mapping[str, Any]
) -> dict[str, Any]:
    """The full or the smoke values, with what the command line says instead."""
    values = dict(smoke if options.smoke else full)
    given = {name: getattr(options, name) for name in values}
    return values | {name: value for name, value in given.items() if value is not None}


def or_none(value: float) -> float | None:
    """JSON has no NaN: None stands for it. A whole number loses its point."""
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() else value


def main_of(
    description: str | None,
    full: Mapping[str, Any],
    smoke: Mapping[str, Any],
    run: Callable[[dict[str, Any], bool, Path | None], Iterable[Result]],
    argv: Sequence[str] | None,
) -> int:
    """What the main() of every benchmark does: lines on standard output, a table beside them."""
    options = arguments(description, full).parse_args(argv)
    found = run(chosen(options, full, smoke), options.smoke, options.directory)
    print(table(medians(emit(found, options.json))), file=sys.stderr)
    return 0
