"""Fixtures: a server for all tests of a worker, and an empty prefix for each test."""

import uuid
from collections.abc import Iterator

import pytest

from tests.support.bucket import s3_server
from tests.support.bucket.fault_proxy import FaultProxy


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A running server."""
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    with s3_server.running() as endpoint:
        yield endpoint


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[FaultProxy]:
    """A proxy before the server."""
    with FaultProxy(s3_endpoint) as one:
        yield one


@pytest.fixture
def prefix(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty prefix; the environment names the server."""
    for name, value in s3_server.environment(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_server.BUCKET}/{uuid.uuid4().hex}/orders"
