"""The page in a real browser, headless: what a person sees, presses and reads."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import chromium
from tests.support.bench import SECOND, Bench, small

pytest.importorskip("selenium")
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from timerstore import dashboard
from timerstore.dashboard.server import Served

_MISSING = chromium.complaint()
if _MISSING:
    print(f"!!! NOT RUN: tests/browser: {_MISSING}", file=sys.__stderr__)

pytestmark = [
    pytest.mark.more,
    pytest.mark.skipif(_MISSING is not None, reason=f"NOT RUN: {_MISSING}"),
    pytest.mark.xdist_group("browser"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium.driven(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(tmp_path / "orders.store", small())
    yield one
    one.close()


class Seen:
    """The page as a user sees it."""

    def __init__(self, driver: Any, served: Served) -> None:
        self.driver = driver
        self.served = served
        driver.get_log("browser")
        driver.get(served.url)
        self.until(lambda: self.text("#link-text").startswith("live"))

    def until(self, so: Callable[[], object]) -> Any:
        # Between finding and asking the page may have redrawn it.
        drawn_anew = [StaleElementReferenceException]
        return WebDriverWait(self.driver, 20, 0.02, drawn_anew).until(lambda _: so())

    def one(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return found

    def text(self, selector: str) -> str:
        # In one call: between finding and asking the page may have redrawn it.
        found = self.driver.execute_script(
            "const one = document.querySelector(arguments[0]);"
            "return one?.innerText ?? one?.textContent ?? ''",
            selector,
        )
        return str(found)

    def press(self, selector: str, text: str = "") -> None:
        def press() -> bool:
            found = [one for one in self.all(selector) if text in one.text]
            for one in found[:1]:
                one.click()
            return bool(found)

        self.until(press)

    def find(self, text: str) -> None:
        query = self.one("#query")
        query.clear()
        query.send_keys(text, Keys.ENTER)

    def ring(self) -> list[int]:
        """Return the messages per place, clockwise from now, by their accessible labels."""
        first, labels = self.driver.execute_script(
            "const all = [...document.querySelectorAll('.place')];"
            "return [all.findIndex((p) => p.tabIndex === 0), all.map((p) => p.ariaLabel)]"
        )
        counts = [int(re.search(r": ([\d,]+) message", one)[1].replace(",", "")) for one in labels]
        return counts[first:] + counts[:first]

    def complaints(self) -> list[str]:
        """What the browser's console has: what the policy kept out, errors of the script."""
        return [one["message"] for one in self.driver.get_log("browser")]


@pytest.fixture
def served(bench: Bench) -> Iterator[Served]:
    with dashboard.start(bench.store, every_s=0.05) as one:
        yield one


@pytest.fixture
def seen(browser: Any, served: Served) -> Seen:
    return Seen(browser, served)


def test_numbers_follow_put_and_delivery(bench: Bench, seen: Seen) -> None:
    assert seen.text("#pending") == "0"
    assert seen.text("#topics-empty").startswith("No topic yet")
    bench.store.put_many("orders", [b"x"] * 1200, delay=90)
    bench.store.put("mail", b"x", delay=30)
    bench.turn()
    seen.until(lambda: seen.text("#pending") == "1,201")
    assert seen.text("#topics").split() == ["orders", "1,200", "mail", "1"]
    assert seen.text("#ring-summary") == "1,201 in the next hour, 0 later"
    bench.turn(30 * SECOND)
    seen.until(lambda: seen.text("#pending") == "1,200")
    bench.turn(60 * SECOND)
    seen.until(lambda: seen.text("#pending") == "0")
    assert len(bench.bodies("mail")) == 1
    seen.until(lambda: "1,201 deliveries" in seen.text("#lateness-note"))
    assert seen.text("#p99") == "1 ms"
    assert seen.complaints() == []


def test_ring_rotates_with_the_clock(bench: Bench, seen: Seen) -> None:
    bench.store.put("orders", b"x", delay=10)
    bench.store.put_many("orders", [b"x"] * 3, delay=45)
    bench.turn()
    seen.press("#turns label", "1 min")
    seen.until(lambda: (seen.ring()[10], seen.ring()[45]) == (1, 3))
    turned = seen.one(".turning").get_attribute("style")
    bench.turn(5 * SECOND)
    seen.until(lambda: seen.ring()[5] == 1)
    assert seen.one(".turning").get_attribute("style") != turned
    assert seen.ring()[40] == 3
    seen.press("#turns label", "24 h")
    seen.until(lambda: len(seen.all(".place")) == 96)
    assert seen.ring()[0] == 4


def test_ring_place_lists_messages_and_explains_one(bench: Bench, seen: Seen) -> None:
    receipt = bench.store.put("orders", b"<b>close</b> 4711", delay=600, keys="4711", tags="paid")
    bench.turn()
    seen.until(lambda: sum(seen.ring()) == 1)
    now = seen.one('.place[tabindex="0"]')
    now.send_keys(Keys.ARROW_RIGHT)
    for _ in range(9):
        seen.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    place = seen.driver.switch_to.active_element
    assert place.get_attribute("aria-label").endswith(": 1 message")
    assert seen.text("#ring .big") == "1"
    place.send_keys(Keys.ENTER)
    seen.press("#found .id", receipt.message_id)
    seen.until(lambda: seen.text("#found .state").lower() == "pending")
    told = seen.text("#found")
    assert "It is due" in told
    assert "<b>close</b> 4711" in told
    assert "1 of 1" in told
    assert re.search(r"Put .*\n.*log offset", told)
    bench.turn(600 * SECOND)
    seen.until(lambda: seen.text("#found .state").lower() == "delivered")
    assert "Delivered to its topic" in seen.text("#found")
    seen.press("#found .back")
    seen.until(lambda: "No pending messages" in seen.text("#found"))
    assert seen.complaints() == []


def test_search_by_key_and_cancel_with_confirmation(bench: Bench, seen: Seen) -> None:
    receipt = bench.store.put("orders", b"x", delay=600, keys="customer-7")
    other = bench.store.put("orders", b"y", delay=600)
    bench.turn()
    seen.find("nobody-knows-this")
    seen.until(lambda: "No message" in seen.text("#found"))
    seen.find("customer-7")
    seen.press("#found .id", receipt.message_id)
    seen.press("#found button", "Cancel")
    assert seen.one("dialog").get_attribute("open") is not None
    told = seen.text("dialog")
    assert receipt.message_id in told
    assert "orders" in told
    assert seen.driver.switch_to.active_element.text == "Keep it"
    seen.press("dialog button", "Keep it")
    seen.until(lambda: seen.one("dialog").get_attribute("open") is None)
    assert bench.store.stats()["pending_messages"] == 2
    seen.press("#found button", "Cancel")
    seen.press("dialog button", "Cancel message")
    seen.until(lambda: seen.text("#found .state").lower() == "cancelled")
    assert "Cancelled. It will not be delivered." in seen.text("#found")
    assert [one.message_id for one in bench.store.pending()] == [other.message_id]
    assert not [one for one in seen.all("#found button") if "Cancel" in one.text]
    seen.until(lambda: seen.text("#pending") == "1")
    assert seen.complaints() == []


def test_topic_of_the_table_filters_the_ring(bench: Bench, seen: Seen) -> None:
    bench.store.put_many("a", [b"x"] * 7, delay=60)
    bench.store.put("b", b"x", delay=60)
    seen.press("#topics button", "b")
    seen.until(lambda: seen.text("#ring .big") == "1" and sum(seen.ring()) == 1)
    assert seen.one("#topic").get_attribute("value") == "b"
    assert seen.text("#pending") == "8"


def test_read_only_page_has_no_cancel_button(browser: Any, bench: Bench) -> None:
    receipt = bench.store.put("orders", b"x", delay=600)
    with dashboard.start(bench.store, read_only=True, every_s=0.05) as served:
        seen = Seen(browser, served)
        assert "read-only" in seen.text("#chips")
        seen.find(receipt.handle)
        seen.until(lambda: seen.text("#found .state").lower() == "pending")
        assert not [one for one in seen.all("button") if "Cancel …" in one.text]


def test_page_shows_nothing_without_the_token(bench: Bench, seen: Seen) -> None:
    receipt = bench.store.put("orders", b"x", delay=600)
    answers = seen.driver.execute_async_script(
        """
        const [handle, confirm, done] = arguments;
        const post = { method: "POST", headers: { "Content-Type": "application/json" },
                       body: JSON.stringify({ handle, confirm }) };
        Promise.all([fetch("events"), fetch("api/search?message=x"), fetch("api/cancel", post)])
          .then((all) => Promise.all(all.map(async (one) => [one.status, await one.text()])))
          .then(done, (error) => done(String(error)));
        """,
        receipt.handle,
        receipt.message_id,
    )
    assert answers == [[401, ""]] * 3
    assert bench.store.stats()["pending_messages"] == 1
    site = f"http://127.0.0.1:{seen.served.port}"
    for address in (f"{site}/", f"{site}/page.js", f"{site}/?token=wrong-token-of-16"):
        seen.driver.get(address)
        assert "timerstore" not in seen.driver.page_source


def test_page_fits_a_small_screen(browser: Any, bench: Bench, served: Served) -> None:
    for k in range(12):
        bench.store.put_many("topic-" + "long" * 20 + str(k), [b"x"] * 9, delay=60 * k)
    receipt = bench.store.put("orders", b"x" * 300, delay=600)
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        seen = Seen(browser, served)
        seen.find(receipt.message_id)
        seen.until(lambda: seen.text("#found .state"))
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 400
        seen.press("#found button", "Cancel")
        [left, right] = browser.execute_script(
            "const b = document.querySelector('dialog').getBoundingClientRect();"
            "return [b.left, b.right]"
        )
        assert 0 <= left < right <= 400
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_page_loads_from_this_server_only(seen: Seen) -> None:
    names = seen.driver.execute_script(
        "return performance.getEntriesByType('resource').map((one) => one.name)"
    )
    assert len(names) >= 2
    assert all(one.startswith(f"http://127.0.0.1:{seen.served.port}/") for one in names)
    assert seen.driver.execute_script("return document.referrer") == ""
    assert seen.driver.get_cookies() == []


def test_page_reports_a_restarted_server(bench: Bench, seen: Seen) -> None:
    port = seen.served.port
    seen.served.close()
    with dashboard.start(bench.store, port=port):
        seen.until(lambda: seen.one("#banner").is_displayed())
        assert "If it was restarted" in seen.text("#banner")
    assert seen.text("#link-text") == "rejected"


def test_page_reports_a_closed_store(bench: Bench, seen: Seen) -> None:
    bench.close()
    seen.until(lambda: seen.one("#banner").is_displayed())
    assert re.search("The store failed: .*closed", seen.text("#banner"))
    bench.open()
