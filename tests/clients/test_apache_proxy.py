"""The cases against Apache's proxy and broker: each difference is a row of the page."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.apache_proxy import ApacheProxy
from tests.clients.cases import CASES, Case, Facts
from tests.clients.conftest import need_fetched
from tests.clients.fetch import APACHE

pytestmark = [pytest.mark.more, pytest.mark.timeout(400)]

CLIENTS = ("java-5.2.0", "python", "node")
PAGE = Path(__file__).parents[2] / "timerstore/docs/rocketmq-clients.md"


def rows() -> list[list[str]]:
    """Return the rows of the page: a fact, the clients, the value here, and that of the proxy."""
    section = PAGE.read_text("utf-8").split("\n## Compared with Apache's proxy\n")[1]
    found = re.findall(r"^\| (?!fact|-)(.*) \|$", section.split("\n## ")[0], re.MULTILINE)
    return [row.split(" | ")[:4] for row in found]


def test_rows_are_of_facts() -> None:
    names = {name for case in CASES for name in case.facts}
    assert [row[0] for row in rows() if row[0] not in names] == []


@pytest.mark.parametrize("client", CLIENTS, indirect=True)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_difference_is_a_row_and_each_row_one(
    case: Case, client: str, tmp_path: Path, run_case: Callable[..., Facts]
) -> None:
    need_fetched(APACHE)
    here, there = case.expected(client), run_case(case, client, ApacheProxy(tmp_path))
    told = {name: (value, [value]) for name, value in here.items()}
    for name, clients, ours, theirs in rows():
        if name in here and (clients == "all" or client in clients.split(", ")):
            told[name] = ours, theirs.split(", or ")
            assert theirs != ours, f"the row of {name} is no difference"
    assert {name: ours for name, (ours, _) in told.items()} == here
    assert {name: value for name, value in there.items() if value not in told[name][1]} == {}
