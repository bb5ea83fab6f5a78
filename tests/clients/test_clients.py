"""Official clients use a store: each with each line of the table of the page."""

import queue
import time
from collections.abc import Callable

import pytest

import timerstore
from tests.clients.client_driver import ClientDriver, ClientError
from tests.clients.served_store import ServedStore
from tests.support.certificates import make_authority
from timerstore.rocketmq.known_clients import SILENT_S

pytestmark = [pytest.mark.more, pytest.mark.timeout(300)]

Start = Callable[..., ClientDriver]

WHOLE_SECONDS = {"python", "rust"}
"""Clients that send due times in seconds."""
WITHOUT_RECALL = {"java-5.0.7", "rust"}
WITHOUT_CHANGE = {"rust"}
WITHOUT_PUSH = {"rust"}
FIFO_TRIES = {"node": 1, "python": 3}
"""How often a message comes whose handler fails at attempt 1, and then is a dead letter. Node knows
no back-off with steps, and tries once. Python does not count the attempts that it makes itself, so
that all of the three fail."""
WITHOUT_TRANSACTIONS = {"node", "rust"}
"""Clients whose transactions are not tested."""
UNAUTHORIZED_WITHOUT_CODE = {"python", "node"}
"""Clients whose error of a route has no code of its cause."""
EARLY_MS_MAX = 2
"""How much a clock of a client, read in ms, may differ from the store's within one machine."""


def lacks(client: str, clients: set[str], what: str) -> None:
    if client in clients:
        pytest.skip(f"{client} has no {what}")


def test_delayed_messages_arrive_once_and_never_early(client: str, driver: Start) -> None:
    one = driver()
    due_ms = {}
    for k in range(100):
        delay_ms = 1500 + 10 * k
        due = int(time.time() * 1000) + delay_ms
        one.call("send", topic="orders", body=f"m{k}", delay_ms=delay_ms)
        due_ms[f"m{k}"] = due - EARLY_MS_MAX
    found: dict[str, int] = {}
    end = time.monotonic() + 60
    while len(found) < 100 and time.monotonic() < end:
        for message in one.receive("orders", "g"):
            assert message["body"] not in found
            found[message["body"]] = int(message["at_ms"])
            one.call("ack", n=message["n"])
    assert found.keys() == due_ms.keys()
    assert [body for body, at in found.items() if at < due_ms[body]] == []
    one.close()


def test_recall_and_second_recall(client: str, driver: Start) -> None:
    lacks(client, WITHOUT_RECALL, "recall")
    one = driver()
    sent = one.call("send", topic="orders", body="a", delay_ms=3000)
    one.call("recall", topic="orders", handle=sent["handle"])
    with pytest.raises(ClientError, match="ALREADY_CANCELLED") as found:
        one.call("recall", topic="orders", handle=sent["handle"])
    assert found.value.code == 40400
    one.call("send", topic="orders", body="b", delay_ms=3500)
    assert [message["body"] for message in one.receive("orders", "g", wait_ms=8000)] == ["b"]
    one.close()


def test_fields_of_a_message(client: str, driver: Start) -> None:
    one = driver()
    sent = one.call("send", topic="t", body="x", tag="a", keys="k1,k2", properties="p:1")
    one.call("send", topic="t", body="other", tag="b")
    [message] = one.receive("t", "g", tag="a")
    assert message["id"] == sent["id"]
    assert (message["tag"], message["properties"], message["attempt"]) == ("a", "p:1", "1")
    assert sorted(message["keys"].split(",")) == ["k1", "k2"]
    one.close()


def test_ack_and_second_ack(client: str, driver: Start) -> None:
    one = driver()
    one.call("send", topic="t", body="x")
    [message] = one.receive("t", "g")
    one.call("ack", n=message["n"])
    with pytest.raises(ClientError, match="SETTLED") as found:
        one.call("ack", n=message["n"])
    if client == "rust":  # its errors name the code
        assert "INVALID_RECEIPT_HANDLE" in found.value.text
    else:
        assert found.value.code == 40013
    one.close()


def test_changed_lease_is_acknowledged_by_the_new_receipt(client: str, driver: Start) -> None:
    lacks(client, WITHOUT_CHANGE, "change of the invisible duration")
    one = driver()
    one.call("send", topic="t", body="x")
    [message] = one.receive("t", "g", lease_ms=3000)
    one.call("change", n=message["n"], lease_ms=20_000)
    assert one.receive("t", "g", wait_ms=4000) == []
    one.call("ack", n=message["n"])
    one.close()


def ack_after_a_restart(driver: ClientDriver, message: dict[str, str]) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            driver.call("ack", n=message["n"])
            return
        except ClientError:  # the client connects again
            assert time.monotonic() < end
            time.sleep(0.2)


def test_receipt_is_valid_after_a_restart_of_the_server(
    client: str, driver: Start, served: ServedStore
) -> None:
    one = driver()
    one.call("send", topic="t", body="x")
    [message] = one.receive("t", "g", lease_ms=60_000)
    served.restart()
    ack_after_a_restart(one, message)
    served.stop()
    with timerstore.open(served.path) as store:
        assert store.backlog("t", "g").leased == 0
        assert store.backlog("t", "g").ready == 0


def test_transaction_is_committed_or_rolled_back(client: str, driver: Start) -> None:
    lacks(client, WITHOUT_TRANSACTIONS, "transactions here")
    one = driver()
    one.call("transact", topic="t", body="first", end="rollback")
    one.call("transact", topic="t", body="second", end="none")
    one.call("transact", topic="t", body="third", end="commit")
    [message] = one.receive("t", "g")
    assert message["body"] == "third"
    one.call("ack", n=message["n"])
    assert one.receive("t", "g", wait_ms=2000) == []
    one.close()


def test_transactions_of_a_dead_producer_are_checked_by_another(client: str, driver: Start) -> None:
    lacks(client, WITHOUT_TRANSACTIONS, "transactions here")
    dead, reader = driver(), driver()
    for body in ("keep", "drop"):
        dead.call("transact", topic="t", body=body, end="none")
    dead.kill()
    live = driver()
    live.call("check", topic="t")
    checked = [live.pushed.get(timeout=60)["body"] for _ in range(2)]
    assert sorted(checked) == ["drop", "keep"]
    assert [message["body"] for message in reader.receive("t", "g", wait_ms=5000)] == ["keep"]
    with pytest.raises(queue.Empty):  # no check comes again
        live.pushed.get(timeout=35)
    for one in (live, reader):
        one.close()


def test_push_consumer_gets_a_failed_message_again(
    client: str, driver: Start, served: ServedStore
) -> None:
    lacks(client, WITHOUT_PUSH, "push consumer")
    served.stop()
    served.groups("[default]\nbackoff_s = [1, 2]\n")
    served.start()
    one = driver()
    one.call("push", topic="t", group="g", failures=2)
    one.call("send", topic="t", body="x")
    found = [one.pushed.get(timeout=60) for _ in range(3)]
    assert [message["attempt"] for message in found] == ["1", "2", "3"]
    at_ms = [int(message["at_ms"]) for message in found]
    assert at_ms[1] - at_ms[0] >= 990
    assert at_ms[2] - at_ms[1] >= 1990
    with pytest.raises(queue.Empty):
        one.pushed.get(timeout=4)
    one.close()


def test_message_is_a_dead_letter_after_its_last_attempt(
    client: str, driver: Start, served: ServedStore
) -> None:
    lacks(client, WITHOUT_PUSH, "push consumer")
    served.stop()
    served.groups("[groups.g]\nbackoff_s = [1]\nmax_attempts = 2\n")
    served.start()
    one = driver()
    one.call("push", topic="t", group="g", failures=9)
    one.call("send", topic="t", body="x")
    assert [one.pushed.get(timeout=60)["attempt"] for _ in range(2)] == ["1", "2"]
    with pytest.raises(queue.Empty):
        one.pushed.get(timeout=4)
    one.close()
    served.stop()
    with timerstore.open(served.path) as store:
        assert [letter.body for letter in store.dead_letters("g")] == [b"x"]


def test_client_ends_soon_while_it_polls(client: str, driver: Start) -> None:
    lacks(client, WITHOUT_PUSH, "push consumer")
    one = driver()
    one.call("push", topic="t", group="g")
    one.call("send", topic="t", body="x")
    one.pushed.get(timeout=60)
    begin = time.monotonic()
    one.close()
    # Java and Node wait for their poll, of at most 20 s, before they say goodbye.
    assert time.monotonic() - begin < (10 if client == "python" else 40)


def test_fifo_messages_are_received_in_order(
    client: str, driver: Start, served: ServedStore
) -> None:
    lacks(client, {"rust"}, "driver for FIFO messages")
    served.stop()
    served.groups("[groups.g]\nfifo = true\n")
    served.start()
    one = driver()
    for k in range(3):
        for name in "ab":
            one.call("send", topic="t", body=f"{name}{k}", group=name)
    for k in range(3):
        found = {}
        while len(found) < 2:
            found |= {each["body"]: each["n"] for each in one.receive("t", "g", wait_ms=5000)}
        assert sorted(found) == [f"a{k}", f"b{k}"]
        assert one.receive("t", "g", wait_ms=1000) == []
        for n in found.values():
            one.call("ack", n=n)
    one.close()


def test_push_consumer_gets_fifo_messages_in_order(
    client: str, driver: Start, served: ServedStore
) -> None:
    lacks(client, {"rust"}, "push consumer")
    served.stop()
    served.groups("[groups.g]\nfifo = true\nbackoff_s = [1]\nmax_attempts = 3\n")
    served.start()
    one = driver()
    one.call("push", topic="t", group="g", failures=1)
    for k in range(3):
        one.call("send", topic="t", body=f"m{k}", group="a")
    tries = FIFO_TRIES.get(client, 2)
    found = [one.pushed.get(timeout=60)["body"] for _ in range(3 * tries)]
    assert found == [f"m{k}" for k in range(3) for _ in range(tries)]
    with pytest.raises(queue.Empty):
        one.pushed.get(timeout=2)
    one.close()
    served.stop()
    with timerstore.open(served.path) as store:
        letters = [letter.body for letter in store.dead_letters("g")]
        assert letters == ([b"m0", b"m1", b"m2"] if client in FIFO_TRIES else [])


def test_tls_and_keys(client: str, driver: Start, served: ServedStore,
                      monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    authority = make_authority(served.folder)
    keys = served.folder / "keys"
    keys.write_text("shop secret-of-the-shop\n")
    keys.chmod(0o600)
    served.stop()
    served.options += ["--tls-cert", served.folder / "cert.pem",
                       "--tls-key", served.folder / "key.pem", "--keys-file", keys]  # fmt: skip
    served.start()
    for name in ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, str(authority))
    wrong = driver(tls="1", key="shop", secret="another secret")
    with pytest.raises(ClientError) as found:
        wrong.call("send", topic="t", body="x")
    shown = "UNAUTHORIZED" if client == "rust" else "40100"  # its errors name the code
    assert client in UNAUTHORIZED_WITHOUT_CODE or shown in str(found.value)
    one = driver(tls="1", key="shop", secret="secret-of-the-shop")
    one.call("send", topic="t", body="x")
    [message] = one.receive("t", "g")
    one.call("ack", n=message["n"])
    one.close()


def test_client_ends_soon_after_a_restart_of_the_server(
    client: str, driver: Start, served: ServedStore
) -> None:
    one = driver()
    one.call("send", topic="t", body="x")
    [message] = one.receive("t", "g", lease_ms=60_000)
    served.restart()
    ack_after_a_restart(one, message)
    one.begin("close")  # the client for Java opens its streams again, and waits for their end
    one.finish(SILENT_S * 2)


def test_message_of_a_slow_handler_comes_once(client: str, driver: Start) -> None:
    lacks(client, WITHOUT_PUSH, "push consumer")
    one = driver()
    one.call("push", topic="t", group="g", handling_ms=90_000)
    one.call("send", topic="t", body="x")
    one.pushed.get(timeout=60)
    with pytest.raises(queue.Empty):
        one.pushed.get(timeout=95)
    one.close()
