"""Build the wheels of every CPython that is found, for each target, and check them: `make wheels`.

    python -m tests.support.wheels [--only TEXT] [--once]

The wheels are made from the source distribution, in a folder for each target, and put into dist/
with it. Then they are made again elsewhere: their bytes must be the same. TEXT selects the wheels
whose tag (cp311-manylinux_2_17_x86_64) has it; --once does not make them again. Exit status 1 if a
wheel cannot be built or breaks a rule of wheel_checks.py; a Python that is not found is reported.
"""

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from native.build import TARGETS
from tests.support import pythons, wheel_checks

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "wheels"
DIST = ROOT / "dist"


def _run(*command: str | Path, cwd: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=cwd, env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}")


@cache
def _environment() -> dict[str, str]:
    """Return this one, with the tools of this Python in PATH, and the date of the commit.

    Found once: a commit during the build must not give the second wheels another date.
    """
    dated = ("git", "log", "-1", "--format=%ct")
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or subprocess.check_output(dated, cwd=ROOT).decode()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    found = os.environ | {"SOURCE_DATE_EPOCH": epoch.strip(), "PATH": path}
    found.pop("PYTHONPATH", None)  # else the checkout stands before the copy that is built
    return found


def make_sdist(folder: Path) -> Path:
    """Return a new source distribution in a folder."""
    _run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, ".",
         cwd=ROOT, environment=_environment())  # fmt: skip
    [made] = folder.glob("*.tar.gz")
    return made


def make_wheels(sdist: Path, target: str, found: Iterable[str], folder: Path) -> list[Path]:
    """Return the wheels of one target, for each of the Pythons."""
    with tarfile.open(sdist) as packed:
        packed.extractall(folder, filter="data")
    [tree] = folder.iterdir()
    environment = _environment() | {"TS_TARGET": target, "ZIG_LOCAL_CACHE_DIR": f"{folder}/zig"}
    module = (sys.executable, "-m")
    for python in found:
        _run(*module, "pip", "--python", python, "wheel", "--no-deps", "--wheel-dir", "../raw", ".",
             cwd=tree, environment=environment)  # fmt: skip
    for raw in sorted((folder / "raw").iterdir()):
        _run(*module, "auditwheel", "repair", "--wheel-dir", "../done", raw,
             cwd=tree, environment=environment)  # fmt: skip
    return sorted((folder / "done").iterdir())


def make_all(sdist: Path, wanted: dict[str, list[str]], folder: Path) -> dict[str, list[Path]]:
    """Return the wheels of each target, two targets at a time."""
    with ThreadPoolExecutor(2) as pool:
        made = pool.map(lambda one: make_wheels(sdist, one, wanted[one], folder / one), wanted)
        return dict(zip(wanted, made, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--once", action="store_true")
    asked = parser.parse_args()
    began = time.monotonic()
    found = {version: pythons.find(version) for version in pythons.VERSIONS}
    for version, python in found.items():
        print(f"--- CPython {version}: {python or 'NOT FOUND, NO WHEELS'}", flush=True)
    wanted: dict[str, list[str]] = {
        target: [
            python
            for version, python in found.items()
            if python and asked.only in f"cp{version.replace('.', '')}-{target}"
        ]
        for target in TARGETS
    }
    wanted = {target: chosen for target, chosen in wanted.items() if chosen}
    if not wanted:
        print(f"no wheel to build: --only {asked.only!r}", file=sys.stderr)
        return 1
    shutil.rmtree(BUILD, ignore_errors=True)
    sdist = make_sdist(BUILD / "sdist")
    first = make_all(sdist, wanted, BUILD / "first")
    print(f"--- built in {time.monotonic() - began:.0f} s", flush=True)
    wrong = [
        complaint
        for target, wheels in first.items()
        for wheel in wheels
        for complaint in wheel_checks.complaints(wheel, target)
    ]
    if not asked.once:
        again = make_all(sdist, wanted, BUILD / "again")
        for target, wheels in first.items():
            for one, other in zip(wheels, again[target], strict=True):
                if one.name != other.name or not filecmp.cmp(one, other, shallow=False):
                    wrong.append(f"{one.name}: built again, its bytes are others: {other}")
    DIST.mkdir(exist_ok=True)
    for file in (sdist, *(wheel for wheels in first.values() for wheel in wheels)):
        print(f"{file.stat().st_size / 1e6:5.2f} MB {shutil.copy(file, DIST)}")
    for complaint in wrong:
        print(f"!!! {complaint}", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
