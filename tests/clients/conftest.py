"""The tests with official clients run after `make test-clients` has fetched them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.apache_proxy import ApacheProxy
from tests.clients.cases import Case, Facts, Run
from tests.clients.client_driver import ClientDriver
from tests.clients.fetch import CLIENTS, is_fetched
from tests.clients.served_store import ServedStore


def need_fetched(name: str) -> None:
    if not is_fetched(name):
        (pytest.fail if os.environ.get("INTEROP") == "required" else pytest.skip)(
            f"NOT RUN: {name} is not here; make test-clients fetches it"
        )


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    """Return the name of a client that was fetched."""
    name = str(request.param)
    need_fetched(name)
    return name


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStore]:
    one = ServedStore(tmp_path)
    one.start()
    yield one
    one.stop()


@pytest.fixture
def run_case() -> Iterator[Callable[[Case, str, ServedStore | ApacheProxy], Facts]]:
    """Return a function that runs a case at a server that was not started."""
    made: list[ClientDriver | ServedStore | ApacheProxy] = []

    def run(case: Case, client: str, server: ServedStore | ApacheProxy) -> Facts:
        def start(*given: Path, **configured: str) -> ClientDriver:
            if not made:
                made.append(server)
                server.start()
            one = ClientDriver(client, server.address, *given, **configured)
            made.append(one)
            return one

        if client in case.lacking:
            pytest.skip(f"{client} lacks what {case.name} needs")
        return case.run(Run(client, server, start))

    yield run
    for one in made:
        one.kill()
