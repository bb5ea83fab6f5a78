"""A wheel of dist/ in a new environment: no compiler in PATH, no network once it is installed."""

import shutil
from pathlib import Path

import pytest

from tests.support.installed_wheel import Installed, wheels_of_this_machine
from tests.support.snippets import GUIDES, ROOT

pytestmark = [pytest.mark.more, pytest.mark.timeout(600)]

FOUND = wheels_of_this_machine()
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
