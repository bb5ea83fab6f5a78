"""Official clients use a store: each with each case."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.cases import CASES, Case, Facts
from tests.clients.served_store import ServedStore

pytestmark = [pytest.mark.more, pytest.mark.timeout(300)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_client_sees_what_is_promised(
    case: Case, client: str, tmp_path: Path, run_case: Callable[..., Facts]
) -> None:
    store = ServedStore(tmp_path)
    assert run_case(case, client, store) == case.expected(client)
    store.stop()
