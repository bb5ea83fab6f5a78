"""Programs with an official client, for any server of the protocol.

A case returns facts, which are short texts by name, and has the facts that a client must see at a
server of timerstore. A topic is named after the type of its messages, as Apache's broker takes one.
"""

import queue
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from tests.clients.client_driver import ClientDriver, ClientError
from timerstore.rocketmq.known_clients import SILENT_S

Facts = Mapping[str, str]


class Server(Protocol):
    """A server that a case may set up and restart."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def groups(self, text: str) -> None: ...
    def secure(self, key: str, secret: str) -> Path: ...


@dataclass
class Run:
    """A run of a case: a client, its server, and a function that starts a program.

    The first program starts the server, so that a case can set it up before.
    """

    client: str
    server: Server
    start: Callable[..., ClientDriver]


@dataclass(frozen=True)
class Case:
    """A case, its facts at our server, and the clients that cannot run it."""

    name: str
    run: Callable[[Run], Facts]
    facts: Facts
    lacking: AbstractSet[str] = frozenset()
    differing: Mapping[str, Facts] = field(default_factory=dict)
    """Facts of single clients."""

    def expected(self, client: str) -> Facts:
        """Return the facts that a client must see at our server."""
        return {**self.facts, **self.differing.get(client, {})}


CASES: list[Case] = []

WITHOUT_RECALL = {"java-5.0.7", "rust"}
RUST = {"rust"}
"""It has no change of a lease, no push consumer, and no driver for FIFO messages."""
WITHOUT_TRANSACTIONS = {"rust"}
"""Clients whose transactions are not tested."""
EARLY_MS_MAX = 2
"""How much a clock of a client, read in ms, may differ from the store's within one machine."""
LEASE_MS = 20_000
NOTHING = "nothing"
_NAMED = {"INVALID_RECEIPT_HANDLE": "40013", "UNAUTHORIZED": "40100"}
"""Codes that the client for Rust names."""


def case(
    facts: Facts, lacking: AbstractSet[str] = frozenset(), **differing: Facts
) -> Callable[[Callable[[Run], Facts]], Callable[[Run], Facts]]:
    """Add a case."""

    def add(run: Callable[[Run], Facts]) -> Callable[[Run], Facts]:
        CASES.append(Case(run.__name__, run, facts, lacking, differing))
        return run

    return add


def outcome(driver: ClientDriver, verb: str, **given: object) -> str:
    """Make a call; return "accepted", or the code of the error and its reason."""
    try:
        driver.call(verb, **given)
    except ClientError as error:
        named = [code for name, code in _NAMED.items() if name in error.text]
        code = named[0] if named else str(error.code)
        reason = re.search(r"\b(ALREADY_CANCELLED|SETTLED)\b", error.text)
        return f"{code} {reason[0]}" if reason else code
    return "accepted"


def bodies(messages: list[dict[str, str]]) -> str:
    return " ".join(sorted(one["body"] for one in messages)) or NOTHING


def pushed(driver: ClientDriver, count: int, name: str, last_s: float) -> str:
    """Return a field of messages that were pushed, and of one that comes within `last_s` later."""
    found = []
    for k in range(count + 1):
        try:
            found.append(driver.pushed.get(timeout=last_s if k == count else 60)[name])
        except queue.Empty:
            break
    return " ".join(found) or NOTHING


def dead_letters(run: Run, wait_s: float = 15) -> str:
    """Return the bodies in the dead-letter topic, which a broker makes with some delay."""
    end = time.monotonic() + wait_s
    found = NOTHING
    while found == NOTHING and time.monotonic() < end:
        try:
            found = bodies(run.start().receive("%DLQ%g", "undertaker"))
        except ClientError as error:
            # Apache's proxy fails if a receive overtakes the settings of its client.
            if "route" not in error.text and '"settings" is null' not in error.text:
                raise
            time.sleep(1)
    return found


@case({"delayed messages": "100 of 100", "twice": NOTHING, "early": NOTHING})
def delayed(run: Run) -> Facts:
    one = run.start()
    due_ms = {}
    for k in range(100):
        delay_ms = 1500 + 10 * k
        due_ms[f"m{k}"] = int(time.time() * 1000) + delay_ms - EARLY_MS_MAX
        one.call("send", topic="delay", body=f"m{k}", delay_ms=delay_ms)
    found: Counter[str] = Counter()
    early = False
    end = time.monotonic() + 60
    while found.keys() != due_ms.keys() and time.monotonic() < end:
        for message in one.receive("delay", "g"):
            found[message["body"]] += 1
            early = early or int(message["at_ms"]) < due_ms[message["body"]]
            one.call("ack", n=message["n"])
    one.close()
    return {
        "delayed messages": f"{len(found)} of 100",
        "twice": " ".join(body for body, count in found.items() if count > 1) or NOTHING,
        "early": "some" if early else NOTHING,
    }


@case(
    {"recall": "accepted", "second recall": "40400 ALREADY_CANCELLED", "not recalled": "b"},
    WITHOUT_RECALL,
)
def recalled(run: Run) -> Facts:
    one = run.start()
    sent = one.call("send", topic="delay", body="a", delay_ms=3000)
    call = {"topic": "delay", "handle": sent["handle"]}
    recalls = [outcome(one, "recall", **call) for _ in range(2)]
    one.call("send", topic="delay", body="b", delay_ms=3500)
    found = bodies(one.receive("delay", "g", wait_ms=8000))
    one.close()
    return {"recall": recalls[0], "second recall": recalls[1], "not recalled": found}


@case({"fields": "a p:1 k1 k2 1", "message id": "as sent", "other tag": NOTHING})
def fields(run: Run) -> Facts:
    one = run.start()
    sent = one.call("send", topic="normal", body="x", tag="a", keys="k1,k2", properties="p:1")
    one.call("send", topic="normal", body="other", tag="b")
    [message, *others] = one.receive("normal", "g", tag="a")
    one.close()
    shown = [message["tag"], message["properties"], *sorted(message["keys"].split(",")),
             message["attempt"]]  # fmt: skip
    return {
        "fields": " ".join(shown),
        "message id": "as sent" if message["id"] == sent["id"] else message["id"],
        "other tag": bodies(others),
    }


@case({"ack": "accepted", "second ack": "40013 SETTLED"})
def acknowledged(run: Run) -> Facts:
    one = run.start()
    one.call("send", topic="normal", body="x")
    [message] = one.receive("normal", "g")
    acks = [outcome(one, "ack", n=message["n"]) for _ in range(2)]
    one.close()
    return {"ack": acks[0], "second ack": acks[1]}


@case(
    {"lease of 3 s": "accepted", "during a changed lease": NOTHING, "ack after change": "accepted"},
    RUST,
)
def lease_changed(run: Run) -> Facts:
    one = run.start()
    one.call("send", topic="normal", body="x")
    lease_ms = 3000
    terms = {"topic": "normal", "group": "g", "count": 1, "wait_ms": 5000}
    taken = outcome(one, "receive", lease_ms=lease_ms, **terms)
    if taken != "accepted":
        lease_ms = 10_000
        one.call("receive", lease_ms=lease_ms, **terms)
    one.call("change", n=0, lease_ms=LEASE_MS)
    found = bodies(one.receive("normal", "g", wait_ms=lease_ms + 1000))
    acked = outcome(one, "ack", n=0)
    one.close()
    return {"lease of 3 s": taken, "during a changed lease": found, "ack after change": acked}


def ack_after_a_restart(driver: ClientDriver, n: str) -> str:
    """Repeat an ack until the client has connected again."""
    end = time.monotonic() + 30
    while (found := outcome(driver, "ack", n=n)) != "accepted" and time.monotonic() < end:
        time.sleep(0.2)
    return found


@case(
    {"ack after restart": "accepted", "after that ack": NOTHING, "close after restart": "in time"}
)
def restarted(run: Run) -> Facts:
    one = run.start()
    one.call("send", topic="normal", body="x")
    lease_ms = 60_000  # a broker needs half a minute for a restart
    ends = time.monotonic() + lease_ms / 1000
    [message] = one.receive("normal", "g", lease_ms=lease_ms)
    run.server.stop()
    run.server.start()
    acked = ack_after_a_restart(one, message["n"])
    one.begin("close")  # the client for Java opens its streams again, and waits for their end
    try:
        one.finish(SILENT_S * 2)
        closed = "in time"
    except queue.Empty:
        closed = "late"
    time.sleep(max(0, ends - time.monotonic()))
    found = bodies(run.start().receive("normal", "g"))
    return {"ack after restart": acked, "after that ack": found, "close after restart": closed}


@case({"committed": "third", "not committed": NOTHING}, WITHOUT_TRANSACTIONS)
def transactions(run: Run) -> Facts:
    one = run.start()
    for body, end in (("first", "rollback"), ("second", "none"), ("third", "commit")):
        one.call("transact", topic="transaction", body=body, end=end)
    found = one.receive("transaction", "g")
    for message in found:
        one.call("ack", n=message["n"])
    rest = one.receive("transaction", "g", wait_ms=3000)
    one.close()
    return {"committed": bodies(found), "not committed": bodies(rest)}


@case(
    {"checked": "drop keep", "committed by check": "keep", "checked again": NOTHING},
    WITHOUT_TRANSACTIONS,
)
def orphaned_transactions(run: Run) -> Facts:
    dead, reader = run.start(), run.start()
    for body in ("keep", "drop"):
        dead.call("transact", topic="transaction", body=body, end="none")
    dead.kill()
    live = run.start()
    live.call("check", topic="transaction")
    checked = bodies([live.pushed.get(timeout=90) for _ in range(2)])
    found = bodies(reader.receive("transaction", "g", wait_ms=5000))
    again = pushed(live, 0, "body", 35)
    for one in (live, reader):
        one.close()
    return {"checked": checked, "committed by check": found, "checked again": again}


@case({"attempts": "1 2 3", "back-off": "1 s, 2 s"}, RUST)
def failed(run: Run) -> Facts:
    run.server.groups("[default]\nbackoff_s = [1, 2]\n")
    one = run.start()
    one.call("push", topic="normal", group="g", failures=2)
    one.call("send", topic="normal", body="x")
    found = [one.pushed.get(timeout=60) for _ in range(3)]
    again = pushed(one, 0, "attempt", 4)
    one.close()
    at_ms = [int(message["at_ms"]) for message in found]
    waits = [later - before for before, later in pairwise(at_ms)]
    attempts = [message["attempt"] for message in found] + ([again] if again != NOTHING else [])
    as_said = waits[0] >= 990 and waits[1] >= 1990
    return {"attempts": " ".join(attempts), "back-off": "1 s, 2 s" if as_said else f"{waits} ms"}


@case({"last attempts": "1 2", "dead letters": "x"}, RUST)
def dead_letter(run: Run) -> Facts:
    run.server.groups("[groups.g]\nbackoff_s = [1]\nmax_attempts = 2\n")
    one = run.start()
    one.call("push", topic="normal", group="g", failures=9)
    one.call("send", topic="normal", body="x")
    attempts = pushed(one, 2, "attempt", 4)
    found = dead_letters(run, 60)  # a broker moves it when it would deliver it next
    return {"last attempts": attempts, "dead letters": found}


@case({"close while polling": "in time"}, RUST)
def closed(run: Run) -> Facts:
    one = run.start()
    one.call("push", topic="normal", group="g")
    one.call("send", topic="normal", body="x")
    one.pushed.get(timeout=60)
    begin = time.monotonic()
    one.close()
    # Java and Node wait for their poll, of at most 20 s, before they say goodbye.
    most_s = 10 if run.client == "python" else 40
    return {"close while polling": "in time" if time.monotonic() - begin < most_s else "late"}


@case(
    {"FIFO order": "kept", "of a message group at once": "1", "while one is leased": NOTHING}, RUST
)
def fifo(run: Run) -> Facts:
    run.server.groups("[groups.g]\nfifo = true\n")
    one = run.start()
    for k in range(3):
        for name in "ab":
            one.call("send", topic="fifo", body=f"{name}{k}", group=name)
    seen: list[str] = []
    most = 0
    meanwhile = []
    while len(seen) < 6:
        found = {}
        while len({body[0] for body in found}) < 2:
            found |= {each["body"]: each["n"] for each in one.receive("fifo", "g")}
        most = max(most, *Counter(body[0] for body in found).values())
        meanwhile += one.receive("fifo", "g", wait_ms=3000)
        for n in found.values():
            one.call("ack", n=n)
        seen += found
    one.close()
    is_kept = all([body for body in seen if body[0] == name] == [f"{name}{k}" for k in range(3)]
                  for name in "ab")  # fmt: skip
    return {
        "FIFO order": "kept" if is_kept else " ".join(seen),
        "of a message group at once": str(most),
        "while one is leased": bodies(meanwhile),
    }


@case(
    {"pushed in order": "m0 m0 m1 m1 m2 m2", "FIFO dead letters": NOTHING},
    RUST,
    # Node knows no back-off with steps, and tries once. Python does not count its own attempts.
    node={"pushed in order": "m0 m1 m2", "FIFO dead letters": "m0 m1 m2"},
    python={"pushed in order": "m0 m0 m0 m1 m1 m1 m2 m2 m2", "FIFO dead letters": "m0 m1 m2"},
)
def fifo_pushed(run: Run) -> Facts:
    run.server.groups("[groups.g]\nfifo = true\nbackoff_s = [1]\nmax_attempts = 3\n")
    one = run.start()
    one.call("push", topic="fifo", group="g", failures=1)
    for k in range(3):
        one.call("send", topic="fifo", body=f"m{k}", group="a")
    tries = {"node": 1, "python": 3}.get(run.client, 2)
    order = pushed(one, 3 * tries, "body", 2)
    one.close()
    return {"pushed in order": order, "FIFO dead letters": dead_letters(run)}


@case(
    {"wrong secret": "40100", "right secret": "x"},
    # Their error of a route has no code.
    node={"wrong secret": "0"},
    python={"wrong secret": "0"},
)
def secured(run: Run) -> Facts:
    authority = run.server.secure("shop", "secret-of-the-shop")
    wrong = run.start(authority, tls="1", key="shop", secret="another secret")
    refused = outcome(wrong, "send", topic="normal", body="x")
    one = run.start(authority, tls="1", key="shop", secret="secret-of-the-shop")
    one.call("send", topic="normal", body="x")
    found = one.receive("normal", "g")
    for message in found:
        one.call("ack", n=message["n"])
    one.close()
    return {"wrong secret": refused, "right secret": bodies(found)}


@case({"pushed to a handler of 90 s": "x"}, RUST)
def slow_handler(run: Run) -> Facts:
    one = run.start()
    one.call("push", topic="normal", group="g", handling_ms=90_000)
    one.call("send", topic="normal", body="x")
    return {"pushed to a handler of 90 s": pushed(one, 1, "body", 130)}
