"""The documentation site in a real browser, headless: every page, and the search."""

import os
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from tests.support import chromium
from tests.support.snippets import GUIDES, ROOT

pytest.importorskip("selenium")
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

SITE = ROOT / "build" / "site"
_MISSING = chromium.complaint() or (
    None if (SITE / "index.html").exists() else "the site was not built: `make docs`"
)
if _MISSING:
    print(f"!!! NOT RUN: tests/browser/test_site.py: {_MISSING}", file=sys.__stderr__)

pytestmark = [
    pytest.mark.more,
    pytest.mark.skipif(_MISSING is not None, reason=f"NOT RUN: {_MISSING}"),
    pytest.mark.xdist_group("browser"),
]
PAGES = sorted(str(page.relative_to(SITE).parent) for page in SITE.rglob("index.html"))


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_given: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=SITE)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser that finds no other host: a request to one is an error in its console."""
    rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    with chromium.driven(tmp_path_factory.mktemp("profile"), rules) as driver:
        yield driver


def test_site_has_every_page() -> None:
    names = {page.relative_to(GUIDES).with_suffix("") for page in GUIDES.rglob("*.md")}
    expected = {os.path.normpath(one.parent if one.name in ("index", "README") else one)
                for one in names}  # fmt: skip
    assert set(PAGES) == expected


@pytest.mark.parametrize("page", PAGES)
def test_page_loads_without_errors_and_from_its_own_host(
    browser: Any, site: str, page: str
) -> None:
    browser.get(f"{site}/{page}/")
    assert browser.find_element(By.CSS_SELECTOR, "article h1").text
    loaded = browser.execute_script(
        "return performance.getEntriesByType('resource').map((one) => one.name)"
    )
    assert len(loaded) >= 3
    assert [one for one in loaded if not one.startswith(f"{site}/")] == []
    assert [one["message"] for one in browser.get_log("browser")] == []
    pictures = (
        "return [...document.images].filter((one) => !one.naturalWidth).map((one) => one.src)"
    )
    assert browser.execute_script(pictures) == []


def test_search_finds_cancel(browser: Any, site: str) -> None:
    browser.get(site)
    browser.find_element(By.CSS_SELECTOR, "input.md-search__input").send_keys("cancel")
    found = (
        "return [...document.querySelectorAll('.md-search-result__link')].map((one) => one.href)"
    )
    links = WebDriverWait(browser, 20, 0.05).until(lambda _: browser.execute_script(found))
    assert all(one.startswith(f"{site}/") for one in links)
    assert any("/features/" in one and "cancel" in one for one in links)
    assert browser.get_log("browser") == []


def test_request_to_another_host_is_found(browser: Any, site: str) -> None:
    browser.get(site)
    browser.execute_async_script("fetch('https://x.example/').catch(() => 0).then(arguments[0])")
    assert "x.example" in str(browser.get_log("browser"))
