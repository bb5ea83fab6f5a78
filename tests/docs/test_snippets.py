"""Run every snippet of the guides and the README, and compare its output with the page."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import snippets
from tests.support.celery_brokers import close_brokers
from tests.support.snippets import GUIDES, ROOT, Section

PAGES = [*sorted(GUIDES.glob("*.md")), ROOT / "README.md"]
SECTIONS = [one for page in PAGES for one in snippets.sections(page)]


@pytest.fixture(autouse=True)
def _no_connection_of_kombu_stays(shell: dict[str, str]) -> Iterator[None]:
    """Close it before the folder of the snippets is gone."""
    yield
    close_brokers()


@pytest.mark.parametrize("section", SECTIONS, ids=lambda one: f"{one.page} {one.name}")
def test_section_runs(section: Section, shell: dict[str, str]) -> None:
    snippets.run(section, shell)


_IN_ORDER = [[one] for one in PAGES] + [
    [ROOT / "README.md", GUIDES / "quick-start.md", GUIDES / "guide.md"]
]


@pytest.mark.parametrize(
    "pages",
    [one for one in _IN_ORDER if sum(len([*snippets.sections(page)]) for page in one) > 1],
    ids=lambda one: " ".join(page.name for page in one),
)
def test_sections_run_one_after_another_in_one_folder(
    pages: list[Path], shell: dict[str, str]
) -> None:
    for page in pages:
        for section in snippets.sections(page):
            snippets.run(section, shell)


def test_eleven_tasks_exist_and_each_runs_a_snippet() -> None:
    tasks = [one for one in SECTIONS if one.page == "guide.md"]
    assert [one.name.partition(".")[0] for one in tasks] == [str(n) for n in range(1, 12)]
    for one in tasks:
        assert any(snippet.kind in ("python", "console") for snippet in one.snippets)


def test_different_output_is_detected(shell: dict[str, str]) -> None:
    wrong = Section("page", "name", [snippets.Snippet("python", "", "print(1)\n")] * 1)
    said = Section("page", "name", [*wrong.snippets, snippets.Snippet("text", "", "2\n")])
    with pytest.raises(AssertionError, match="said:\n2"):
        snippets.run(said, shell)
    with pytest.raises(AssertionError, match="came:\n1"):
        snippets.run_console("$ echo 1\n2\n", shell)
    assert snippets.run_console("$ echo one two\none ...\n", shell) == 1
