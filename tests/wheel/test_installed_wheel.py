"""A wheel of dist/ in a new environment: no compiler in PATH, no network once it is installed."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import pythons
from tests.support.snippets import GUIDES, ROOT

pytestmark = [pytest.mark.more, pytest.mark.timeout(600)]

FOUND = sorted((ROOT / "dist").glob(f"*manylinux_2_17_{platform.machine()}.whl"))
PAGES = (ROOT / "README.md", GUIDES / "quick-start.md")
RUN_PAGES = """
import os, sys
from pathlib import Path
import snippets, timerstore

assert Path(timerstore.__file__).is_relative_to(sys.prefix), timerstore.__file__
for page in sys.argv[1:]:
    ran = sum(snippets.run(one, dict(os.environ)) for one in snippets.sections(Path(page)))
    print(page, ran)
"""


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
        self._environment = os.environ | {"PATH": str(self._programs)}
        self._environment.pop("PYTHONPATH", None)
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


@pytest.mark.skipif(not FOUND, reason="NOT RUN: no wheel in dist; `make test-wheel` builds one")
@pytest.mark.parametrize("wheel", FOUND, ids=lambda one: one.name.split("-")[2])
def test_installed_wheel_runs_readme_and_quick_start(wheel: Path, tmp_path: Path) -> None:
    installed = Installed(tmp_path, wheel)
    shutil.copy(ROOT / "tests" / "support" / "snippets.py", tmp_path)
    (tmp_path / "run_pages.py").write_text(RUN_PAGES)
    ran = installed.run("python", tmp_path / "run_pages.py", *PAGES, is_alone=True)
    assert [int(line.split()[-1]) for line in ran.splitlines()[-len(PAGES) :]] == [1, 4]
    installed.run("timerstore", "put", "first.store", "orders", "second", is_alone=True)
    assert "PASS" in installed.run("timerstore", "demo", is_alone=True)
