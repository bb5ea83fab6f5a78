"""A stepped store, a server of it, and clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bench import Bench
from tests.support.served_bench import ServedBench
from timerstore.net.remote_store import RemoteStore


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedBench]:
    one = ServedBench(Bench(tmp_path / "store"), tmp_path / "x.sock")
    yield one
    one.close()


@pytest.fixture
def remote(served: ServedBench) -> RemoteStore:
    return served.connect()
