"""The Python examples of the README and the guides run unchanged on a connected store."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.aio
import timerstore.net
from tests.support import snippets
from tests.support.snippets import GUIDES, ROOT, Section

PAGES = [ROOT / "README.md", GUIDES / "guide.md", GUIDES / "features.md", GUIDES / "quick-start.md"]
OWN = {
    "guide.md 9. Test code that waits for days": "it sets the clock of the store",
}
"""Sections that need the process of the store, with reasons."""

_open, _open_async = timerstore.open, timerstore.aio.open


def _uses_a_store(section: Section) -> bool:
    texts = [one.text for one in section.snippets if one.kind == "python"]
    return snippets.stands_alone(section) and any(".open(" in one for one in texts)


SECTIONS = [
    one
    for page in PAGES
    for one in snippets.sections(page)
    if _uses_a_store(one) and f"{one.page} {one.name}" not in OWN
]


class Connected:
    """Opens a store, serves it, and returns a client; all are closed with the client."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.undo = ExitStack()
        self._count = 0

    def _serve(self, path: Any, config: Any) -> str:
        self._count += 1
        store = self.undo.enter_context(_open(path, config))
        server = timerstore.net.serve(store, socket=self._folder / f"{self._count}.sock")
        self.undo.enter_context(server)
        return server.urls[0]

    def open(self, path: Any, config: Any = None, **options: Any) -> Any:
        if options:
            return _open(path, config, **options)
        self.undo.close()  # the example has closed the client before
        return self.undo.enter_context(timerstore.connect(self._serve(path, config)))

    def open_async(self, path: Any, config: Any = None) -> Any:
        self.undo.close()
        return timerstore.aio.connect(self._serve(path, config))


@pytest.fixture
def connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connected]:
    one = Connected(tmp_path)
    monkeypatch.setattr(timerstore, "open", one.open)
    monkeypatch.setattr(timerstore.aio, "open", one.open_async)
    yield one
    one.undo.close()


@pytest.mark.parametrize("section", SECTIONS, ids=lambda one: f"{one.page} {one.name}")
@pytest.mark.usefixtures("connected")
def test_section_runs_on_a_connected_store(section: Section, shell: dict[str, str]) -> None:
    python = [one for one in section.snippets if one.kind in ("python", "text")]
    assert snippets.run(section._replace(snippets=python), shell)


def test_excluded_sections_exist() -> None:
    known = {f"{one.page} {one.name}" for page in PAGES for one in snippets.sections(page)}
    assert OWN.keys() <= known
