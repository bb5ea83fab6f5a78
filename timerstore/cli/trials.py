"""Command `bench`: measure this machine, in a temporary store."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click

from timerstore import store as single
from timerstore.cli.exits import CommandError
from timerstore.cli.output import emit, table
from timerstore.cli.params import FOLDER, json_option
from timerstore.cli.stopping import Stop, stopping
from timerstore.shards.kinds import Kind, kind_of
from timerstore.store import TimerStore
from timerstore.types.clock import SystemClock
from timerstore.types.config import StoreConfig
from timerstore.types.messages import BODY_BYTES_MAX

_TOPIC = "bench"
_PAGE = 10_000


@contextmanager
def trial_folder(given: Path | None) -> Iterator[Path]:
    """Yield a temporary directory, which is removed afterwards, or the given one, which is kept.

    Raises: CommandError if the given one has something in it, or is no directory.
    """
    if given is not None:
        if given.exists() and (not given.is_dir() or any(given.iterdir())):
            kind = kind_of(given) if given.is_dir() else "file"
            raise CommandError(
                "cannot create a store at this path",
                where=given,
                wanted="a new or empty directory",
                got="other files" if kind is Kind.NOTHING else f"a {kind}",
            )
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="timerstore-") as name:
        yield Path(name) / "store"


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
    with stopping() as stop, trial_folder(directory) as path, single.open(path, config) as store:
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
