"""A project with a backend on a store whose clock is set by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.django_bench import DjangoBench


@pytest.fixture
def project(tmp_path: Path) -> "Iterator[DjangoBench]":
    from tests.support.django_bench import DjangoBench

    bench = DjangoBench(tmp_path)
    with bench.configured():
        yield bench
    bench.close()
