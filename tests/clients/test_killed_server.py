"""kill -9 of the server while a client sends: nothing lost, nothing doubled, nothing early."""

import time
from pathlib import Path

import pytest

import timerstore
from tests.clients.client_driver import ClientDriver
from tests.clients.conftest import need_fetched
from tests.clients.served_store import ServedStore

pytestmark = [pytest.mark.more, pytest.mark.timeout(600)]

CLIENT = "java-5.2.0"
COUNT = 5000
SPREAD_MS = 1000


def test_sends_of_a_client_survive_kills_of_the_server(tmp_path: Path) -> None:
    need_fetched(CLIENT)
    served = ServedStore(tmp_path)
    served.start()
    driver = ClientDriver(CLIENT, served.address)
    begin_ms = int(time.time() * 1000)
    driver.begin("burst", topic="t", body="m", count=COUNT, delay_ms=5000, spread_ms=SPREAD_MS)
    for stored in (1000, 2500):
        end = time.monotonic() + 120
        while len(driver.stored) < stored:
            assert time.monotonic() < end, len(driver.stored)
            time.sleep(0.01)
        served.kill()
        served.start()
    reader = ClientDriver(CLIENT, served.address)
    driver.finish(300)
    acknowledged = set(driver.stored)
    assert len(acknowledged) == len(driver.stored) >= 2500
    end = time.monotonic() + 120
    while not reader.receive("t", "other"):
        assert time.monotonic() < end
    served.kill()
    for one in (driver, reader):
        one.kill()
    found = []
    with timerstore.open(served.path) as store:
        assert store.stats()["pending_messages"], "it was killed during the delivery"
        while store.stats()["pending_messages"]:
            time.sleep(0.1)
        while page := store.receive("t", "g", max_count=1000, wait=1):
            found += page
    bodies = [one.body.decode() for one in found]
    assert acknowledged - set(bodies) == set(), "lost"
    assert len(set(bodies)) == len(bodies), "doubled"
    assert [one for one in found if one.delivered_ms < one.due_ms] == []
    assert min(one.due_ms for one in found) >= begin_ms + 5000
