"""The report's plots, each as SVG and PNG.

Data:     groups of lines (lines.py), one a variant.
Threads:  none; matplotlib draws into files, without a screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.ticker import EngFormatter, NullFormatter

from benchmarks.lines import Lines, human

OURS = "#c0392b"
THEIRS = "#7f8c8d"
KINDS = ("svg", "png")
SHADES = ("#2e86ab", "#f6ae2d", "#c0392b", "#52796f")


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    for kind in KINDS:
        figure.savefig(path.with_suffix(f".{kind}"), dpi=120)
    pyplot.close(figure)


def _name(group: Lines) -> str:
    told = group.first["parameters"]
    return f"{told['engine']}, {told['variant']}"


def _is_ours(group: Lines) -> bool:
    return str(group.first["parameters"]["engine"]) == "timerstore"


def _whiskers(found: Any) -> Any:
    return [[found.median - found.low], [found.high - found.median]]


def peers(groups: Sequence[Lines], title: str, path: Path) -> None:
    """A bar each: messages a second, with the range of the rounds; logarithmic."""
    figure, axis = pyplot.subplots(figsize=(9, 0.6 + 0.42 * len(groups)))
    for place, group in enumerate(reversed(groups)):
        found = group.told("rate")
        assert found is not None
        axis.barh(place, found.median, xerr=_whiskers(found), capsize=3,
                  color=OURS if _is_ours(group) else THEIRS)  # fmt: skip
        axis.text(found.high * 1.06, place, human(found.median), va="center")
    axis.margins(x=0.12)
    axis.set_yticks(range(len(groups)), [_name(group) for group in reversed(groups)])
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(EngFormatter())
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("messages a second, scheduled, delivered and consumed")
    axis.set_title(title)
    _save(figure, path)


def stages(groups: Sequence[Lines], names: Sequence[str], path: Path) -> None:
    """A bar each: nanoseconds a message, stage on stage."""
    figure, axis = pyplot.subplots(figsize=(9, 0.8 + 0.42 * len(groups)))
    labels = []
    for place, group in enumerate(reversed(groups)):
        told = group.first["parameters"]
        way = "threads" if told["threads"] else f"stepped, {told['stops']} stops"
        labels.append(f"{told['body']} B, {told['form']}, {way}")
        left = 0.0
        for name, shade in zip(names, SHADES, strict=True):
            found = group.told(f"{name}_ns")
            width = 0.0 if found is None else found.median
            label = name if place == 0 else None
            axis.barh(place, width, left=left, color=shade, label=label)
            left += width
    axis.set_yticks(range(len(labels)), labels)
    axis.set_xlabel("ns a message")
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    _save(figure, path)


def scaling(groups: Sequence[Lines], names: Sequence[str], path: Path) -> None:
    """Rate and stages on the left, memory and disk on the right, by how much is pending."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    sizes = [group.first["n"] for group in groups]

    def medians(figure_name: str) -> list[float]:
        return [getattr(group.told(figure_name), "median", 0.0) for group in groups]

    for name, shade in zip(names, SHADES, strict=True):
        if any(medians(f"{name}_ns")):  # with threads there is no figure of `deliver`
            left.plot(sizes, medians(f"{name}_ns"), marker="o", color=shade, label=name)
    whole = [1e9 / rate for rate in medians("rate")]
    left.plot(sizes, whole, marker="s", color="black", label="end to end")
    left.set_ylabel("ns a message")
    left.set_yscale("log")
    beyond = [value / 1e6 for value in medians("beyond_files_bytes")]
    right.plot(sizes, beyond, marker="o", color=SHADES[0], label="RAM beyond files, MB")
    right.plot(sizes, medians("disk_bytes_per_pending"), marker="o", color=SHADES[2],
               label="disk, bytes a pending message")  # fmt: skip
    right.set_yscale("log")
    for axis in (left, right):
        axis.set_xscale("log")
        axis.set_xlabel("messages pending")
        axis.grid(visible=True, alpha=0.3)
        axis.legend()
    _save(figure, path)


def lateness(groups: Sequence[Lines], path: Path) -> None:
    """The share of messages that is later than so much, both logarithmic."""
    figure, axis = pyplot.subplots(figsize=(9, 5))
    for place, group in enumerate(groups):
        for line in group.all:
            shares = [max(1 - share, 1e-5) for share, _ in line["curve"]]
            late = [max(ms, 0.05) for _, ms in line["curve"]]
            axis.plot(late, shares, label=_name(group) if line is group.first else None,
                      color=f"C{place}", linewidth=2.5 if _is_ours(group) else 1.2,
                      linestyle="-" if line.get("calm", True) else ":")  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("ms late (dotted: the machine stalled during the run)")
    axis.set_ylabel("share of messages that is later")
    axis.grid(visible=True, which="both", alpha=0.2)
    axis.legend()
    _save(figure, path)
