"""Puts that take each other's place, beside their model: of a key the newest alone waits.

A round begins with a put that finds nothing waiting, and ends when its message is handed out, or
cancelled. Each put of a round takes the place of the one before it; it is due at the lesser of its
own time and the round's limit: the first put of the round, and the shortest wait that was given
since.

Holds:    of each key at most one waits, and that is the newest that is there; it waits unless it
          was handed out, or cancelled by somebody else.
Fails:    AssertionError where the store says otherwise.
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
    replaced: bytes | None = None  # whose place it took, or may have taken


def step_of(body: bytes, before: Step | None, now_ms: int, wait_ms: int | None) -> Step:
    """What a put begins, or goes on with where it takes the place of one before."""
    first_ms = now_ms if before is None else before.first_ms
    limits = [] if before is None or before.limit_ms is None else [before.limit_ms]
    if wait_ms is not None:
        limits.append(first_ms + wait_ms)
    replaced = None if before is None else before.body
    return Step(body, first_ms, min(limits, default=None), replaced)


def due_of(step: Step, asked_ms: int, now_ms: int) -> int:
    """When it is due."""
    limit_ms = asked_ms if step.limit_ms is None else step.limit_ms
    return max(now_ms, min(asked_ms, limit_ms))


class Rounds:
    """Of all keys: every put that may count, in order."""

    def __init__(self) -> None:
        self._steps: dict[Key, list[Step]] = {}

    def last(self, key: Key, model: Model) -> tuple[Step, Put] | None:
        """The newest put that is there."""
        for step in reversed(self._steps.get(key, [])):
            if step.body in model.puts:
                return step, model.puts[step.body]
        return None

    def add(self, key: Key, step: Step) -> None:
        """It was put, or may have been."""
        self._steps.setdefault(key, []).append(step)

    def links(self) -> Iterator[Step]:
        """Puts that took another's place, in order."""
        for steps in self._steps.values():
            yield from (step for step in steps if step.replaced is not None)

    def check(self, model: Model, waiting: Iterable[str], surely: set[bytes]) -> None:
        """`waiting`: message ids; `surely`: bodies of what must wait, if nobody took its place."""
        ids = set(waiting)
        for key, steps in self._steps.items():
            there = [model.puts[step.body] for step in steps if step.body in model.puts]
            found = [one for one in there if one.receipt.message_id in ids]
            assert len(found) <= 1, f"of {key} more than one waits: {found}"
            assert not found or found[0] is there[-1], f"of {key} an older one waits: {found}"
            if there and there[-1].body in surely:
                assert found, f"of {key} none waits: {there}"
