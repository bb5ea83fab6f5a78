"""Examine this machine: Python, extras, limits of a process, memory, clock."""

import ctypes
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import timerstore
from timerstore.cli.doctor.finding import Finding, change, fine, remark, text_of
from timerstore.cli.text import size_text
from timerstore.types.config import StoreConfig

USES = {
    "cli": "the command line, with Arrow files",
    "net": "a server and its clients, and shared stores",
    "serve": "the dashboard",
    "arrow": "Arrow tables, and rows for shards",
    "cloud": "buckets of S3, Google Cloud Storage and Azure",
    "spark": "Spark jobs",
    "connect": "Spark Connect",
    "sql": "SQL92 filters",
    "cron": "cron expressions",
    "prometheus": "metrics for Prometheus",
    "otel": "metrics for OpenTelemetry",
}
"""The extras for users, and what they are for."""

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)(?:\[[^\]]*\])?(?P<bounds>[^;]*)(?:;.*extra == ['\"](?P<extra>\w+))?"
)
_SLOW_CLOCKS = {"hpet", "acpi_pm", "jiffies", "refined-jiffies"}
_TIME_ERROR = 5
_JUMP_S = 0.002
_FILES_FEW = 1024
_SPACE_SMALL = 4 << 30


def examine_machine(config: StoreConfig) -> Iterator[Finding]:
    """Yield the findings about this machine."""
    yield from _python()
    yield from _extras()
    yield from limit_findings(config)
    yield from clock_findings()


# --- Python and packages --------------------------------------------------------------------------


def _python() -> Iterator[Finding]:
    where = Path(timerstore.__file__).parent
    name = f"{platform.python_implementation()} {platform.python_version()}"
    yield fine("python", f"{name}, timerstore {timerstore.__version__} in {where}")
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        yield remark(
            "python",
            "this Python runs without the interpreter lock",
            "timerstore is not tested with it",
            "use the usual build of CPython",
        )


def _extras() -> Iterator[Finding]:
    try:
        needed = requires("timerstore") or []
    except PackageNotFoundError:
        yield remark(
            "extras",
            "timerstore is not installed as a package, so extras are unknown",
            "it was found by PYTHONPATH or the working directory",
            "pip install . in a checkout",
        )
        return
    for extra, use in USES.items():
        yield extra_finding(extra, use, needed)


def extra_finding(extra: str, use: str, needed: Sequence[str]) -> Finding:
    """Compare the packages of an extra with those that are installed."""
    have: list[str] = []
    absent: list[str] = []
    old: list[str] = []
    for line in needed:
        found = _REQUIREMENT.match(line)
        if found is None or found["extra"] != extra:
            continue
        name, bounds = found["name"], found["bounds"].strip()
        try:
            installed = version(name)
        except PackageNotFoundError:
            absent.append(name)
            continue
        if _fits(installed, bounds):
            have.append(f"{name} {installed}")
        else:
            old.append(f"{name} {installed} (wanted {bounds})")
    about, do = f"extra {extra}", f"pip install '.[{extra}]' in a checkout"
    if old:
        return change(about, f"unfit: {', '.join(old)}", f"needed for {use}", do)
    if absent:
        return remark(about, f"not installed: {', '.join(absent)}", f"needed for {use}", do)
    return fine(about, ", ".join(have))


def _fits(installed: str, bounds: str) -> bool:
    """Return whether a version is within bounds such as `>=4.2,<5`."""
    for bound in bounds.replace(" ", "").split(","):
        if bound.startswith(">=") and _numbers(installed) < _numbers(bound[2:]):
            return False
        if bound.startswith("<") and _numbers(installed) >= _numbers(bound[1:]):
            return False
    return True


def _numbers(text: str) -> list[int]:
    head = re.match(r"[0-9.]*", text)
    return [int(one) for one in (head[0] if head else "").split(".") if one]


# --- limits ---------------------------------------------------------------------------------------


def limit_findings(config: StoreConfig) -> Iterator[Finding]:
    """Compare the limits of this process with what a store needs."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    do = "ulimit -n 65536; LimitNOFILE=65536 in a unit of systemd"
    if 0 <= files < _FILES_FEW:
        yield remark(
            "limits",
            f"{files:,} open files",
            "a store takes one or two for each queue, and a server one for each connection",
            do,
        )
    else:
        yield fine("limits", f"open files: {'no limit' if files < 0 else f'{files:,}'}")
    maps = text_of("/proc/sys/vm/max_map_count").strip()
    if maps:
        yield fine("limits", f"mapped regions of a process: {int(maps):,}")
    size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if 0 <= size < config.commit_log_segment_bytes:
        yield change(
            "limits",
            f"size of a file: {size_text(size)}",
            f"a log file has {size_text(config.commit_log_segment_bytes)}",
            "ulimit -f unlimited",
        )
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 <= space < _SPACE_SMALL:
        yield remark(
            "limits",
            f"address space: {size_text(space)}",
            "a store maps its files",
            "ulimit -v unlimited",
        )


def memory_bytes() -> int | None:
    """Return the memory that this process may use: of the machine, or of its control group."""
    found = re.search(r"MemTotal: +([0-9]+) kB", text_of("/proc/meminfo"))
    limits = [int(found[1]) << 10] if found else []
    for line in text_of("/proc/self/cgroup").splitlines():
        _, kinds, group = line.split(":", 2)
        name = {"": "memory.max", "memory": "memory/memory.limit_in_bytes"}.get(kinds)
        if name is None:
            continue
        folder, _, file = name.rpartition("/")
        for place in (f"{folder}{group}", folder):  # in a container, the group is the root
            text = text_of(f"/sys/fs/cgroup/{place.strip('/')}/{file}").strip()
            limits += [int(text)] if text.isdigit() else []
    return min(limits, default=None)


# --- clock ----------------------------------------------------------------------------------------


def clock_findings(
    wall: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Finding]:
    """Measure for a short time whether the wall clock jumps, and name its source."""
    folder = "/sys/devices/system/clocksource/clocksource0"
    source = text_of(f"{folder}/current_clocksource").strip()
    if source in _SLOW_CLOCKS:
        yield remark(
            "clock",
            f"source {source}",
            "each look at it costs microseconds, and a put takes some",
            f"choose one of: cat {folder}/available_clocksource",
        )
    jumps, before = 0.0, wall() - monotonic()
    for _ in range(20):
        sleep(0.01)
        after = wall() - monotonic()
        jumps, before = max(jumps, abs(after - before)), after
    if jumps > _JUMP_S:
        yield change(
            "clock",
            f"it jumped by {jumps * 1000:.1f} ms within 0.2 s",
            "messages are due by this clock: set back they are late, set forward all "
            "that is passed is due at once",
            "timedatectl status; let one service alone set the clock, in small steps",
        )
    else:
        what = f"source {source}; " if source else ""
        yield fine("clock", f"{what}no jump within 0.2 s")
    if _is_unsynchronised():
        yield remark(
            "clock",
            "the kernel does not know that it is synchronised",
            "it may be set by a jump later, and other machines have another time",
            "timedatectl set-ntp true, or start chrony; in a container: on its host",
        )


def _is_unsynchronised() -> bool:
    """Ask the kernel about its clock. Nothing is set: the mode is 0."""
    try:
        state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return False
    return state == _TIME_ERROR


def processor_count() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))
