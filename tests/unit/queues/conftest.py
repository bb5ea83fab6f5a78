"""A store with several index files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bench import NOW, SECOND, Bench
from tests.support.index_bench import CONFIG, KEYS


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Bench]:
    """Return a store with three and a half index files, of delivered and pending messages."""
    bench = Bench(tmp_path / "store", CONFIG)
    for n in range(100):
        due_ms = NOW + 40 * SECOND if n % 4 == 0 else None
        bench.store.put("t", b"%d" % n, keys=KEYS[n % 12], deliver_ms=due_ms)
    bench.turn()
    yield bench
    bench.close()
