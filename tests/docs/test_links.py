"""Links, file names and commands in the documents lead to something that exists."""

import importlib
import re
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import click
import pytest

from tests.support import outward_links
from tests.support.snippets import GUIDES, ROOT
from timerstore.cli.command import COMMANDS
from timerstore.cli.exits import TABLE

FRONT = ("quick-start", "guide", "features", "cli", "dashboard", "comparison", "contributing")
README = ROOT / "README.md"
README_WORDS_MAX = 950
CHANGELOG_LINES_MAX = 150
PAGES = [README, ROOT / "CHANGELOG.md", *sorted(GUIDES.rglob("*.md"))]

_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = _FENCE.sub("", page.read_text("utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _broken(page: Path) -> list[str]:
    found = []
    for link in _LINK.findall(_FENCE.sub("", page.read_text("utf-8"))):
        if link.startswith("https:"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda one: one.name)
def test_links_and_anchors_exist(page: Path) -> None:
    assert _broken(page) == []


def test_broken_link_and_broken_anchor_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One title\n[a](page.md#one-title) [b](page.md#other) [c](gone.md)\n")
    assert _broken(page) == ["page.md#other", "gone.md"]


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(int(self.path[1:]))
        self.end_headers()

    def log_message(self, *_given: object) -> None:
        """Print nothing."""


def test_outward_link_without_an_answer_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    with HTTPServer(("127.0.0.1", 0), _Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        at = f"http://127.0.0.1:{server.server_port}"
        page.write_text(
            f"[a]({at}/200) [b](page.md) [c]({at}/404) [d](https://x.example/) {at}/500"
        )
        assert outward_links.links([page]) == {f"{at}/200", f"{at}/404"}
        assert outward_links.complaint(f"{at}/200") is None
        assert outward_links.complaint(f"{at}/403") is None
        assert "404" in (outward_links.complaint(f"{at}/404") or "")
        server.shutdown()
    assert "refused" in (outward_links.complaint(f"{at}/200") or "")


def test_index_lists_every_page() -> None:
    listed = set(
        re.findall(r"^\| \[[^]]+\]\(([^)]+)\)", (GUIDES / "index.md").read_text(), re.MULTILINE)
    )
    pages = {page.name for page in GUIDES.glob("[a-z]*.md")} - {"index.md"}
    assert pages <= listed
    assert {f"{name}.md" for name in FRONT} <= pages


def test_files_named_in_contributing_exist() -> None:
    names = re.findall(r"`((?:timerstore|native|tests)/[\w/.]+)`", _contributing())
    assert len(names) > 30
    assert [name for name in names if not (ROOT / name).exists()] == []


def _contributing() -> str:
    return (GUIDES / "contributing.md").read_text("utf-8")


def test_make_targets_named_in_contributing_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    text = _contributing() + README.read_text("utf-8")
    targets = set(re.findall(r"(?:`|^ {4})make ([a-z-]+)", text, re.MULTILINE))
    assert len(targets) > 8
    assert {one for one in targets if f"\n{one}:" not in makefile} == set()


def _options(name: str) -> set[str]:
    module = importlib.import_module(f"timerstore.cli.{COMMANDS[name][0]}")
    command: click.Command = getattr(module, f"{name.replace('-', '_')}_command")
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    return {option for one in shown for option in one.opts if option.startswith("--")}


@pytest.mark.parametrize("name", COMMANDS)
def test_cli_page_names_every_command_and_option(name: str) -> None:
    text = (GUIDES / "cli.md").read_text("utf-8")
    assert re.search(rf"`{name}\b", text), name
    assert {one for one in _options(name) if one not in text} == set()


def test_cli_page_names_every_exit_code() -> None:
    text = (GUIDES / "cli.md").read_text("utf-8").split("## Exit codes")[1]
    assert re.findall(r"^\| (\d+) \|", text, re.MULTILINE) == [str(int(code)) for code in TABLE]


def test_readme_and_changelog_are_short() -> None:
    assert len(README.read_text("utf-8").split()) <= README_WORDS_MAX
    assert len((ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()) <= CHANGELOG_LINES_MAX
