"""The performance targets of the project, and the result lines that show them.

The targets are for the Python API, bodies of 128 B, and a sync at most every half second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.lines import Lines, Told, told


class Target(NamedTuple):
    """One row."""

    what: str
    unit: str
    must: float
    stretch: float
    higher: bool
    """Whether more is better."""
    measure: Callable[[Lines], Told | None]

    def verdict(self, found: Told) -> str:
        """By the median."""
        for name, bound in (("stretch", self.stretch), ("must", self.must)):
            if found.median >= bound if self.higher else found.median <= bound:
                return name
        return "**no**"


def _rate(
    name: str, part: str | None = None, **parameters: object
) -> Callable[[Lines], Told | None]:
    return lambda lines: lines.where(part, name, **parameters).told("rate")


def _put_ns(lines: Lines) -> Told | None:
    found = lines.where(name="put", services="stepped")
    return found.told(lambda line: 1e9 / line["rate"])


def _delivered(lines: Lines) -> Told | None:
    return lines.where("peers_1m", engine="timerstore", variant="lists of bodies").told(
        "deliver_rate"
    )


def _largest(lines: Lines) -> Lines:
    sizes = [line["n"] for line in lines.where("scaling").all if line["n"] >= 5_000_000]
    return lines.where("scaling", n=max(sizes)) if sizes else Lines([])


def _group(by: str) -> Callable[[Lines], Told | None]:
    def ratio(lines: Lines) -> Told | None:
        found = lines.where(name="put", by=by)
        callers = sorted({one["parameters"]["callers"] for one in found.all})
        if len(callers) < 2:
            return None
        return found.where(callers=callers[-1]).ratios(found.where(callers=callers[0]))

    return ratio


def _late(lines: Lines) -> Told | None:
    return lines.where(name="lateness", engine="timerstore", variant="lists of bodies").told("p99")


def _beyond(lines: Lines) -> Told | None:
    found = _largest(lines)
    values = [max(0, line["beyond_files_bytes"] - 64e6) / line["n"] for line in found.all]
    return told(values) if values else None


def _cancel(lines: Lines) -> Told | None:
    found = lines.where(name="cancel")
    rates = [one.told("rate") for one in found.variants()]
    return max((one for one in rates if one is not None), default=None)


TARGETS = (
    Target("put_many, lists of 1000", "/s", 3.0e6, 5.0e6, True,
           _rate("put_many", form="list", batch=1000)),
    Target("put(), alone", "ns", 350, 150, False, _put_ns),
    Target("put(), services and a consumer live", "/s", 1.0e6, 1.6e6, True,
           _rate("put", services="live, and a consumer")),
    Target("deliver and consume into Python bytes, 1 M", "/s", 2.2e6, 4.0e6, True, _delivered),
    Target("end to end, 1 M, lists", "/s", 1.5e6, 2.4e6, True,
           _rate("end_to_end", "end_to_end", form="list", threads=True)),
    Target("end to end, 1 M, one buffer", "/s", 1.5e6, 2.4e6, True,
           _rate("end_to_end", "end_to_end", form="buffer", threads=True)),
    Target("end to end, most pending (5 M and more)", "/s", 1.2e6, 2.0e6, True,
           lambda lines: _largest(lines).told("rate")),
    Target("end to end, 1 KiB, lists", "/s", 0.55e6, 0.8e6, True,
           _rate("end_to_end", "end_to_end_1k", form="list", threads=True)),
    Target("end to end, 1 KiB, one buffer", "/s", 0.55e6, 0.8e6, True,
           _rate("end_to_end", "end_to_end_1k", form="buffer", threads=True)),
    Target("synchronous put, many threads by one", "x", 10, 20, True, _group("threads")),
    Target("synchronous put, many tasks of a loop by one", "x", 10, 20, True, _group("tasks")),
    Target("lateness at 20 k/s, p99", "ms", 5, 1, False, _late),
    Target("cancel, the best of one caller, many, and lists", "/s", 200e3, 500e3, True, _cancel),
    Target("open after kill -9", "s", 2, 0.5, False,
           lambda lines: lines.where(name="recovery").told("p50")),
    Target("RSS beyond files and 64 MB, a pending message", "B", 1, 0.5, False, _beyond),
)  # fmt: skip
