"""Open every address that a page links to. As a program: exit status 1 if one does not answer.

For the workflow of the documentation: it needs the network, and other hosts.
"""

import re
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tests.support.snippets import GUIDES, ROOT

PATIENCE_S = 30
_LINK = re.compile(r"\]\((https?://[^)\s]+)\)")
_NO_ADDRESS = re.compile(r"https://[\w.]*\.example/")
"""Names that are reserved for examples (pyproject.toml, until an address is chosen)."""


def links(pages: Iterable[Path]) -> set[str]:
    """Return the addresses on the pages."""
    found = {link for page in pages for link in _LINK.findall(page.read_text("utf-8"))}
    return {link for link in found if not _NO_ADDRESS.match(link)}


def complaint(link: str) -> str | None:
    """Return the defect of an address, or None. A host that rejects programs counts as present."""
    try:
        urlopen(Request(link, headers={"User-Agent": "Mozilla/5.0"}), timeout=PATIENCE_S).close()
    except HTTPError as error:
        return None if error.code in (403, 429) else f"{link}: {error}"
    except (URLError, OSError) as error:
        return f"{link}: {error}"
    return None


def main() -> int:
    """Print the addresses that do not answer."""
    found = sorted(links([ROOT / "README.md", ROOT / "CHANGELOG.md", *GUIDES.rglob("*.md")]))
    with ThreadPoolExecutor(8) as pool:
        wrong = [one for one in pool.map(complaint, found) if one]
    print(*wrong, f"{len(found)} links, {len(wrong)} of them broken", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
