"""Write the tables of PROFILE.md from the results of bench_profile.

The text between the two marks of PROFILE.md is generated; the text before them is written by hand.
Numbers are medians of rounds, in nanoseconds and bytes per message.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lines import Line

DOCUMENT = Path(__file__).with_name("PROFILE.md")
BEGIN, END = "<!-- profile: begin -->", "<!-- profile: end -->"
LEAST_NS = 1.0  # steps that cost less share one row
LEAST_SHARE = 0.03  # of a step's samples, for a function to have a row
Samples = dict[str, Counter[tuple[str, str]]]


def tables(lines: Sequence[Line], samples: Samples | None, limits: dict[str, float]) -> str:
    """All of them, as Markdown."""
    stepped = [line for line in lines if not line["parameters"]["threads"]]
    threads = [line for line in lines if line["parameters"]["threads"]]
    parts = [_head(lines), _steps(stepped), _limits(stepped, limits)]
    if samples:
        parts.append(_functions(stepped, samples))
    parts.append(_threads(threads))
    return "\n\n".join(part for part in parts if part)


def write(text: str, document: Path = DOCUMENT) -> None:
    """Between the marks; ValueError where they are not there."""
    old = document.read_text("utf-8")
    before, mark, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{document}: wanted {BEGIN} and {END}")
    document.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", "utf-8")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _head(lines: Sequence[Line]) -> str:
    told = lines[0]["parameters"]
    rounds = sum(not line["parameters"]["threads"] for line in lines)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return (
        f"{day}: {told['n']:,} of {told['body']} B, batches of {told['batch']:,}, due over "
        f"{told['horizon_s']} s; medians of {rounds} rounds; ns a message."
    )


def _steps(lines: Sequence[Line]) -> str:
    names: dict[str, None] = {}
    for line in lines:
        names.update(dict.fromkeys(line["spent"]))
    rows, rest = [], [0.0] * 4
    total = [0.0] * 4
    for name in names:
        values = [
            statistics.median(line["spent"].get(name, [0.0] * 4)[column] for line in lines)
            for column in range(4)
        ]
        total = [one + other for one, other in zip(total, values, strict=True)]
        if values[0] < LEAST_NS:
            rest = [one + other for one, other in zip(rest, values, strict=True)]
        else:
            rows.append((name, values))
    rows += [("all others", rest), ("**whole way**", total)]
    told = [
        (name, *(f"{value:.1f}" for value in values[:3]), f"{values[3] * 1000:.1f}")
        for name, values in rows
    ]
    head = ("step", "wall", "CPU user", "CPU kernel", "page faults a 1000")
    return "### By step, in one thread\n\n" + _table(head, told)


def _limits(lines: Sequence[Line], limits: dict[str, float]) -> str:
    if not limits:
        return ""
    names = ("written_bytes", "log_bytes", "timer_log_bytes", "disk_bytes")
    size = {name: statistics.median(line[name] for line in lines) for name in names}
    wall = statistics.median(line["p50"] for line in lines)
    written = size["written_bytes"]
    bounds = (
        ("copying the written bytes once", written / limits["copy_gb_s"]),
        ("writing it into the page cache", written / limits["write_gb_s"]),
        ("writing it, synced: the device", written / limits["write_synced_gb_s"]),
    )
    rows = [(what, f"{ns:.0f}", f"{wall / ns:.1f}") for what, ns in bounds]
    said = (
        f"A message is {size['log_bytes']:.0f} B of commit log (in and out) and "
        f"{size['timer_log_bytes']:.0f} B of timer log; {written:.0f} B are written for it in all, "
        f"and {size['disk_bytes']:.0f} B are on the disk afterwards. The machine in this sitting: "
        f"copies {limits['copy_gb_s']} GB/s, writes {limits['write_gb_s']} GB/s, with the sync "
        f"{limits['write_synced_gb_s']} GB/s; a fresh page costs {limits['fresh_page_us']} us."
    )
    head = ("limit", "ns a message", "whole way, times this")
    return f"### Compared with physical limits\n\n{said}\n\n{_table(head, rows)}"


def _functions(lines: Sequence[Line], samples: Samples) -> str:
    rows = []
    for step, found in samples.items():
        wall = statistics.median(line["spent"].get(step, [0.0])[0] for line in lines)
        whole = sum(found.values())
        if wall < LEAST_NS * 5:
            continue
        for (symbol, where), count in found.most_common(8):
            if count >= LEAST_SHARE * whole:
                share = count / whole
                rows.append((f"{step}: `{symbol}`", where, f"{share:.0%}", f"{share * wall:.1f}"))
    head = ("step: function", "in", "of the step", "ns")
    return "### By function (perf, cpu-clock)\n\n" + _table(head, rows)


def _threads(lines: Sequence[Line]) -> str:
    if not lines:
        return ""
    names = sorted({name for line in lines for name in line["cpu_ns"]})
    rows = [
        (name, f"{statistics.median(line['cpu_ns'].get(name, 0.0) for line in lines):.1f}")
        for name in names
    ]
    wall = statistics.median(line["p50"] for line in lines)
    used = sum(statistics.median(line["cpu_ns"].get(name, 0.0) for line in lines) for name in names)
    rows.append((f"**together** ({wall:.0f} ns of wall: {used / wall:.2f} cores)", f"{used:.1f}"))
    return "### By thread, services live\n\n" + _table(("thread", "CPU ns"), rows)
