"""The version of the package, and the hints to install its parts."""

import re
import tomllib
from pathlib import Path

import timerstore

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_version_is_that_of_the_project() -> None:
    assert timerstore.__version__ == PROJECT["version"]


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
        "bench",
        "peers",
        "wheels",
        "dev",
        "docs",
    }
