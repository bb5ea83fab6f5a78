"""The benchmark suite: `python -m benchmarks [--all | --only PART ...] [--smoke] [--out FOLDER]`.

The folder receives lines.jsonl (every run), machine.json, report.md, and plots as SVG and PNG. JSON
lines also go to standard output, tables and progress to standard error. If a part fails, the others
still run, the report lists it, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import traceback
from pathlib import Path

from benchmarks import harness, machine, peers, plan
from benchmarks.lines import Lines
from benchmarks.plan import Part

OUT = Path("build") / "bench"


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    names = [part.name for part in plan.PARTS]
    parser = argparse.ArgumentParser(description="Measures timerstore and its peers; a report.")
    parser.add_argument("--smoke", action="store_true", help="run everything with tiny values")
    parser.add_argument("--all", action="store_true", help="also run the parts outside the report")
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help=", ".join(names))
    parser.add_argument("--list", action="store_true", help="list the parts and their times")
    count = harness.given_as(int)
    parser.add_argument("--rounds", type=count, help="instead of each part's own number")
    parser.add_argument("--n", type=count, help="messages, instead of each part's own number")
    parser.add_argument("--directory", type=Path, help="a new or empty directory to make stores in")
    parser.add_argument("--out", type=Path, default=OUT, help=f"default {OUT}")
    parser.add_argument("--append", action="store_true", help="to the lines that are there")
    return parser


def words(part: Part, options: argparse.Namespace, lines: Path) -> list[str]:
    """Return the command line of a part."""
    found = ["--json", str(lines)]
    found += ["--smoke"] if options.smoke else part.options
    if options.directory is not None:
        found += ["--directory", str(options.directory)]
    module = importlib.import_module(f"benchmarks.bench_{part.bench}")
    for name in ("rounds", "n"):
        value = getattr(options, name)
        if value is not None and name in module.FULL:
            found += [f"--{name}", str(value)]
    return found


def run(part: Part, options: argparse.Namespace, lines: Path, sitting: int) -> dict[str, object]:
    """Run one part. Return its time and error."""
    print(f"\n=== {part.name} (about {part.seconds} s)", file=sys.stderr, flush=True)
    before = len(lines.read_text("utf-8").splitlines())
    began = time.perf_counter()
    error = None
    try:
        module = importlib.import_module(f"benchmarks.bench_{part.bench}")
        module.main(words(part, options, lines))
    except Exception as problem:  # noqa: BLE001  # the other parts still run
        traceback.print_exc()
        error = f"{type(problem).__name__}: {problem}"
    took = time.perf_counter() - began
    print(f"=== {part.name}: {took:.1f} s", file=sys.stderr, flush=True)
    found = lines.read_text("utf-8").splitlines()
    more = {"part": part.name, "sitting": sitting}
    told = [json.dumps({**more, **json.loads(line)}) for line in found[before:]]
    lines.write_text("".join(f"{line}\n" for line in found[:before] + told), "utf-8")
    return {"part": part.name, "seconds": round(took, 1), "error": error}


def main(argv: list[str] | None = None) -> int:
    """Run the parts, write the report, and list failed parts on standard error."""
    parser = arguments()
    options = parser.parse_args(argv)
    for name in ("out", "directory"):
        folder = getattr(options, name)
        if folder is not None and folder.exists() and not folder.is_dir():
            parser.error(f"argument --{name}: {folder} is not a folder")
    parts = plan.chosen(options.only, everything=options.all)
    if options.list:
        for part in plan.PARTS:
            print(f"{part.name:<16}{part.seconds:>5} s{'  (--all)' if part.extra else ''}")
        return 0
    total = sum(part.seconds for part in parts)
    if not options.smoke:
        print(f"{len(parts)} parts, about {total / 60:.0f} min on a quiet machine", file=sys.stderr)
    options.out.mkdir(parents=True, exist_ok=True)
    lines = options.out / "lines.jsonl"
    if not (options.append and lines.exists()):
        lines.write_text("", encoding="utf-8")
    told = machine.describe(harness.place(options.directory))
    if told["file_system"] in machine.IN_MEMORY:
        print("!!! STORES ARE IN MEMORY: use --directory with a disk", file=sys.stderr)
    (options.out / "machine.json").write_text(json.dumps(told, indent=1), "utf-8")
    there = Lines.read(lines).all
    sitting = 1 + max((line.get("sitting", 0) for line in there), default=-1)
    told["parts"] = [run(part, options, lines, sitting) for part in parts]
    told["smoke"] = options.smoke
    told["changed_sizes"] = [
        f"--{name} {getattr(options, name)}"
        for name in ("n", "rounds")
        if getattr(options, name) is not None
    ]
    told["missing"] = missing() if any(part.bench == "peers" for part in parts) else []
    (options.out / "machine.json").write_text(json.dumps(told, indent=1), "utf-8")
    _report(options.out)
    failed = [one["part"] for one in told["parts"] if one["error"]]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def missing() -> list[str]:
    """Return the peers that cannot run here, with the reasons."""
    found = [(peer, peer.missing()) for peer in peers.PEERS]
    return [f"{peer.name} ({peer.variant}): {why}" for peer, why in found if why is not None]


def _report(out: Path) -> None:
    from benchmarks import report  # noqa: PLC0415  # only the report needs matplotlib

    print(f"\n{report.write(out)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
