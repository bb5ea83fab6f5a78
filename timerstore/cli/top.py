"""Command `top`: show a live screen of a store.

Thread safety: it reads a snapshot and takes no lock.
"""

import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from timerstore._engine.snapshot.live_stats import LiveStats, Watch
from timerstore.cli.exits import CommandError
from timerstore.cli.opening import connected, stores_in
from timerstore.cli.output import emit, say
from timerstore.cli.params import COUNT, SPAN, StorePlace, StoreUrl, json_option, store_argument
from timerstore.cli.screen import TURNS, ScreenTurn, make_screen
from timerstore.cli.served_watch import ServedWatch
from timerstore.cli.stopping import Stop, stopping
from timerstore.cli.streams import writing_result
from timerstore.cli.summaries import as_json as head
from timerstore.cli.text import iso
from timerstore.types.clock import SystemClock

AnyWatch = Watch | ServedWatch

_HEIGHT_MIN = 24


@click.command("top")
@store_argument
@click.option("--every", type=SPAN, default="1s", show_default=True, help="Time between updates.")
@click.option(
    "--turn", type=click.Choice(list(TURNS)), help="Unit of the ring; default: automatic."
)
@click.option("-n", "--max", "max_count", type=COUNT, help="Exit after so many updates.")
@click.option("--once", is_flag=True, help="Write one screen as text and exit.")
@json_option
def top_command(
    path: StorePlace,
    every: timedelta,
    turn: str | None,
    max_count: int | None,
    once: bool,
    as_json: bool,
) -> None:
    """Show a live screen: the wheel, pending messages by due time, rates and lateness.

    The command works while another process has the store open. Of a served store, lateness is
    that of the last looks, by bound. Keys: q quits; s, m and h show
    seconds, minutes or hours on the ring; a chooses automatically.
    """
    with _watching(path) as watch:
        _show(watch, str(path), every, turn, max_count, once=once, as_json=as_json)


@contextmanager
def _watching(place: StorePlace) -> Iterator[AnyWatch]:
    """Return what measures a store: from its files, or through its server."""
    if isinstance(place, StoreUrl):
        with connected(place) as store:
            yield ServedWatch(store)
    else:
        yield Watch(stores_in(place))


def _show(
    watch: AnyWatch,
    title: str,
    every: timedelta,
    turn: str | None,
    max_count: int | None,
    *,
    once: bool,
    as_json: bool,
) -> None:
    if once:
        console = Console(file=sys.stdout)
        stats = _look(watch)
        if as_json:
            emit(_fields(stats, title))
            return
        height = max(_HEIGHT_MIN, console.height)
        # Captured, because rich ends the process itself on a broken pipe.
        with writing_result(), console.capture() as screen:
            console.print(make_screen(stats, title, _turn(turn), height=height), height=height)
        say(screen.get().removesuffix("\n"))
        return
    wait = max(0.05, every.total_seconds())
    if not as_json and not sys.stdout.isatty():
        raise CommandError(
            "standard output is not a terminal",
            do="use `top --once` for one screen, or `top --json` for JSON lines",
        )
    with stopping() as stop:
        if as_json:
            _emit_all(watch, title, wait, max_count, stop)
        else:
            _show_all(watch, title, turn, wait, max_count, stop)


def _turn(name: str | None) -> ScreenTurn | None:
    return None if name is None else TURNS[name]


def _look(watch: AnyWatch) -> LiveStats:
    return watch.look(SystemClock().now_ms, time.monotonic())


def _emit_all(watch: AnyWatch, title: str, wait: float, max_count: int | None, stop: Stop) -> None:
    done = 0
    while True:
        emit(_fields(_look(watch), title))
        done += 1
        if done == max_count or stop.wait(wait):
            return


def _show_all(
    watch: AnyWatch, title: str, turn: str | None, wait: float, max_count: int | None, stop: Stop
) -> None:
    console = Console(file=sys.stdout)
    done = 0
    with _keys() as stdin, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            stats = _look(watch)
            live.update(make_screen(stats, title, _turn(turn), height=console.height), refresh=True)
            done += 1
            if done == max_count:
                return
            end = time.monotonic() + wait
            while not stop.is_asked and (left := end - time.monotonic()) > 0:
                key = _key(stdin, min(left, 0.1))
                if key == "q":
                    return
                if key and key in "smha":
                    turn = None if key == "a" else key
                    break
            if stop.is_asked:
                return


@contextmanager
def _keys() -> Iterator[int | None]:
    """Set the terminal to unbuffered keys without echo; yield None without a terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    try:
        tty.setcbreak(stdin)
        yield stdin
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _key(stdin: int | None, seconds: float) -> str:
    if stdin is None:
        time.sleep(seconds)
        return ""
    if select.select([stdin], [], [], seconds)[0]:
        return sys.stdin.read(1)
    return ""


def _fields(stats: LiveStats, title: str) -> dict[str, Any]:
    late = stats.lateness
    return {
        "time": iso(stats.now_ms),
        "stores": [head(one) for one in stats.looks] or [{"url": title}],
        "pending": stats.pending,
        "late": stats.late,
        "on_the_wheel": dict(stats.by_time()),
        "delivered_per_s": round(stats.arrived_per_s, 3),
        "timers_put_per_s": round(stats.put_per_s, 3),
        "log_bytes_per_s": round(stats.log_per_s),
        "lateness_ms": None if late is None else late._asdict(),
        "topics": {
            name: {"pending": pending, "delivered": delivered, "per_s": round(rate, 3)}
            for name, (pending, delivered, rate) in stats.by_topic.items()
        },
        "groups": [
            {"topic": topic, "group": group, **asdict(one)} for topic, group, one in stats.groups
        ],
    }
