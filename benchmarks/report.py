"""Write the report of a run of the suite, as Markdown with plots.

The input is lines.jsonl and machine.json of a folder; the report goes to the same folder.
`python -m benchmarks.report build/bench` writes it again. Every figure is a median of rounds with
its range, and every ratio compares runs of one round. The report names the parts not measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import plots
from benchmarks.lines import Lines, Told, human
from benchmarks.machine import IN_MEMORY
from benchmarks.targets import TARGETS

PEER_PARTS = ("peers_1m", "peers_slow", "peers_1k", "peers_10m")
PLOTS = (*PEER_PARTS, "stages", "scaling", "lateness")


def write(out: Path) -> Path:
    """Write the report and its plots. Return the path of the report."""
    lines = Lines.read(out / "lines.jsonl")
    machine = json.loads((out / "machine.json").read_text("utf-8"))
    for name in PLOTS:  # of an earlier run; other files are kept
        for kind in plots.KINDS:
            (out / f"{name}.{kind}").unlink(missing_ok=True)
    sections = (
        _head(lines, machine),
        _targets(lines),
        _peers(lines, out),
        _stages(lines, out),
        _scaling(lines, out),
        _lateness(lines, out),
        _crowd(lines),
        _recovery(lines),
        _puts(lines),
        _net(lines),
        _rocketmq(lines),
        _celery(lines),
        _single(lines),
        _trickle(lines),
        _missing(machine),
    )
    path = out / "report.md"
    text = "\n\n".join(section for section in sections if section)
    path.write_text(text + "\n", "utf-8")
    return path


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(found: Told | None, unit: str = "") -> str:
    return "not measured" if found is None else format(found, unit)


def _plot(out: Path, name: str, what: str) -> str:
    return f"![{what}]({name}.svg)" if (out / f"{name}.svg").exists() else ""


def _head(lines: Lines, machine: dict[str, Any]) -> str:
    limits = machine["limits"]
    notes = ["Tiny values: this shows only that the suite runs."] if machine["smoke"] else []
    notes += [f"Not the report's own sizes: {one}." for one in machine.get("changed_sizes", ())]
    if machine.get("file_system") in IN_MEMORY:
        notes.append("Stores were in memory: no figure includes the cost of a disk sync.")
    measured = [line for line in lines.all if "control_max_ms" in line]
    return f"""# timerstore: a run of the benchmark suite

{machine["date"]}, revision {machine["revision"]}{" and changes" if machine["changed"] else ""};
{machine["cores"]} cores of {machine["processor"]}, {machine["memory_gib"]} GiB, Linux
{machine["kernel"]}, Python {machine["python"]}; stores on {machine.get("file_system", "?")};
load at the start {machine["load"][0]}.
{"; ".join(f"{name} {version}" for name, version in machine["versions"].items())}.

Measured in this sitting: copying {limits["copy_gb_s"]} GB/s; a fresh page of memory
{limits["fresh_page_us"]} us; writing a file {limits["write_gb_s"]} GB/s, with its sync
{limits["write_synced_gb_s"]} GB/s; a sync of 4 KiB {limits["sync_4k_us"]} us.

Figures are medians of rounds, with the range in brackets; k and M are thousands and millions.
Every run has a process and a directory of its own, and variants take turns. {lines.disturbed} of
{len(measured)} runs were disturbed: a process that only sleeps woke more than 6 ms late.
Raw data: lines.jsonl.{"".join(f"{chr(10)}{chr(10)}**{note}**" for note in notes)}"""


def _targets(lines: Lines) -> str:
    rows = []
    for target in TARGETS:
        found = target.measure(lines)
        rows.append(
            (
                target.what,
                human(target.must, target.unit),
                human(target.stretch, target.unit),
                _cell(found, target.unit),
                "" if found is None else target.verdict(found),
                "" if found is None else str(found.rounds),
            )
        )
    head = ("operation", "must", "stretch", "measured", "reaches", "rounds")
    return "## Targets\n\n" + _table(head, rows)


def _peers(lines: Lines, out: Path) -> str:
    parts = [part for part in PEER_PARTS if lines.where(part).all]
    if not parts:
        return ""
    said = (
        "The same work: schedule all in batches, then, all being due, hand over in order of due "
        "time and consume into bytes. `ours is`: the median of the rounds' ratios."
    )
    sections = ["## Compared with peers", said]
    for part in parts:
        found = lines.where(part)
        groups = found.variants()
        ours = next((one for one in groups if one.first["key"] == "timerstore"), None)
        groups.sort(key=lambda one: -_median(one, "rate"))
        told = found.first["parameters"]
        title = f"{told['n']:,} messages of {told['body']} B, batches of {told['batch']:,}"
        plots.peers(groups, title, out / part)
        rows = [_peer_row(one, ours) for one in groups]
        head = ("engine", "schedule /s", "deliver /s", "both /s", "ours is", "disk B", "RAM B",
                "rounds")  # fmt: skip
        sections += [f"### {title}", _plot(out, part, title)]
        sections.append(_table(head, rows))
    sections.append(
        "Disk and RAM are bytes a pending message: allocated, and anonymous memory of the process "
        "or the server (ours: all that is not a mapped file of the store)."
    )
    sections.append(_promises(lines))
    return "\n\n".join(one for one in sections if one)


def _median(lines: Lines, figure: str) -> float:
    found = lines.told(figure)
    return 0.0 if found is None else found.median


def _peer_row(found: Lines, ours: Lines | None) -> tuple[str, ...]:
    parameters = found.first["parameters"]
    ratio = None if ours is None else ours.ratios(found)
    return (
        f"{parameters['engine']}, {parameters['variant']}",
        human(_median(found, "schedule_rate")),
        human(_median(found, "deliver_rate")),
        _cell(found.told("rate")),
        "" if ratio is None else f"{ratio:x}",
        f"{_median(found, 'disk_bytes_per_pending'):.0f}",
        f"{_median(found, 'ram_bytes_per_pending'):.0f}",
        str(len(found.all)),
    )


def _promises(lines: Lines) -> str:
    rows = {
        line["key"]: (
            f"{line['parameters']['engine']}, {line['parameters']['variant']}",
            line["flush"],
            line["tuned"],
        )
        for line in lines.where(name="peers").all
    }
    return _table(("engine", "a power cut can lose", "tuned"), rows.values())


STAGES = ("put", "enqueue", "deliver", "pull")


def _stages(lines: Lines, out: Path) -> str:
    found = [
        one for part in ("end_to_end", "end_to_end_1k") for one in lines.where(part).variants()
    ]
    if not found:
        return ""
    plots.stages(found, STAGES, out / "stages")
    rows = [
        (
            _way(one),
            *(f"{_median(one, f'{stage}_ns'):.0f}" for stage in STAGES),
            _cell(one.told("rate")),
            f"{_median(one, 'disk_bytes_per_message_after'):.0f}",
            str(len(one.all)),
        )
        for one in found
    ]
    head = ("way", *(f"{stage} ns" for stage in STAGES), "end to end /s", "disk B after", "rounds")
    return (
        "## By stage\n\nNanoseconds a message. With threads the services work while the caller "
        "puts and pulls: `enqueue` is the part that did not overlap with put, and `pull` waits for "
        "delivery. Stepped, each phase is separate, and durable when it ends.\n\n"
        f"{_plot(out, 'stages', 'nanoseconds a message by stage')}\n\n{_table(head, rows)}"
    )


def _way(found: Lines) -> str:
    told = found.first["parameters"]
    how = "threads" if told["threads"] else f"stepped, {told['stops']} stops"
    return f"{human(told['n'])} of {told['body']} B, {told['form']}, {how}"


def _scaling(lines: Lines, out: Path) -> str:
    found = lines.where("scaling").variants()
    if not found:
        return ""
    plots.scaling(found, STAGES, out / "scaling")
    rows = [
        (
            human(one.first["n"]),
            _cell(one.told("rate")),
            *(f"{_median(one, f'{stage}_ns'):.0f}" for stage in STAGES),
            f"{_median(one, 'disk_bytes_per_pending'):.0f}",
            human(_median(one, "beyond_files_bytes"), "B"),
            str(len(one.all)),
        )
        for one in found
    ]
    head = ("pending", "end to end /s", *(f"{stage} ns" for stage in STAGES), "disk B a pending",
            "RAM beyond files", "rounds")  # fmt: skip
    return (
        "## By how much is pending\n\n128 B, lists, services in threads. Files are made in whole "
        "segments and tables, which few messages pay for dearly.\n\n"
        f"{_plot(out, 'scaling', 'rate and memory by pending')}\n\n{_table(head, rows)}"
    )


def _lateness(lines: Lines, out: Path) -> str:
    found = lines.where(name="lateness").variants()
    if not found:
        return ""
    plots.lateness(found, out / "lateness")
    rows = []
    for one in found:
        told = one.first["parameters"]
        calm = all(line.get("calm", True) for line in one.all)
        rows.append(
            (
                f"{told['engine']}, {told['variant']}",
                *(human(_median(one, name), "ms") for name in ("p50", "p99", "max")),
                "calm" if calm else "**disturbed**",
            )
        )
    rate = found[0].first["parameters"]["rate"]
    head = ("engine", "p50", "p99", "max", "machine")
    return (
        f"## Lateness at {human(rate)} messages a second\n\nThe consumer's clock less the due "
        "time; each is due 1 to 3 s after its put.\n\n"
        f"{_plot(out, 'lateness', 'share of messages by lateness')}\n\n{_table(head, rows)}"
    )


def _crowd(lines: Lines) -> str:
    found = lines.where(name="hot_slot")
    if not found.all:
        return ""
    late = {
        order: human(_median(lines.where(name="hot_slot", order=order), "late_s"), "s")
        for order in ("turns", "one")
    }
    return (
        f"## A burst of one topic, and another topic\n\n{human(found.first['n'])} messages of one "
        f"topic are due at once. A message of another topic, due 1 ms later, is late by "
        f"{late['turns']} of processor time with the fair queue, and by {late['one']} with one "
        "order for all messages. Precision: 1 s."
    )


def _recovery(lines: Lines) -> str:
    found = lines.where(name="recovery")
    if not found.all:
        return ""
    n = found.first["n"]
    return (
        f"## After kill -9\n\n{human(n)} pending: open {_cell(found.told('p50'), 's')}, CPU "
        f"{_cell(found.told('open_cpu_s'), 's')}; first put answered after "
        f"{_cell(found.told('first_put_s'), 's')}; {len(found.all)} kills, each in the midst of "
        "puts. Nothing acknowledged was missing."
    )


def _puts(lines: Lines) -> str:
    found = Lines([*lines.where(name="put").all, *lines.where(name="put_many").all,
                   *lines.where(name="cancel").all])  # fmt: skip
    if not found.all:
        return ""
    rows = []
    for one in found.variants():
        told = {key: value for key, value in one.first["parameters"].items() if key != "body"}
        rows.append(
            (
                one.first["name"],
                ", ".join(f"{key} {value}" for key, value in told.items()),
                one.first["flush"],
                _cell(one.told("rate")),
                human(_median(one, "p50")),
                human(_median(one, "p99")),
                human(_median(one, "max")),
                "" if "consumed_rate" not in one.first else human(_median(one, "consumed_rate")),
            )
        )
    head = ("call", "with", "flush", "a second", "p50 ns", "p99 ns", "max ns", "consumed /s")
    return "## Putting and cancelling\n\n" + _table(head, rows)


def _net(lines: Lines) -> str:
    found = lines.where(name="net").variants()
    if not found:
        return ""
    rows = []
    for one in sorted(found, key=_net_order):
        told = one.first["parameters"]
        same = {key: told[key] for key in ("by", "callers", "batch", "syncs_each")}
        ours = lines.where(name="net", **same)
        ours = Lines([line for line in ours.all if "timerstore" in line["parameters"]["server"]])
        ratios = [ours.ratios(one, figure) for figure in ("rate", "take_rate")]
        rows.append(
            (
                "each call" if told["syncs_each"] else "at times",
                f"{told['callers']} {told['by']}, receive {told['batch']} at a time",
                one.first["name_of_server"],
                _cell(one.told("rate")),
                *(human(_median(one, figure), "ms") for figure in ("p50", "p99")),
                _cell(one.told("take_rate")),
                *("" if ratio is None else f"{ratio:x}" for ratio in ratios),
                str(len(one.all)),
            )
        )
    head = ("disk sync", "callers", "server", "put /s", "put p50", "put p99", "receive+ack /s",
            "ours is, put", "ours is, receive", "rounds")  # fmt: skip
    return (
        "## Servers behind a socket\n\nEach server in a process of its own, through its usual "
        f"Python client, {found[0].first['parameters']['body']} B a message.\n\n"
        + _table(head, rows)
    )


def _rocketmq(lines: Lines) -> str:
    found = lines.where(name="rocketmq").variants()
    rows = [
        (
            one.first["flush"],
            one.first["parameters"]["server"],
            _cell(one.told("rate")),
            _cell(one.told("receive_rate")),
            *(human(_median(one, figure), "ms") for figure in ("p50", "p99")),
            f"{max(line['early'] for line in one.all)}",
            *(human(_median(one, f"{phase}_client_percent"), "%")
              for phase in ("send", "receive", "paced")),
            str(len(one.all)),
        )
        for one in found
    ]  # fmt: skip
    head = ("flush", "server", "send /s", "receive+ack /s", "late p50", "p99", "early",
            "client's CPU: send", "receive", "paced", "rounds")  # fmt: skip
    return f"## A client of RocketMQ\n\n{_table(head, rows)}" if rows else ""


def _net_order(found: Lines) -> tuple[Any, ...]:
    told = found.first["parameters"]
    return (not told["syncs_each"], told["callers"], told["batch"], told["by"])


def _celery(lines: Lines) -> str:
    found = lines.where(name="celery").variants()
    if not found:
        return ""
    told = found[0].first["parameters"]
    rows = [
        (
            one.first["name_of_broker"],
            one.first["flush"],
            _cell(one.told("enqueue_rate")),
            _cell(one.told("rate")),
            *(human(_median(one, figure), "ms") for figure in ("p50", "p99")),
            *(_cell(one.told(f"{of}_bytes"), "B") for of in ("broker", "worker")),
            str(sum(line["doubles"] for line in one.all)),
            str(len(one.all)),
        )
        for one in found
    ]
    head = ("broker", "durability", "enqueued /s", "run /s", "late p50", "late p99",
            "memory of the broker", "of the worker", "doubles", "rounds")  # fmt: skip
    return (
        f"## Celery\n\nOne producer, one worker with two processes. Lateness: tasks with an `eta`, "
        f"{told['late_rate']} a second. Memory: anonymous, added by {told['future']:,} tasks that "
        "are due in an hour.\n\n" + _table(head, rows)
    )


def _single(lines: Lines) -> str:
    found = lines.where(name="single").variants()
    rows = []
    for one in found:
        told = one.first["parameters"]
        pending = f"{human(told['pending'])} over a {told['spread']}" if told["pending"] else "none"
        cells = _cell(one.told("p50"), "us"), human(_median(one, "p99"), "us")
        rows.append((told["kind"], pending, *cells, _cell(one.told("rate"), "/s")))
    head = ("call", "others pending", "CPU p50", "CPU p99", "calls by wall time")
    return f"## One message at a time\n\n{_table(head, rows)}" if rows else ""


def _trickle(lines: Lines) -> str:
    rows = [
        (
            f"{one.first['parameters']['rate']} a second",
            one.first["parameters"]["flush"],
            *(human(_median(one, name), "ms") for name in ("p50", "p99", "max")),
            _cell(one.told("cpu_us"), "us"),
            _cell(one.told("cpu_percent"), "%"),
        )
        for one in lines.where(name="trickle").variants()
    ]
    head = ("messages", "flush", "late p50", "p99", "max", "CPU of a message", "of a core")
    said = "Each message is due at a millisecond of its own; one thread pulls them."
    return f"## Few messages a second\n\n{said}\n\n{_table(head, rows)}" if rows else ""


def _missing(machine: dict[str, Any]) -> str:
    rows = [*machine.get("missing", [])]
    rows += [
        f"{part['part']}: {part['error']}" for part in machine.get("parts", ()) if part["error"]
    ]
    took = sum(part["seconds"] for part in machine.get("parts", ()))
    said = "\n".join(f"- {row}" for row in rows) or "Nothing that was asked for."
    return f"## Not measured\n\n{said}\n\nThe run took {took / 60:.1f} minutes."


if __name__ == "__main__":
    print(write(Path(sys.argv[1] if len(sys.argv) > 1 else "build/bench")))
