"""Messages of message groups in topic t, leased in order by group g."""

from typing import Any

from tests.support.bench import Bench
from timerstore._engine.base.message_fields import queue_of_message_group
from timerstore._engine.leases import LeasedMessage

LEASE_S = 30


def queue_of(name: str) -> int:
    return int(queue_of_message_group(name, None, None))


def names_of_queue(queue_id: int, count: int) -> list[str]:
    """Return names of message groups that share a queue."""
    found = (name for name in map("n{}".format, range(10_000)) if queue_of(name) == queue_id)
    return [next(found) for _ in range(count)]


A, B, C = names_of_queue(3, 3)
OTHER = names_of_queue(4, 1)[0]


def put(bench: Bench, *names: str | None, **more: Any) -> None:
    """Put a message for each name of a message group; its body is the name and a number."""
    for k, name in enumerate(names):
        bench.store.put("t", f"{name}-{k}".encode(), message_group=name, **more)
    bench.turn()


def take(bench: Bench, count: int = 10, **more: Any) -> list[LeasedMessage]:
    given = {"lease": LEASE_S, "ordered": True, "backoff": 5, **more}
    return bench.store.receive("t", "g", max_count=count, **given)


def numbers(messages: list[LeasedMessage]) -> list[int]:
    return [int(one.body.decode().rpartition("-")[2]) for one in messages]
