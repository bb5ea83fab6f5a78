"""Run a slice of the tests on every CPython that is found, each in an environment of its own.

    python -m tests.support.pythons [pytest arguments]

An interpreter is found in PATH (`python3.12`) or among pyenv's or uv's. The version that runs this
is left out: `make test` has it. Any warning of Python or setuptools is an error, in the build and
in the tests. Exit status 1 if a version fails; a version that is not found is reported.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
ENVIRONMENTS = ROOT / "build" / "pythons"
SLICE = ("aio", "base", "change", "cli", "fastpath", "format", "leases", "lifecycle", "log",
         "native", "net", "queues", "read", "recovery", "storage", "write")  # fmt: skip
"""Folders of tests/unit; tests/cli comes with them."""
FOLDERS = (".pyenv/versions/{}.*/bin/python", ".local/share/uv/python/cpython-{}.*/bin/python")
"""Below the home folder."""


def _candidates(version: str) -> Iterator[str]:
    named = shutil.which(f"python{version}")
    if named is not None:
        yield named
    for pattern in FOLDERS:
        yield from sorted(str(one) for one in Path.home().glob(pattern.format(version)))


def find(version: str) -> str | None:
    """Return a CPython of a version that runs."""
    program = "import sys; print(sys.implementation.name, '%d.%d' % sys.version_info[:2])"
    for one in _candidates(version):
        told = subprocess.run([one, "-c", program], capture_output=True, text=True, check=False)
        if told.stdout.split() == ["cpython", version]:
            return one
    return None


def prepare(version: str, python: str) -> str:
    """Build the package for a version, in an environment of its own, and return its Python."""
    home = ENVIRONMENTS / version
    mine = str(home / "bin" / "python")
    if not Path(mine).exists():
        subprocess.run([python, "-m", "venv", str(home)], check=True)
    pip = [mine, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    subprocess.run([*pip, "--upgrade", "setuptools>=77", "cffi>=1.17"], check=True)
    subprocess.run([mine, "-W", "error", "native/build.py"], check=True, cwd=ROOT)
    editable = ["--no-build-isolation", "--editable", ".[dev]"]
    subprocess.run([*pip, *editable], check=True, cwd=ROOT)
    return mine


def run(version: str, python: str, asked: list[str]) -> bool:
    """Run the slice on a version, and return whether it passed."""
    mine = prepare(version, python)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [mine, "-m", "pytest", "-q", "-n", "2", "-m", "not more and not deep"]
    command += asked or [*(f"tests/unit/{one}" for one in SLICE), "tests/cli"]
    return subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode == 0


def main() -> int:
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = {version: find(version) for version in VERSIONS if version != own}
    failed = []
    for version, python in found.items():
        print(f"--- CPython {version}: {python or 'NOT FOUND, NOT TESTED'}", flush=True)
        if python is not None and not run(version, python, sys.argv[1:]):
            failed.append(version)
    if failed:
        print(f"FAILED on {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
