"""The parts of the site that MkDocs does not make: addresses, links to source files, llms.txt.

The addresses of the site and of the repository are those of pyproject.toml. Pages link to source
files by relative paths, which work where the repository is shown. On the site, such a link leads to
the file at the tag of this release.
"""

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "timerstore" / "docs"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
VERSION = runpy.run_path(f"{ROOT}/timerstore/_engine/base/version.py")["__version__"]
_LINK = re.compile(r"(?<=\]\()\.\./[^)#\s]+")


def source_links(text: str, folder: Path) -> str:
    """Replace links of a page in `folder` to files that are not pages."""

    def address(found: re.Match[str]) -> str:
        path = (folder / found[0]).resolve()
        if path.is_relative_to(DOCS) or not path.exists():
            return found[0]
        kind = "tree" if path.is_dir() else "blob"
        return f"{REPOSITORY}/{kind}/v{VERSION}/{path.relative_to(ROOT)}"

    return _LINK.sub(address, text)


def first_sentence(markdown: str) -> str:
    """Return the first sentence below the title, without links."""
    paragraph = " ".join(markdown.split("\n\n")[1].split())
    sentence = re.split(r"(?<=\.)\s", paragraph)[0]
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", sentence)


def on_config(config: Any) -> None:
    """Set the addresses."""
    config.site_url, config.repo_url = PROJECT["urls"]["Documentation"], REPOSITORY
    config.edit_uri = "edit/main/timerstore/docs/"


def on_page_markdown(markdown: str, page: Any, **_given: object) -> str:
    """Lead links to source files into the repository."""
    return source_links(markdown, Path(page.file.abs_src_path).parent)


def on_nav(nav: Any, config: Any, **_given: object) -> None:
    """Write llms.txt: one line a page, in the order of the navigation."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for page in nav.pages:
        text = page.file.content_string
        title = text.partition("\n")[0].removeprefix("# ")
        lines += [f"- [{title}]({page.canonical_url}): {first_sentence(text)}"]
    Path(config.site_dir).mkdir(parents=True, exist_ok=True)  # in a fresh clone it is not there
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")
