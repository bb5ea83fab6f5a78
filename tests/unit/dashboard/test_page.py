"""The page's files: nothing from outside, nothing inline, text that can be read."""

import re
import tomllib
from fnmatch import fnmatch
from importlib import resources
from pathlib import Path

import pytest

from tests.support.paged import BEARER, TOKEN, Paged

_PAGE = resources.files("timerstore.dashboard").joinpath("page")
HTML, CSS, JS = (_PAGE.joinpath(name).read_text() for name in ("index.html", "page.css", "page.js"))


def test_page_has_no_external_addresses() -> None:
    for text in (HTML, CSS, JS):
        found = set(re.findall(r"(?:https?:)?//[a-z0-9.]+\.[a-z]+[^\s'\"`)]*", text))
        assert {one.split("//")[1] for one in found} <= {"www.w3.org/2000/svg"}
        assert "@import" not in text


def test_page_has_no_inline_script_or_style() -> None:
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=", HTML)
    assert re.findall(r"<script([^>]*)>", HTML) == [' type="module" src="page.js?token={token}"']
    for sink in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert sink not in JS


def test_page_links_have_the_token(paged: Paged) -> None:
    told = paged.client.get("/", headers=BEARER).text
    links = re.findall(r'(?:href|src)="([^"]*)"', told)
    own = [one for one in links if not one.startswith("data:")]
    assert own == [f"page.css?token={TOKEN}", f"page.js?token={TOKEN}"]
    assert "{token}" not in told


def test_page_has_all_ids_of_the_script() -> None:
    ids = set(re.findall(r'\bid="([a-z0-9-]+)"', HTML))
    assert set(re.findall(r'\$\("([a-z0-9-]+)"\)', JS)) <= ids
    assert set(re.findall(r'\bsay\("([a-z0-9-]+)"', JS)) <= ids
    assert set(re.findall(r'\bfor="([a-z0-9-]+)"|labelledby="([a-z0-9-]+)"', HTML)) is not None


# --- contrast -------------------------------------------------------------------------------------

_BLOCKS = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
_SCHEMES = [dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", block)) for block in _BLOCKS]


def _light(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_light(one), _light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", _SCHEMES, ids=["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"),
    [
        *((text, ground) for text in ("text", "quiet") for ground in ("card", "ground")),
        *((text, "card") for text in ("accent", "good", "warn", "bad")),
        *(("accent", "accent-ground"), ("warn", "warn-ground"), ("bad", "bad-ground")),
        ("warn", "ground"),
        ("text", "h0"),
        ("card", "bad"),
    ],
)
def test_text_contrast_is_sufficient(scheme: dict[str, str], text: str, ground: str) -> None:
    assert _contrast(scheme[text], scheme[ground]) >= 4.5


@pytest.mark.parametrize("scheme", _SCHEMES, ids=["light", "dark"])
def test_ring_colours_are_monotonic(scheme: dict[str, str]) -> None:
    steps = [_contrast(scheme[f"h{k}"], scheme["card"]) for k in range(6)]
    assert steps == sorted(steps)
    assert steps[-1] >= 4.5
    assert _contrast(scheme["now"], scheme["card"]) >= 3


def test_wheel_and_sdist_contain_the_page() -> None:
    told = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    [pattern] = told["tool"]["setuptools"]["package-data"]["timerstore.dashboard"]
    names = {f"page/{one.name}" for one in _PAGE.iterdir()}
    assert names == {"page/index.html", "page/page.css", "page/page.js"}
    assert all(fnmatch(name, pattern) for name in names)
