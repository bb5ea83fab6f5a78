"""kombu's integration tests, from its source distribution, with `timerstore://`.

`make test-frameworks` fetches the distribution and names its folder in KOMBU_SOURCE.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import kombu
import pytest

import timerstore
import timerstore.contrib.celery
import timerstore.net

SOURCE = os.environ.get("KOMBU_SOURCE", "")
if not SOURCE:
    pytest.skip("KOMBU_SOURCE is not set: make test-frameworks", allow_module_level=True)
sys.path.insert(0, SOURCE)

from t.integration import common  # noqa: E402

pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("kombu")
    place = folder / "x.sock"
    with timerstore.open(folder / "s") as store, timerstore.net.serve(store, socket=place):
        yield f"timerstore://{place}"


@pytest.fixture
def connection(url: str) -> kombu.Connection:
    return kombu.Connection(url)


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    return kombu.Connection("timerstore:///nowhere/x.sock")


@pytest.fixture
def failover_connection(url: str) -> kombu.Connection:
    return kombu.Connection(f"timerstore:///nowhere/x.sock;{url}", connect_timeout=10)


class TestBasicFunctionality(common.BasicFunctionality): ...


class TestExchangeTypes(common.BaseExchangeTypes): ...


class TestPriority(common.BasePriority): ...


class TestMessage(common.BaseMessage): ...


class TestFailover(common.BaseFailover): ...


class TestEventLoop(common.BaseEventLoop): ...
