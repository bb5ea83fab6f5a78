"""Leases of topic t by group g, in a test."""

from typing import Any

from tests.support.bench import Bench
from timerstore._engine.leases import LeasedMessage

RETRY = "%RETRY%g|t"


DEAD = "%DLQ%g"


def put(bench: Bench, *bodies: bytes, **more: Any) -> None:
    for body in bodies:
        bench.store.put("t", body, **more)
    bench.turn()


def take(bench: Bench, count: int = 10, **more: Any) -> list[LeasedMessage]:
    return bench.store.receive("t", "g", max_count=count, **more)


def bodies(messages: list[LeasedMessage]) -> list[bytes]:
    return [one.body for one in messages]
