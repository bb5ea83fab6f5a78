"""A model of puts that replace each other: of each key only the newest message is pending.

A round begins with a put that finds no pending message of its key. It ends when its message is
delivered or cancelled. Each put of a round replaces the previous one. Its due time is the lesser of
its own time and the round's limit, which is the time of the round's first put plus the shortest
maximum wait given since.

Invariants, checked by assertions: each key has at most one pending message, and it is the newest
    one of the key. It is pending unless it was delivered or cancelled by another call.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.support.models.messages import Model, Put

Key = tuple[str, str]
"""Topic and key."""


class Step(NamedTuple):
    """One put of a round."""

    body: bytes
    first_ms: int
    limit_ms: int | None
    replaced: bytes | None = None  # the body that it replaced, or may have replaced


def step_of(body: bytes, before: Step | None, now_ms: int, wait_ms: int | None) -> Step:
    """Return the step of a put, which begins a round or replaces the message of one."""
    first_ms = now_ms if before is None else before.first_ms
    limits = [] if before is None or before.limit_ms is None else [before.limit_ms]
    if wait_ms is not None:
        limits.append(first_ms + wait_ms)
    replaced = None if before is None else before.body
    return Step(body, first_ms, min(limits, default=None), replaced)


def due_of(step: Step, asked_ms: int, now_ms: int) -> int:
    """Return the due time of a step."""
    limit_ms = asked_ms if step.limit_ms is None else step.limit_ms
    return max(now_ms, min(asked_ms, limit_ms))


class Rounds:
    """The puts that may count, in order, for all keys."""

    def __init__(self) -> None:
        self._steps: dict[Key, list[Step]] = {}

    def last(self, key: Key, model: Model) -> tuple[Step, Put] | None:
        """Return the newest put that exists."""
        for step in reversed(self._steps.get(key, [])):
            if step.body in model.puts:
                return step, model.puts[step.body]
        return None

    def add(self, key: Key, step: Step) -> None:
        """Record a put that returned, or was in flight."""
        self._steps.setdefault(key, []).append(step)

    def links(self) -> Iterator[Step]:
        """Yield the puts that replaced another, in order."""
        for steps in self._steps.values():
            yield from (step for step in steps if step.replaced is not None)

    def check(self, model: Model, waiting: Iterable[str], surely: set[bytes]) -> None:
        """Check message ids in `waiting`; bodies in `surely` are pending unless replaced."""
        ids = set(waiting)
        for key, steps in self._steps.items():
            there = [model.puts[step.body] for step in steps if step.body in model.puts]
            found = [one for one in there if one.receipt.message_id in ids]
            assert len(found) <= 1, f"of {key} more than one waits: {found}"
            assert not found or found[0] is there[-1], f"of {key} an older one waits: {found}"
            if there and there[-1].body in surely:
                assert found, f"of {key} none waits: {there}"
