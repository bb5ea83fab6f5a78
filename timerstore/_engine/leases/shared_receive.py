"""Make the `receive` calls of several callers as one: those with the same terms share a read.

    call 1: receive("mail", "sender")               ---+
    call 2: receive("mail", "sender", max_count=10) ---+---> one read of 11 messages
    call 3: receive("sms", "sender")                -------> one read of 1 message

Thread safety: any thread.
Invariants:
    1. Messages go to the calls in their order; each gets at most its `max_count`.
    2. A call without a message has waited for nothing yet. Its `waiting` begins after the read.
    3. An error goes to the calls that it concerns, and only if they got no message.
    4. After `PASS_BYTES_MAX` of bodies nothing more is read. Calls without a message are postponed:
       each makes a read of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from timerstore._engine.leases.lease_reader import (
    LeaseReader,
    TopicTurns,
    WaitingReceive,
)
from timerstore._engine.leases.leased_message import LeasedMessage
from timerstore._engine.leases.receive_request import COUNT_MAX, ReceiveRequest, ReceiveTerms

Source = LeaseReader | TopicTurns
PASS_BYTES_MAX = 16 << 20
"""Bytes of bodies after which the calls that are made together read no more."""


@dataclass(slots=True)
class BegunReceive:
    """What one call has so far: messages, or a wait if it waits for them."""

    source: Source
    terms: ReceiveTerms
    found: list[LeasedMessage] = field(default_factory=list)
    is_postponed: bool = False
    """Whether it has not read yet, and does so by its `waiting`, also if it does not wait."""
    waiting: WaitingReceive | None = None

    @property
    def missing(self) -> int:
        """How many more messages the call takes."""
        return self.terms.max_count - len(self.found)


Prepare = Callable[[ReceiveRequest], tuple[Source, ReceiveTerms]]
"""Checks a request."""
Take = Callable[[Source, ReceiveTerms], list[LeasedMessage]]
"""Leases messages, without a sync."""


def receive_together(
    requests: Sequence[ReceiveRequest], prepare: Prepare, take: Take
) -> list[BegunReceive | Exception]:
    """Lease messages for each request. Return what each has, or its error, in order."""
    answers: list[BegunReceive | Exception] = []
    alike: dict[tuple[Source, ReceiveTerms], list[int]] = {}  # indexes of calls
    for at, request in enumerate(requests):
        try:
            source, terms = prepare(request)
        except Exception as error:  # noqa: BLE001 - raised to this caller
            answers.append(error)
            continue
        answers.append(BegunReceive(source, terms))
        shared = terms._replace(max_count=0, wait_s=0.0)
        alike.setdefault((source, shared), []).append(at)
    left_bytes = PASS_BYTES_MAX
    for (source, shared), indexes in alike.items():
        calls = [one for at in indexes if isinstance(one := answers[at], BegunReceive)]
        failure = _fill(calls, partial(take, source), shared, left_bytes)
        left_bytes -= sum(_body_bytes(one.found) for one in calls)
        for at, one in zip(indexes, calls, strict=True):
            if failure is not None and not one.found:
                answers[at] = failure
    return answers


def _fill(
    calls: Sequence[BegunReceive],
    take: Callable[[ReceiveTerms], list[LeasedMessage]],
    shared: ReceiveTerms,
    left_bytes: int,
) -> Exception | None:
    """Read until each call has a message, or no more are there. Return the error, or None."""
    open_calls = list(calls)
    while open_calls:
        if left_bytes <= 0:
            for one in open_calls:
                one.is_postponed = True
            return None
        wanted = min(sum(one.missing for one in open_calls), COUNT_MAX)
        try:
            found = take(shared._replace(max_count=wanted))
        except Exception as error:  # noqa: BLE001 - raised to the callers
            return error
        if not found:
            return None
        left_bytes -= _body_bytes(found)
        for one in open_calls:
            count = one.missing
            one.found += found[:count]
            del found[:count]
        open_calls = [one for one in open_calls if not one.found]
    return None


def _body_bytes(messages: Sequence[LeasedMessage]) -> int:
    return sum(len(one.raw_body) for one in messages)
