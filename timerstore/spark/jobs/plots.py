"""Plot lateness, due messages by day, and due messages by day and hour.

Thread safety: figures are created without pyplot, so no global state or display is used.
Invariants:
    An empty table also gives a file. It contains the word "nothing".
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 11.0, 4.2
_INK, _FILL = "#1f3b57", "#4c8bbf"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def lateness_plot(path: Path, by_step: Mapping[int, int], title: str) -> Path:
    """Plot deliveries by lateness. Key 0 is in time, key n is at most n ms late."""
    figure, axes = _new(title)
    edges = sorted(by_step)
    if not edges:
        return _save(figure, axes, path, empty=True)
    counts = [by_step[edge] for edge in edges]
    bars = axes.bar(range(len(edges)), counts, color=_FILL)
    axes.bar_label(bars, labels=[f"{count:,}" for count in counts], fontsize=8, color=_INK)
    axes.set_xticks(range(len(edges)), ["in time" if not e else f"<= {_span(e)}" for e in edges])
    axes.set_yscale("symlog")
    axes.set_ylabel("deliveries")
    axes.set_xlabel("late by")
    return _save(figure, axes, path)


def due_plot(path: Path, by_day: Mapping[int, int], title: str) -> Path:
    """Plot due messages by day. A key is a number of days since 1970, UTC."""
    figure, axes = _new(title)
    if not by_day:
        return _save(figure, axes, path, empty=True)
    days = np.arange(min(by_day), max(by_day) + 1)
    counts = np.array([by_day.get(int(day), 0) for day in days])
    dates = [_EPOCH + timedelta(days=int(day)) for day in days]
    axes.fill_between(np.array(dates), counts, step="mid", color=_FILL, alpha=0.6)
    axes.step(np.array(dates), counts, where="mid", color=_INK, linewidth=0.8)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("due per day (UTC)")
    figure.autofmt_xdate()
    return _save(figure, axes, path)


def line_plot(path: Path, times_ms: Sequence[int], counts: Sequence[int], title: str) -> Path:
    """Plot due messages by time bucket, at the start of each bucket."""
    figure, axes = _new(title)
    if not times_ms:
        return _save(figure, axes, path, empty=True)
    dates = [_EPOCH + timedelta(milliseconds=int(ms)) for ms in times_ms]
    axes.step(np.array(dates), np.array(counts), where="post", color=_INK, linewidth=0.9)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("due")
    figure.autofmt_xdate()
    return _save(figure, axes, path)


def heat_plot(path: Path, by_hour: Mapping[int, int], title: str) -> Path:
    """Plot due messages by day and hour of the day, UTC. A key is a number of hours since 1970."""
    figure, axes = _new(title)
    if not by_hour:
        return _save(figure, axes, path, empty=True)
    first, last = min(by_hour) // 24, max(by_hour) // 24
    grid = np.zeros((24, last - first + 1))
    for hour, count in by_hour.items():
        grid[hour % 24, hour // 24 - first] = count
    shown = axes.imshow(
        grid, aspect="auto", origin="lower", cmap="viridis", interpolation="nearest"
    )
    figure.colorbar(shown, ax=axes, label="due per hour")
    places = np.unique(np.linspace(0, grid.shape[1] - 1, num=min(12, grid.shape[1]), dtype=int))
    dates = [_EPOCH + timedelta(days=int(first + place)) for place in places]
    axes.set_xticks(places, [f"{date:%Y-%m-%d}" for date in dates], rotation=30, ha="right")
    axes.set_yticks(range(0, 24, 3))
    axes.set_ylabel("hour of the day, UTC")
    return _save(figure, axes, path)


def _new(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, _HEIGHT), dpi=110)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=11, color=_INK, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Figure, axes: Axes, path: Path, *, empty: bool = False) -> Path:
    if empty:
        axes.text(0.5, 0.5, "nothing", ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path)
    return path


def _span(ms: int) -> str:
    for name, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= size:
            return f"{ms / size:.3g} {name}"
    return f"{ms} ms"


def figures_of(rows: Any, key: str, value: str) -> dict[int, int]:
    """Return {key: value} of the rows that have both."""
    return {int(row[key]): int(row[value]) for row in rows if row[key] is not None and row[value]}
