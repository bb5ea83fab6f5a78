"""The version of the package, and the hints to install its parts."""

import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import timerstore
from timerstore.cli import main

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_version_is_the_same_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """timerstore/_engine/base/version.py has it; the metadata are of the last installation."""
    version = timerstore.__version__
    assert "version" in PROJECT["dynamic"]
    assert metadata.version("timerstore") == version
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.split()[-1] == version
    with timerstore.open(tmp_path / "some.store", threads=False) as store:
        assert store.stats()["version"] == version
    with timerstore.open(tmp_path / "some.store", read_only=True) as store:
        assert store.stats()["version"] == version
    with timerstore.open_shards(tmp_path / "shards", 2, threads=False) as shards:
        assert shards.stats()["version"] == version
        assert shards.stats()["by_shard"][1]["version"] == version


def test_hints_to_install_work_in_a_checkout() -> None:
    """Nothing is released yet: no index has a package of this name."""
    package = Path(timerstore.__file__).parent
    files = [*package.rglob("*.py"), *package.rglob("*.md"), ROOT / "README.md"]
    found = {
        (file.name, hint)
        for file in files
        for hint in re.findall(r"pip install [^\n]*", file.read_text("utf-8"))
    }
    assert found
    assert not [one for one in found if re.match(r"pip install ['\"]?timerstore", one[1])]
    extras = PROJECT["optional-dependencies"].keys()
    for name, hint in found:
        for given in re.findall(r"pip install ['\"]\.\[([a-z,]+)\]", hint):
            assert set(given.split(",")) <= extras, name


def test_quick_start_lists_every_extra_for_users() -> None:
    page = (Path(timerstore.__file__).parent / "docs" / "quick-start.md").read_text("utf-8")
    rows = page.partition("| extra | for |")[2].partition("\n\n")[0].splitlines()[2:]
    listed = [name for row in rows for name in re.findall(r"`([a-z]+)`", row.split("|")[1])]
    assert set(listed) == PROJECT["optional-dependencies"].keys() - {
        "demo",
        "docs",
        "bench",
        "peers",
        "wheels",
        "dev",
    }


def test_import_from_sources_that_are_not_compiled_says_what_to_do(tmp_path: Path) -> None:
    """As in a checkout, if Python runs there."""
    skipped = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "timerstore", tmp_path / "timerstore", ignore=skipped)
    code = (
        "import sys\n"
        "sys.meta_path[:] = [one for one in sys.meta_path if 'editable' not in repr(one)]\n"
        "sys.path.insert(0, '')\n"
        "import timerstore"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.stderr.splitlines()[-1] == (
        "ImportError: timerstore._fastpath: not compiled for this Python in the folder from which "
        "timerstore was imported. If it is a checkout, run Python in another folder, or type: "
        "pip install -e ."
    )
