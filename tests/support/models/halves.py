"""A model of half messages: each has one outcome, and is received only after its commit.

For each half message the model keeps the set of states that it may have. An answer keeps those that
fit it. A call without an answer, because the process died or an error was raised, adds the state
that it asked for.

    absent   its put was not stored
    half     neither committed nor rolled back: a timer, or due for its check
    in       committed: it is in its topic, or will be
    gone     rolled back

Invariants, checked by assertions:
    1. A message in the topic was committed, and comes once.
    2. A check comes at its time or later, and for a message that is half only.
    3. Before the check the handle ends the message; afterwards the receipt of the check does.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tests.support.turned_clock import TurnedClock
from timerstore import AckResult, PutReceipt, TimerStore

TOPIC = "halved"
QUEUE = (TOPIC, 0)
CHECKS = f"%HALF%{TOPIC}"
GROUP = "producers"

Call = Literal["commit", "rollback"]
_WANTED = {"commit": "in", "rollback": "gone"}


@dataclass
class _Half:
    body: bytes
    due_ms: int
    states: set[str]
    receipt: PutReceipt | None = None
    checks: list[str] = field(default_factory=list)  # receipts of its leases


class Halves:
    """The half messages of one store. They are synced, so no power cut takes one back."""

    def __init__(self, *, is_told: bool) -> None:
        """`is_told`: whether a second call finds the committed message; it needs the index, and
        that nothing is removed.
        """
        self._is_told = is_told
        self._halves: dict[bytes, _Half] = {}
        self.seen: list[bytes] = []  # bodies that came to the topic
        self.checked = 0  # the place after the last check that was leased

    @property
    def count(self) -> int:
        return len(self._halves)

    def put(
        self, store: TimerStore, clock: TurnedClock, body: bytes, after_ms: int,
        is_dead: Callable[[], bool],
    ) -> None:  # fmt: skip
        due_ms = clock.now_ms + after_ms
        one = self._halves[body] = _Half(body, due_ms, {"absent", "half"})
        one.receipt = store.put(TOPIC, body, flush="sync", check_after=after_ms / 1000)
        assert one.receipt.topic == CHECKS
        if not is_dead():
            one.states = {"half"}

    def end(
        self, store: TimerStore, clock: TurnedClock, call: Call, number: int, how: str,
        is_dead: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Commit or roll back a half message, by its handle or by the receipt of a check."""
        known = [one for one in self._halves.values() if one.receipt is not None]
        if how == "check":
            known = [one for one in known if one.checks]
        if not known:
            return
        one = known[number % len(known)]
        assert one.receipt is not None
        target = one.checks[number % len(one.checks)] if how == "check" else one.receipt.handle
        before = set(one.states)
        if "half" in before:
            one.states.add(_WANTED[call])  # if an error is raised
        answer = getattr(store, call)(target)
        if is_dead():
            return
        is_early = how != "check" and clock.latest_ms < one.due_ms
        assert before != {"half"} or not is_early or answer in ("COMMITTED", "ROLLED_BACK"), answer
        self._told(one, before, call, answer)

    def _told(self, one: _Half, before: set[str], call: Call, answer: AckResult) -> None:
        one.states = before
        if answer is AckResult.COMMITTED:
            assert "in" in before or (call == "commit" and "half" in before), (one, answer)
            one.states = {"in"}
        elif answer is AckResult.ROLLED_BACK:
            assert call == "rollback", (one, answer)
            assert "half" in before, (one, answer)
            one.states = {"gone"}
        elif self._is_told:
            assert before != {"in"}, f"committed, and told {answer}: {one}"
            one.states = before - {"in"}

    def check(
        self, store: TimerStore, clock: TurnedClock, count: int, lease_ms: int,
        is_dead: Callable[[], bool],
    ) -> list[str]:  # fmt: skip
        """Lease half messages for their check; return the receipts."""
        got = store.receive(
            CHECKS, GROUP, max_count=count, lease=lease_ms / 1000, max_attempts=None, backoff=0
        )
        for message in got:
            one = self._halves[message.body]
            assert "half" in one.states, f"checked, and has an outcome: {one}"
            assert clock.latest_ms >= one.due_ms, f"checked early: {one}"
            one.checks.append(message.receipt)
            if not is_dead():
                one.states = {"half"}
                self.checked = max(self.checked, message.queue_offset + 1)
        return [message.receipt for message in got]

    def look(self, store: TimerStore) -> None:
        """Read the messages of the topic."""
        if not store.topics().get(TOPIC):
            return
        while messages := store.pull(*QUEUE, len(self.seen), max_count=100).messages:
            for message in messages:
                assert message.queue_offset == len(self.seen), f"a gap before {message}"
                one = self._halves[message.body]
                assert message.body not in self.seen, f"came twice: {one}"
                assert "in" in one.states, f"came without a commit: {one}"
                one.states = {"in"}
                self.seen.append(message.body)

    def finish(self, store: TimerStore, clock: TurnedClock, settle: Callable[[], None]) -> None:
        """Commit each message whose check comes, and check that no other is left."""
        while receipts := self.check(store, clock, 100, 60_000, lambda: False):
            for receipt in receipts:
                answer = store.commit(receipt)
                assert answer is AckResult.COMMITTED, answer
            for one in self._halves.values():
                if one.checks and one.checks[-1] in receipts:
                    one.states = {"in"}
            settle()
        self.look(store)
        for one in self._halves.values():
            assert one.states != {"half"}, f"neither ended nor checked: {one}"
            assert one.states != {"in"} or one.body in self.seen, f"committed, and lost: {one}"
