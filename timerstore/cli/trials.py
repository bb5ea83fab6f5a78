"""Commands `bench` and `demo`: measure this machine, and check deliveries, in a temporary store."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.console import Console
from rich.live import Live

from timerstore import store as single
from timerstore._engine.snapshot.live_stats import Watch
from timerstore.cli.exits import Exit
from timerstore.cli.opening import stores_in
from timerstore.cli.output import emit, note, say, table
from timerstore.cli.params import FOLDER, Seconds, json_option
from timerstore.cli.progress import progress
from timerstore.cli.screen import make_screen
from timerstore.cli.stopping import Stop, stopping
from timerstore.clock import SystemClock
from timerstore.config import StoreConfig
from timerstore.messages import BODY_BYTES_MAX
from timerstore.store import TimerStore

_TOPIC = "demo"
_PAGE = 10_000
_GRACE_S = 10.0


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    """Yield a temporary directory, which is removed afterwards, or the given one, which is kept."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="timerstore-") as name:
        yield Path(name) / "store"


# --- bench ----------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """One measurement."""

    what: str
    number: int
    seconds: float

    @property
    def rate(self) -> float:
        """Return the number per second."""
        return self.number / self.seconds if self.seconds else 0.0


@click.command("bench")
@click.option(
    "-n", "count", type=click.IntRange(1000, 100_000_000), default=200_000, show_default=True
)
@click.option(
    "--bytes", "size", type=click.IntRange(8, BODY_BYTES_MAX), default=128, show_default=True
)
@click.option("--directory", type=FOLDER, help="A new directory, on the disk to measure.")
@json_option
def bench_command(count: int, size: int, directory: Path | None, as_json: bool) -> None:
    """Measure this machine: put, deliver and read some messages.

    The numbers are rough. The full benchmark, with other stores, is `make bench` in a checkout.
    """
    config = StoreConfig(flush="async", precision_ms=100)
    with _folder(directory) as path, stopping() as stop, single.open(path, config) as store:
        lines = _measure(store, count, size, stop)
    if as_json:
        for one in lines:
            emit({"what": one.what, "n": one.number, "s": one.seconds, "per_s": one.rate})
    else:
        rows = [(one.what, one.number, f"{one.seconds:.3f} s", int(one.rate)) for one in lines]
        table(("operation", "messages", "time", "per second"), rows)


def _measure(store: TimerStore, count: int, size: int, stop: Stop) -> list[Measured]:
    body = bytes(size)
    singles = min(count, 20_000)
    synced = 50
    lines = [
        _timed(
            f"put, each synced ({size} B)",
            synced,
            lambda: _put_each(store, body, synced, "sync"),
        ),
        _timed("put, one by one", singles, lambda: _put_each(store, body, singles, "async")),
    ]
    stop.check()
    lines.append(
        _timed("put_many, batches of 1,000", count, lambda: _put_lists(store, body, count))
    )
    stop.check()
    store.flush()
    lines.append(_timed("deliver and read", count, lambda: _drain(store, count, stop)))
    return lines


def _timed(what: str, count: int, work: Callable[[], None]) -> Measured:
    begin = time.perf_counter()
    work()
    return Measured(what, count, time.perf_counter() - begin)


def _put_each(store: TimerStore, body: bytes, count: int, flush: str) -> None:
    for _ in range(count):
        store.put("single", body, flush=flush)


def _put_lists(store: TimerStore, body: bytes, count: int) -> None:
    """Put messages that are due in 200 ms; the next measurement delivers them."""
    due_ms = SystemClock().now_ms + 200
    for begin in range(0, count, 1000):
        store.put_many(_TOPIC, [body] * min(1000, count - begin), deliver_ms=due_ms)


def _drain(store: TimerStore, count: int, stop: Stop) -> None:
    offset = 0
    while offset < count and not stop.is_asked:
        page = store.pull_batch(_TOPIC, 0, offset, max_count=_PAGE, wait=0.2)
        offset = page.next_offset


# --- demo -----------------------------------------------------------------------------------------


class Audit:
    """Count the deliveries of each message of the demo, and their lateness."""

    def __init__(self, due_ms: Any) -> None:
        self.due_ms = due_ms
        self.times = np.zeros(len(due_ms), np.int64)
        self.late = np.zeros(len(due_ms), np.int64)
        self.early = 0

    @property
    def delivered(self) -> int:
        """Return the number of messages that were delivered at least once."""
        return int(np.count_nonzero(self.times))

    def take(self, page: Any) -> None:
        """Count a batch. Each body is the number of its message, in 8 bytes."""
        numbers = np.frombuffer(page.bodies, np.int64)[: len(page)]
        np.add.at(self.times, numbers, 1)
        late = page.delivered_ms - self.due_ms[numbers]
        self.late[numbers] = late
        self.early += int(np.count_nonzero(late < 0))

    def fields(self) -> dict[str, Any]:
        """Return the JSON fields of the result."""
        late = self.late[self.times > 0]
        p50, p99, top = (
            (float(np.percentile(late, p)) for p in (50, 99, 100)) if len(late) else (0, 0, 0)
        )
        lost, doubled = int(np.count_nonzero(self.times == 0)), int(np.sum(self.times > 1))
        return {
            "scheduled": len(self.times),
            "delivered": self.delivered,
            "lost": lost,
            "doubled": doubled,
            "early": self.early,
            "lateness_ms": {"p50": p50, "p99": p99, "max": top},
            "passed": not (lost or doubled or self.early),
        }


@click.command("demo")
@click.option("-n", "count", type=click.IntRange(1, 10_000_000), default=20_000, show_default=True)
@click.option("--seconds", type=Seconds(0.5, 3600), default=10.0, show_default=True)
@click.option("--directory", type=FOLDER, help="Keep the store in this new directory.")
@click.option("--plain", is_flag=True, help="Show no live screen.")
@json_option
def demo_command(
    count: int, seconds: float, directory: Path | None, plain: bool, as_json: bool
) -> None:
    """Schedule messages over some seconds, count their deliveries, and print PASS or FAIL.

    The store is temporary. On a terminal the command shows the screen of `timerstore top`.
    """
    show = not plain and not as_json and Console().is_terminal
    with _folder(directory) as path, stopping() as stop:
        config = StoreConfig(flush="async", checkpoint_interval_ms=200)
        with single.open(path, config) as store:
            audit = _schedule(store, count, seconds)
            _deliver(store, path, audit, seconds, stop, show=show)
            problems = store.verify().problems
    stop.check()
    found = {**audit.fields(), "verified": not problems}
    is_fine = found["passed"] and not problems
    if as_json:
        emit(found)
    else:
        late = found["lateness_ms"]
        say(
            f"scheduled {count:,} over {seconds:g} s: lost {found['lost']}, doubled "
            f"{found['doubled']}, early {found['early']}"
        )
        say(f"lateness p50 {late['p50']:.0f}, p99 {late['p99']:.0f}, max {late['max']:.0f} ms")
        say("PASS" if is_fine else "FAIL")
    if directory is not None:
        note(f"the store is in {directory}: timerstore ls {directory}")
    if not is_fine:
        raise click.exceptions.Exit(Exit.NOT_SO)


def _schedule(store: TimerStore, count: int, seconds: float) -> Audit:
    """Put all messages, with random due times (a beta distribution) after half a second."""
    rng = np.random.default_rng(1)
    share = rng.beta(2.0, 3.0, count)
    due_ms = SystemClock().now_ms + 500 + (share * (seconds - 0.5) * 1000).astype(np.int64)
    numbers = np.arange(count, dtype=np.int64)
    with progress("putting", of_bytes=False) as on_progress:
        for begin in range(0, count, _PAGE):
            end = min(begin + _PAGE, count)
            offsets = np.arange(end - begin + 1, dtype=np.int64) * 8
            store.put_many(
                _TOPIC, (numbers[begin:end].tobytes(), offsets), deliver_ms=due_ms[begin:end]
            )
            on_progress(end, count)
    return Audit(due_ms)


def _deliver(
    store: TimerStore, path: Path, audit: Audit, seconds: float, stop: Stop, *, show: bool
) -> None:
    """Read deliveries until all arrived, or until ten seconds after the last due time."""
    end, offset = time.monotonic() + seconds + _GRACE_S, 0
    screen = _Screen(path) if show else None
    with _live(screen):
        while audit.delivered < len(audit.due_ms) and time.monotonic() < end and not stop.is_asked:
            page = store.pull_batch(_TOPIC, 0, offset, max_count=_PAGE, wait=0.1)
            audit.take(page)
            offset = page.next_offset
            if screen is not None:
                screen.update()


class _Screen:
    """The screen of `top` for a store that this process has open."""

    def __init__(self, path: Path) -> None:
        self._watch = Watch(stores_in(path))
        self._console = Console()
        self.live = Live(console=self._console, screen=True, auto_refresh=False)
        self._next = 0.0

    def update(self) -> None:
        """Update the screen, at most four times a second."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 0.25
        stats = self._watch.look(SystemClock().now_ms, now)
        title = f"demo, process {os.getpid()}"
        self.live.update(make_screen(stats, title, None, height=self._console.height), refresh=True)


@contextmanager
def _live(screen: _Screen | None) -> Iterator[None]:
    if screen is None:
        yield
        return
    with screen.live:
        yield
