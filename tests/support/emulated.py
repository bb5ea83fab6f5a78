"""Run the tests of the wheels for aarch64 on this machine, under qemu: `make test-arm`.

    python -m tests.support.emulated [pytest arguments]

qemu, and a Python for aarch64 with its libraries, come from the distribution by apt. Nothing of the
machine changes but that qemu-user is installed where it is missing, as root. The wheel is built for
the version of the distribution's Python. pyproject.toml has the list of tests, for cibuildwheel.
Exit status 1 if a test fails, or if something is missing, which a line on standard error names.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "aarch64"
SYSTEM = BUILD / "system"
PACKAGES = BUILD / "packages"
TREE = BUILD / "tree"
PLATFORMS = [f"--platform={one}_aarch64" for one in ("manylinux_2_28", "manylinux2014")]
# A child of an emulated program must be emulated, too.
STARTS_ITSELF = "import os, sys\nsys.executable = os.environ['EMULATED_PYTHON']\n"


class CannotRunError(Exception):
    """Something that the tests need cannot be had here."""


def _run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    if done.returncode:
        raise CannotRunError(f"{shlex.join(map(str, command))}\n{done.stdout[-2000:]}")
    return done.stdout


def emulator() -> str:
    """Return the path of qemu; install it if that is permitted."""
    for _ in range(2):
        for name in ("qemu-aarch64", "qemu-aarch64-static"):
            if found := shutil.which(name):
                return found
        if shutil.which("apt-get") is None or os.geteuid():
            break
        _run("apt-get", "update")
        _run("apt-get", "install", "--yes", "--no-install-recommends", "qemu-user")
    raise CannotRunError("qemu-aarch64 is not there: apt install qemu-user")


def fetch_system() -> None:
    """Unpack the distribution's Python for aarch64, and all that it depends on."""
    lists, archives, status = BUILD / "apt" / "lists", BUILD / "apt" / "archives", BUILD / "status"
    for folder in (lists / "partial", archives / "partial", SYSTEM):
        folder.mkdir(parents=True, exist_ok=True)
    status.touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::State::lists": lists,
        "Dir::State::status": status,
        "Dir::Cache::archives": archives,
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
    }
    apt = ("apt-get", *(f"--option={name}={value}" for name, value in settings.items()))
    _run(*apt, "update")
    # NumPy's wheels need the C++ library of the system.
    wanted = ("python3", "libstdc++6")
    _run(*apt, "install", "--yes", "--download-only", "--no-install-recommends", *wanted)
    for package in sorted(archives.glob("*.deb")):
        _run("dpkg", "--extract", package, SYSTEM)
    for name in ("lib", "bin"):
        if not (SYSTEM / name).exists():
            (SYSTEM / name).symlink_to(f"usr/{name}")


def wheel_for(version: str) -> Path:
    """Build the wheel; return its path in dist."""
    tag = f"cp{version.replace('.', '')}"
    only = f"{tag}-manylinux_2_17_aarch64"
    _run(sys.executable, "-m", "tests.support.wheels", "--once", "--only", only, cwd=ROOT)
    [wheel] = (ROOT / "dist").glob(f"timerstore-*-{tag}-*manylinux_2_17_aarch64.whl")
    return wheel


def prepare(qemu: str) -> tuple[Path, dict[str, str]]:
    """Return the program that starts the emulated Python, and its environment."""
    if not (SYSTEM / "usr" / "bin").exists():
        fetch_system()
    [python] = [one for one in (SYSTEM / "usr" / "bin").iterdir()
                if re.fullmatch(r"python3\.\d+", one.name)]  # fmt: skip
    version = python.name.removeprefix("python")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    needed = [one for one in settings["test-requires"] if "xdist" not in one]
    shutil.rmtree(PACKAGES, ignore_errors=True)
    _run(sys.executable, "-m", "pip", "install", "--quiet", "--target", PACKAGES,
         "--python-version", version, "--only-binary=:all:", *PLATFORMS,
         f"{wheel_for(version)}[{','.join(settings['test-extras'])}]", *needed)  # fmt: skip
    (PACKAGES / "sitecustomize.py").write_text(STARTS_ITSELF)
    shutil.rmtree(TREE, ignore_errors=True)
    for name in settings["test-sources"]:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (TREE / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, TREE / name)
    program = BUILD / "python"
    program.write_text(f'#!/bin/sh\nexec {qemu} -L {SYSTEM} {python} "$@"\n')
    program.chmod(0o755)
    return program, os.environ | {"PYTHONPATH": str(PACKAGES), "EMULATED_PYTHON": str(program)}


def main(asked: list[str]) -> int:
    try:
        program, environment = prepare(emulator())
    except CannotRunError as error:
        print(f"!!! NOT RUN: the tests of the wheels for aarch64: {error}", file=sys.stderr)
        return 1
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    words = shlex.split(settings["test-command"])
    words = words[words.index("pytest") + 1 :]
    del words[words.index("-n") : words.index("-n") + 2]  # one process: it is slow to start
    told = subprocess.check_output((program, "-c", "import platform; print(platform.machine())"),
                                   env=environment, text=True)  # fmt: skip
    assert told == "aarch64\n", told
    command = (program, "-m", "pytest", "-o", "timeout=600", *words, *asked)
    return subprocess.run(command, cwd=TREE, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
