"""Every benchmark in turn: `python -m benchmarks [--smoke] [--only NAME ...] [--json OUT]`.

Data:     JSON lines on standard output, and in OUT; tables on standard error.
Fails:    exit status 1 when one failed; the others still run.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from pathlib import Path

NAMES = ("put", "end_to_end", "idle", "peers", "delay_queue", "wait", "levels")


def main(argv: list[str] | None = None) -> int:
    """Run them; how many failed is told on standard error."""
    parser = argparse.ArgumentParser(description="All benchmarks, or some.")
    parser.add_argument("--smoke", action="store_true", help="tiny values: do they still run?")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--directory", help="a new or empty directory to make stores in")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the lines to a file too")
    options = parser.parse_args(argv)
    words = ["--smoke"] if options.smoke else []
    if options.directory is not None:
        words += ["--directory", options.directory]
    if options.json is not None:
        options.json.write_text("", encoding="utf-8")
        words += ["--json", str(options.json)]
    failed = []
    for name in options.only:
        print(f"\n{name}", file=sys.stderr, flush=True)
        began = time.perf_counter()
        try:
            importlib.import_module(f"benchmarks.bench_{name}").main(words)
        except Exception:  # noqa: BLE001  # a door: the others shall run
            traceback.print_exc()
            failed.append(name)
        print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
