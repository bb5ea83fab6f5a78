"""The source distribution has the files of git, and installs in a clean environment."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("elftools")
from tests.support.snippets import ROOT
from tests.support.wheels import make_sdist

pytestmark = [pytest.mark.more, pytest.mark.timeout(600)]

PUT = "import timerstore; timerstore.open('some.store').put('topic', b'body'); print('stored')"
ELSEWHERE = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    return make_sdist(tmp_path_factory.mktemp("sdist"))


def test_sdist_has_what_is_in_git(sdist: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("NOT RUN: no git to compare with")
    listed = subprocess.check_output(("git", "ls-files"), cwd=ROOT, text=True).splitlines()
    with tarfile.open(sdist) as packed:
        names = {one.name.partition("/")[2] for one in packed if one.isfile()}
    made = {one for one in names if one.startswith("timerstore.egg-info/")}
    assert names - made - {"PKG-INFO", "setup.cfg"} == set(listed)


def test_sdist_installs_in_a_clean_environment(sdist: Path, tmp_path: Path) -> None:
    subprocess.run((sys.executable, "-m", "venv", tmp_path / "env"), check=True)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run((python, "-m", "pip", "install", sdist), check=True, cwd=tmp_path, env=ELSEWHERE)
    told = subprocess.check_output((python, "-c", PUT), cwd=tmp_path, env=ELSEWHERE, text=True)
    assert told == "stored\n"
