"""Ingest in small chunks."""

import pytest

from tests.support.inside import INGEST_CHUNK_ROWS


@pytest.fixture
def chunks_of_five(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*INGEST_CHUNK_ROWS, 5)
