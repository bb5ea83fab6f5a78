"""Lay out the screen of `top` from one LiveStats.

Invariants:
    1. The screen fits 80 columns and 24 rows, and uses a larger terminal.
    2. Text of a store contains no control character on the screen.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from rich.console import Group
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from timerstore._engine.base.metrics import LATE_MS
from timerstore._engine.snapshot.live_stats import LiveStats
from timerstore.cli.summaries import holder_text
from timerstore.cli.text import safe, size_text, span_text, time_text
from timerstore.cli.wheel_ring import draw

RING_WIDTH = 39
RING_HEIGHT = 19
_PANEL_ROWS_MIN = 5
_BARS = " ▁▂▃▄▅▆▇█"


class ScreenTurn(NamedTuple):
    """The time that one turn of the ring covers."""

    name: str
    unit_ms: int
    places: int


TURNS = {
    "s": ScreenTurn("60 seconds", 1000, 60),
    "m": ScreenTurn("60 minutes", 60_000, 60),
    "h": ScreenTurn("24 hours", 3_600_000, 24),
}


def choose_turn(stats: LiveStats) -> ScreenTurn:
    """Return the shortest turn in which a message is due."""
    for turn in TURNS.values():
        if turn.unit_ms >= stats.precision_ms and stats.ring(turn.unit_ms, turn.places).any():
            return turn
    return TURNS["m" if stats.precision_ms > 1000 else "s"]


def make_screen(stats: LiveStats, title: str, turn: ScreenTurn | None, *, height: int) -> Layout:
    """Lay out the screen. With `turn` None, choose the turn."""
    turn = turn or choose_turn(stats)
    whole = Layout()
    whole.split_column(
        Layout(_head(stats, title), size=1),
        Layout(name="body"),
        Layout(Text(" q quit   s seconds   m minutes   h hours   a automatic", "dim"), size=1),
    )
    right = Layout(name="right")
    whole["body"].split_row(Layout(_wheel(stats, turn), size=RING_WIDTH + 4), right)
    rows = max(3, height - 2 - 12 - 6)
    lower = [Layout(_topics(stats, rows - 3))]
    if stats.groups:
        half = rows // 2
        groups = Layout(_groups(stats, (half if half >= _PANEL_ROWS_MIN else rows) - 3))
        lower = [*lower, groups] if half >= _PANEL_ROWS_MIN else [groups]
    right.split_column(Layout(_by_time(stats), size=12), Layout(_rates(stats), size=6), *lower)
    return whole


def _head(stats: LiveStats, title: str) -> Table:
    head = Table.grid(expand=True)
    head.add_column(no_wrap=True, ratio=1)
    head.add_column(justify="right", no_wrap=True)
    holders = sorted({holder_text(one) for one in stats.looks}) or ["served"]
    style = "green" if all(one.holder is not None for one in stats.looks) else "yellow"
    left = Text.assemble(
        (" timerstore ", "bold reverse"), " ", ("; ".join(holders), style), f"  {safe(title)}"
    )
    head.add_row(left, Text(time_text(stats.now_ms)[11:19] + " ", "dim"))
    return head


def _wheel(stats: LiveStats, turn: ScreenTurn) -> Panel:
    counts = stats.ring(turn.unit_ms, turn.places)
    now = stats.now_ms // turn.unit_ms % turn.places
    ahead = stats.due_ms[(stats.counts > 0) & (stats.due_ms > stats.now_ms - stats.precision_ms)]
    middle = [
        _count(stats.pending),
        "pending",
        "",
        f"{int(counts.sum()):,} in {turn.name}",
        _next(int(ahead[0]) - stats.now_ms) if len(ahead) else "",
    ]
    ring = draw(counts.tolist(), now, middle, width=RING_WIDTH, height=RING_HEIGHT)
    return Panel(ring, title=f"the next {turn.name}", border_style="dim")


def _next(ms: int) -> str:
    return f"next slot in {span_text(ms)}" if ms > 0 else "a slot is open"


def _by_time(stats: LiveStats) -> Panel:
    rows = stats.by_time()
    top = max(count for _, count in rows)
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(ratio=1, no_wrap=True)
    for name, count in rows:
        style = "red" if name == "late" and count else "cyan"
        grid.add_row(name, f"{count:,}", Bar(count, top, style))
    return Panel(grid, title="on the wheel, due within", border_style="dim")


class Bar:
    """A bar as wide as its cell."""

    def __init__(self, count: int, top: int, style: str) -> None:
        self._share = count / top if top else 0.0
        self._style = style

    def __rich_console__(self, _console: object, options: object) -> Sequence[Text]:
        width: int = options.max_width  # type: ignore[attr-defined]
        eighths = round(self._share * width * 8)
        if self._share and not eighths:
            eighths = 1
        whole, part = divmod(eighths, 8)
        return [Text("█" * whole + ("▏▎▍▌▋▊▉"[part - 1] if part else ""), self._style)]


def _rates(stats: LiveStats) -> Panel:
    late = stats.lateness
    lines = [f"put {stats.put_per_s:,.0f}/s  delivered {stats.arrived_per_s:,.0f}/s"]
    if late is None and not any(stats.late_counts):
        lines.append("late: no delivery seen yet")
    elif late is None:
        lines.append(f"late: {_late_text(stats.late_counts)}")
    else:
        lines.append(f"late p50 {late.p50:,.0f}  p99 {late.p99:,.0f}  max {late.max:,.0f} ms")
    return Panel(
        Group(*(Text(line, no_wrap=True) for line in lines), Spark(stats.history)),
        title=f"rates, log {size_text(int(stats.log_per_s))}/s",
        border_style="dim",
    )


def _late_text(counts: Sequence[int]) -> str:
    """Return the bound that half, and the bound that 99 of 100 deliveries kept."""
    sums = np.cumsum(counts)
    parts = []
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        place = int(np.searchsorted(sums, share * sums[-1]))
        bound = f"<= {LATE_MS[place]:,}" if place < len(LATE_MS) else f"> {LATE_MS[-1]:,}"
        parts.append(f"{name} {bound}")
    return f"{'  '.join(parts)} ms"


class Spark:
    """A bar chart of the latest numbers, two rows high, with the newest at the right."""

    def __init__(self, numbers: Sequence[float]) -> None:
        self._numbers = numbers

    def __rich_console__(self, _console: object, options: object) -> Sequence[Text]:
        width: int = options.max_width  # type: ignore[attr-defined]
        shown = np.array([0.0] * width + list(self._numbers))[-width:]
        top = shown.max()
        levels = np.ceil(shown / top * 16).astype(int) if top else np.zeros(width, int)
        upper = "".join(_BARS[max(0, one - 8)] for one in levels)
        lower = "".join(_BARS[min(8, one)] for one in levels)
        return [Text(upper, "green", no_wrap=True), Text(lower, "green", no_wrap=True)]


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _topics(stats: LiveStats, rows: int) -> Panel:
    grid = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    grid.add_column("topic", ratio=1, no_wrap=True, overflow="ellipsis")
    for name in ("pending", "delivered", "/s"):
        grid.add_column(name, justify="right", no_wrap=True)
    # The busiest topics first; topics without deliveries in order of their pending messages.
    order = sorted(stats.by_topic.items(), key=lambda one: (-one[1][2], -(one[1][0] or 0), one[0]))
    for name, (pending, delivered, rate) in order[: max(1, rows)]:
        grid.add_row(safe(name), _count(pending), _count(delivered), f"{rate:,.0f}")
    hidden = len(order) - max(1, rows)
    title = "topics" if hidden <= 0 else f"topics, {hidden} more"
    return Panel(grid, title=title, border_style="dim")


def _groups(stats: LiveStats, rows: int) -> Panel:
    grid = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    grid.add_column("topic, group", ratio=1, no_wrap=True, overflow="ellipsis")
    for name in ("ready", "leased", "back", "dead"):
        grid.add_column(name, justify="right", no_wrap=True)
    order = sorted(stats.groups, key=lambda one: (-one[2].ready, one[0], one[1]))
    for topic, group, one in order[: max(1, rows)]:
        numbers = (one.ready, one.leased, one.in_backoff, one.dead_letters)
        grid.add_row(safe(f"{topic} {group}"), *(f"{number:,}" for number in numbers))
    hidden = len(order) - max(1, rows)
    oldest = max(one.oldest_ms for _, _, one in order)
    title = f"groups, oldest {span_text(oldest)}"
    return Panel(
        grid, title=title if hidden <= 0 else f"{title}, {hidden} more", border_style="dim"
    )
