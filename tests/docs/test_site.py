"""The documentation site, without building it: navigation, API page, links, Markdown."""

import importlib.util
import itertools
import re
from pathlib import Path
from types import ModuleType

import pytest

import timerstore
import timerstore.aio
import timerstore.net
from tests.support.snippets import GUIDES

PAGES = sorted(GUIDES.rglob("*.md"))
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hook", GUIDES / "site" / "hook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_navigation_has_every_page_once() -> None:
    nav = (GUIDES / "site" / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    listed = re.findall(r"[\w/-]+\.md", nav)
    assert sorted(listed) == sorted(str(page.relative_to(GUIDES)) for page in PAGES)


def test_api_page_has_every_public_name() -> None:
    listed = re.findall(
        r"^::: timerstore\.([\w.]+)$", (GUIDES / "api.md").read_text(), re.MULTILINE
    )
    public = {*timerstore.__all__} - {"__version__"}
    public |= {f"aio.{name}" for name in timerstore.aio.__all__}
    public |= {f"net.{name}" for name in timerstore.net.__all__} - {"net.connect"}
    assert sorted(listed) == sorted(public)


@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.name)
def test_links_out_of_the_pages_lead_to_the_repository_at_the_release(
    page: Path, hook: ModuleType
) -> None:
    text = hook.source_links(_FENCE.sub("", page.read_text("utf-8")), page.parent)
    for link in re.findall(r"\]\((\.\./[^)#\s]+)", text):
        assert (page.parent / link).resolve().is_relative_to(GUIDES), link
    assert f"/v{timerstore.__version__}/" in hook.source_links("[a](../api.py)", GUIDES)


def test_source_link_keeps_its_anchor_and_page_links_stay(hook: ModuleType) -> None:
    at = f"{hook.REPOSITORY}/blob/v{timerstore.__version__}"
    folder = GUIDES / "decisions"
    assert hook.source_links("[a](../../api.py#L1)", folder) == f"[a]({at}/timerstore/api.py#L1)"
    assert hook.source_links("[a](../../../tests)", folder) == f"[a]({at}/tests)".replace(
        "blob", "tree"
    )
    for link in ("[a](../guide.md#x)", "[a](../../gone.py)"):
        assert hook.source_links(link, folder) == link


@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.name)
def test_page_begins_with_a_title_and_a_sentence(page: Path, hook: ModuleType) -> None:
    """The line of the page in llms.txt."""
    text = page.read_text("utf-8")
    assert re.match(r"# \S.*\n\n", text)
    assert re.fullmatch(r"[\w`][^|\n]{15,250}\.", hook.first_sentence(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.name)
def test_list_begins_after_an_empty_line(page: Path) -> None:
    """The site's Markdown needs one, the view of the repository does not."""
    assert _joined_lists(page.read_text("utf-8")) == []


def _joined_lists(text: str) -> list[str]:
    lines = _FENCE.sub("", text).splitlines()
    item = re.compile(r"\s*([-*]|\d+\.)\s")
    return [
        line
        for before, line in itertools.pairwise(lines)
        if item.match(line) and before.strip() and not (item.match(before) or before[0] == " ")
    ]


def test_list_joined_to_a_paragraph_is_found() -> None:
    assert _joined_lists("One:\n- a\n- b\n\nTwo:\n\n1. c\n   d\n2. e\n") == ["- a"]
