"""A wheel in a new environment without a compiler; how long it takes to the first message.

    python -m tests.support.installed_wheel [WHEEL]

installs WHEEL, or the newest of dist for this Python and machine, with the extra `cli`, from a warm
cache. Then a program puts a message and receives it, and `timerstore demo` runs, both without a
network. The seconds of each are printed. Exit status 1 if one fails, or if the first message or the
demo needs more than a minute with the installation.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support import pythons

DIST = Path(__file__).resolve().parents[2] / "dist"
MAX_S = 60.0
FIRST_MESSAGE = """
import timerstore
with timerstore.open("orders.store") as store:
    store.put("orders", b"first", delay=0.2)
    [message] = store.receive("orders", "billing", wait=10.0)
    print(message.body.decode(), store.ack(message).name)
"""


def wheels_of_this_machine() -> list[Path]:
    return sorted(DIST.glob(f"*manylinux_2_17_{platform.machine()}.whl"))


def without_repository() -> dict[str, str]:
    """Return the environment without what leads to the checkout."""
    return {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}


class Installed:
    """An environment with one wheel and its dependencies."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        tag = wheel.name.split("-")[2]  # cp311
        python = pythons.find(f"{tag[2]}.{tag[3:]}")
        assert python, f"no Python for {wheel.name}"
        subprocess.run([python, "-m", "venv", folder / "env"], check=True)
        self._programs = folder / "env" / "bin"
        self._work = folder / "work"
        self._work.mkdir()
        self._environment = without_repository() | {"PATH": str(self._programs)}
        assert not any(shutil.which(one, path=self._programs) for one in ("cc", "gcc", "clang"))
        # A dependency without a wheel would need a compiler.
        self.run("python", "-m", "pip", "install", "--only-binary", ":all:", f"{wheel}[cli]")

    def run(self, program: str, *words: str | Path, is_alone: bool = False) -> str:
        """Return the output of a program of the environment; alone: without a network."""
        unshare = shutil.which("unshare") or "unshare"
        front = [unshare, "--map-root-user", "--net"] if is_alone else []
        done = subprocess.run([*front, self._programs / program, *words], cwd=self._work,
                              env=self._environment, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout


def main(given: list[str]) -> int:
    own = f"-cp{sys.version_info.major}{sys.version_info.minor}-"
    wheels = [Path(one).resolve() for one in given]
    wheels = wheels or [one for one in wheels_of_this_machine() if own in one.name]
    if not wheels:
        print("no wheel in dist for this Python; `make wheels` builds one", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as name:
        Installed(Path(name, "first"), wheels[-1])  # from now on the cache is warm
        began = time.monotonic()
        installed = Installed(Path(name, "second"), wheels[-1])
        install_s = time.monotonic() - began
        first_s = install_s + _took(installed, "first ACKED", "python", "-c", FIRST_MESSAGE)
        demo_s = install_s + _took(installed, "PASS", "timerstore", "demo")
    print(f"{wheels[-1].name}: installed in {install_s:.1f} s, the first message delivered "
          f"after {first_s:.1f} s; installation and demo {demo_s:.1f} s")  # fmt: skip
    return max(first_s, demo_s) > MAX_S


def _took(installed: Installed, wanted: str, *words: str) -> float:
    """Return the seconds of a program, without a network."""
    began = time.monotonic()
    told = installed.run(*words, is_alone=True)
    assert wanted in told, told
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
