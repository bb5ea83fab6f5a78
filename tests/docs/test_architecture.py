"""The architecture page names files that exist, and its first walk is short."""

import re
from pathlib import Path

import timerstore

PACKAGE = Path(timerstore.__file__).parent
PAGE = (PACKAGE / "docs" / "architecture.md").read_text("utf-8")
WALK_FILES_MAX = 15
TERMS_MAX = 40


def _walk(number: int) -> str:
    return PAGE.split(f"## Walk {number}:")[1].split("\n## ")[0]


def _files_of_steps(walk: str) -> list[str]:
    """Return the file that each step of a walk begins with."""
    return re.findall(r"^\d+\. `([\w/.]+)`", walk, re.MULTILINE)


def test_files_named_in_the_pages_exist() -> None:
    names = re.findall(r"`((?:[\w]+/)*\w+\.(?:py|c|h))`", PAGE)
    assert len(names) > 40
    for name in names:
        places = (PACKAGE / name, PACKAGE.parent / name, PACKAGE / "_engine" / "timer" / name)
        assert any(place.exists() for place in places), name


def test_first_walk_goes_forward_through_few_files() -> None:
    files = _files_of_steps(_walk(1))
    assert len(files) <= WALK_FILES_MAX
    assert len(set(files)) == len(files), "a file is met twice"


def test_walks_name_functions_that_exist() -> None:
    for number in (1, 2, 3):
        for line in _walk(number).splitlines():
            file = re.match(r"\d+\. `([\w/.]+\.py)`", line)
            if file is None:
                continue
            source = (PACKAGE / file[1]).read_text("utf-8")
            for method in re.findall(r"`\w+\.(_?\w+)`", line.split("`:", 1)[-1]):
                in_store = (PACKAGE / "store.py").read_text("utf-8")
                assert f"def {method}(" in source + in_store, (file[1], method)


def test_glossary_is_short() -> None:
    rows = PAGE.split("## Glossary")[1].split("\n## ")[0].strip().splitlines()[2:]
    assert len(rows) <= TERMS_MAX
    terms = [row.split("|")[1].strip().lower() for row in rows]
    assert terms == sorted(terms)
