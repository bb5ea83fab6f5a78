"""Run each input of the fuzz corpora once. `make fuzz` searches for new inputs."""

import importlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fuzz.__main__ import CORPUS, TARGETS, corpus, run_blind

_NATIVE = Path(__file__).parents[2] / "native"
_COMPILER = next((one for one in ("gcc", "clang", "cc") if shutil.which(one)), None)
_needs_compiler = pytest.mark.skipif(
    _COMPILER is None or shutil.which("make") is None, reason="NOT RUN: needs make and a C compiler"
)


def _make(folder: str, target: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    done = subprocess.run(
        ["make", "-s", "-j2", "-C", str(_NATIVE / folder), f"CC={_COMPILER}", target],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


@pytest.mark.more
@pytest.mark.timeout(600)
@_needs_compiler
def test_every_input_of_the_c_targets_under_sanitizers() -> None:
    said = _make("fuzz", "replay").splitlines()
    families = {path.stem.removeprefix("fuzz_") for path in (_NATIVE / "fuzz").glob("fuzz_*.c")}
    assert len(said) == len(families) == len(list((_NATIVE / "fuzz" / "corpus").iterdir()))
    for line in said:
        family = line.split(":")[0].rpartition("replay_")[2]
        kept = len(list((_NATIVE / "fuzz" / "corpus" / family).iterdir()))
        assert f"ran {kept} inputs" in line
        families.remove(family)
    assert not families


@pytest.mark.more
@pytest.mark.timeout(600)
@_needs_compiler
def test_c_code_under_thread_sanitizer() -> None:
    assert "race_engine: ok" in _make("race", "run")


def test_every_target_has_a_corpus() -> None:
    assert sorted(path.name for path in CORPUS.iterdir()) == sorted(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_every_input_of_the_python_targets(target: str) -> None:
    module = importlib.import_module(f"tests.fuzz.{target}")
    for data in corpus(target):
        module.one_input(data)


@pytest.mark.deep
@pytest.mark.parametrize("target", TARGETS)
def test_changed_inputs_of_the_python_targets(target: str) -> None:
    module = importlib.import_module(f"tests.fuzz.{target}")
    assert run_blind(module.one_input, corpus(target), 60, seed=1) > 0
