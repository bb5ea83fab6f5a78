"""Fuzz the C decoders, the Python decoders, and whole directories.

    python -m tests.fuzz directories --seconds 600      # or decoders, or c: each C target
    python -m tests.fuzz decoders --blind --seconds 60  # without atheris
    python -m tests.fuzz decoders tests/fuzz/found/x    # run these inputs once

With clang, and with atheris (pip install "atheris>=3"), libFuzzer follows the coverage. Without
them, inputs are changed blindly, and the program says so. Failing inputs are stored in found/, next
to each corpus. `--ledger` adds the number of inputs to tests/amounts.jsonl.
"""

import argparse
import importlib
import importlib.util
import logging
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.support import ledger

_HERE = Path(__file__).parent
_NATIVE = _HERE.parents[1] / "native" / "fuzz"
CORPUS = _HERE / "corpus"
TARGETS = ("decoders", "directories")
_INPUT_BYTES_MAX = 4096
_RAN = re.compile(r"^stat::number_of_executed_units:\s+(\d+)$", re.MULTILINE)
_RAN_C = re.compile(r"^(\w+): (\d+)$|replay_(\w+): ran \d+ inputs, (\d+) changed", re.MULTILINE)


def corpus(target: str) -> list[bytes]:
    """Return the stored inputs of a target."""
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]


def changed(draw: Random, inputs: list[bytes]) -> bytes:
    """Return one of the inputs with some changes."""
    data = bytearray(draw.choice(inputs))
    for _ in range(draw.randint(1, 4)):
        at = draw.randint(0, len(data))
        match draw.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 1:
                data[at : at + 1] = draw.randbytes(1)
            case 2:
                data[at:] = draw.choice(inputs)[at:]
            case 3:
                data[at:at] = draw.randbytes(draw.randint(1, 16))
            case _:
                del data[at : at + draw.randint(1, 16)]
    return bytes(data[:_INPUT_BYTES_MAX])


def run_blind(
    one_input: Callable[[bytes], None], inputs: list[bytes], seconds: float, seed: int
) -> int:
    """Run changed inputs for a while, and return their number."""
    draw, end, count = Random(seed), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = changed(draw, inputs)
        try:
            one_input(data)
        except BaseException:
            found = _HERE / "found"
            found.mkdir(exist_ok=True)
            (found / f"blind-{seed}-{count}").write_bytes(data)
            raise
        count += 1
    return count


def _inside_atheris(target: str, seconds: int) -> None:
    """Run libFuzzer, which ends the process."""
    import atheris

    with atheris.instrument_imports(include=["timerstore"]):
        module = importlib.import_module(f"tests.fuzz.{target}")
    grown, found = _HERE / "grown" / target, _HERE / "found"
    for folder in (grown, found):
        folder.mkdir(parents=True, exist_ok=True)
    arguments = [
        sys.argv[0], str(grown), str(CORPUS / target), f"-max_total_time={seconds}", "-timeout=60",
        f"-max_len={_INPUT_BYTES_MAX}", f"-artifact_prefix={found}/{target}-",
        "-print_final_stats=1",
    ]  # fmt: skip
    atheris.Setup(arguments, module.one_input)
    atheris.Fuzz()


def _with_atheris(target: str, seconds: int) -> int:
    command = [sys.executable, "-m", "tests.fuzz", target, "--seconds", str(seconds), "--inside"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    ran = _RAN.search(done.stderr)
    if done.returncode or ran is None:
        told = [line for line in done.stderr.splitlines() if not line.startswith("#")]
        print(done.stdout[-4000:], *told[-20:], sep="\n")
        raise SystemExit(1)
    return int(ran[1])


def _run_c(seconds: int) -> dict[str, int]:
    """Run every C target, one after the other, and return the number of inputs of each."""
    command = ["make", "-k", "-s", "-C", str(_NATIVE), f"SECONDS={seconds}", "run"]
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    counts = {one[1] or one[3]: int(one[2] or one[4]) for one in _RAN_C.finditer(done.stdout)}
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-8000:], sep="\n")
        raise SystemExit(1)
    return counts


def _run_python(target: str, seconds: int, seed: int, *, blind: bool) -> int:
    if not blind and importlib.util.find_spec("atheris") is not None:
        return _with_atheris(target, seconds)
    if not blind:
        print("atheris is not there (pip install 'atheris>=3'): blindly", file=sys.stderr)
    one_input = importlib.import_module(f"tests.fuzz.{target}").one_input
    try:
        return run_blind(one_input, corpus(target), seconds, seed)
    except BaseException:  # noqa: BLE001 - reported with the path of the input
        traceback.print_exc()
        raise SystemExit(1) from None


def main() -> None:
    """Run one target."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", choices=("c", *TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--blind", action="store_true")
    parser.add_argument("--ledger", action="store_true")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("input", nargs="*", type=Path)
    given = parser.parse_args()
    logging.disable()  # a damaged store logs many warnings
    if given.inside:
        _inside_atheris(given.target, given.seconds)
    if given.input:
        one_input = importlib.import_module(f"tests.fuzz.{given.target}").one_input
        for path in given.input:
            one_input(path.read_bytes())
        return
    start = time.monotonic()
    if given.target == "c":
        counts = _run_c(given.seconds)
    else:
        ran = _run_python(given.target, given.seconds, given.seed, blind=given.blind)
        counts = {given.target: ran}
    print(*(f"{name}: {count} inputs" for name, count in counts.items()), sep="\n")
    if given.ledger:
        suite = "fuzz: C decoders" if given.target == "c" else f"fuzz: {given.target}"
        ledger.add(suite, sum(counts.values()), time.monotonic() - start, counts)


if __name__ == "__main__":
    main()
