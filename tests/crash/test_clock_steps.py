"""Test that no message is early on the system clock, which a shim steps under the store."""

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]


def _shim(folder: Path) -> Path:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("NOT RUN: there is no C compiler to make the clock of")
    made = folder / "fake_clock.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, "-o", made, _HERE / "fake_clock.c"], check=True)
    return made


def _live(tmp_path: Path, *given: str) -> dict[str, float]:
    clock = tmp_path / "clock"
    clock.write_bytes(struct.pack("=3q", time.time_ns(), time.monotonic_ns(), 1000))
    made = subprocess.run(
        [sys.executable, "-m", "tests.crash.clock_child", tmp_path / "store", clock, *given],
        env=os.environ
        | {
            "LD_PRELOAD": str(_shim(tmp_path)),
            "TIMERSTORE_FAKE_CLOCK": str(clock),
            "PYTHONPATH": str(_ROOT),
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    took: dict[str, float] = json.loads(made.stdout)
    print(took)
    return took


def test_delivery_is_not_early_when_the_system_clock_is_set(tmp_path: Path) -> None:
    assert len(_live(tmp_path)) == 6


@pytest.mark.deep
@pytest.mark.timeout(200)
def test_clock_step_forward_is_noticed_without_a_call(tmp_path: Path) -> None:
    _live(tmp_path, "--patient")
