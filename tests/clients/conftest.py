"""The tests with official clients run after `make test-clients` has fetched them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.client_driver import ClientDriver
from tests.clients.fetch import CLIENTS, is_fetched
from tests.clients.served_store import ServedStore


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    """Return the name of a client that was fetched."""
    name = str(request.param)
    if not is_fetched(name):
        (pytest.fail if os.environ.get("INTEROP") == "required" else pytest.skip)(
            f"NOT RUN: the client {name} is not here; make test-clients fetches it"
        )
    return name


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStore]:
    one = ServedStore(tmp_path)
    one.start()
    yield one
    one.stop()


@pytest.fixture
def driver(client: str, served: ServedStore) -> Iterator[Callable[..., ClientDriver]]:
    """Return a function that starts a program of the client."""
    made: list[ClientDriver] = []

    def start(**configured: Any) -> ClientDriver:
        made.append(ClientDriver(client, served.address, **configured))
        return made[-1]

    yield start
    for one in made:
        one.kill()
