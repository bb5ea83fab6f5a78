"""A model of a group that leases messages.

For each message the model keeps the set of states that its lease may have. The result of a call
keeps the states that fit it, and gives one new state. A call without a result, because the process
died or an error was raised, adds the new state to the earlier ones. If no state fits, the store is
wrong and an assertion fails.

    received   attempt + 1, owned by its receipt until the lease expires; it is not delivered again
               before that unless it is given back
    acked      done: it is never delivered again
    nacked     without owner; delivered again after the delay
    given back without owner, as before it was received: the attempt does not count
    buried     without owner; it becomes a dead letter and is not delivered again
    requeued   from a dead letter: as if it had never been received
    extended   owned by the new receipt, until later
    renewed    owned by the same receipt, until later
    cut        with flush="async" a power cut reverts the last calls: earlier states are possible
               again

Invariants: at the end each message of the topic is acked or a dead letter, and never both.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.support.inside import inside
from tests.support.models.messages import Queue
from tests.support.turned_clock import TurnedClock
from timerstore import AckResult, DeadLetter, LeasedMessage, LeaseLostError, TimerStore
from timerstore._engine.format.lease import group_of, retry_topic
from timerstore.errors import FlowControlError

GROUP = "lessees"
ATTEMPTS_MAX = 4
BACKOFF_S = (0.5, 3)
DEAD = f"%DLQ%{GROUP}"

Seen = dict[Queue, list[tuple[bytes, int]]]
IsDead = Callable[[], bool]


class State(NamedTuple):
    """One possible state of a lease."""

    attempt: int = 0
    ready_ms: int = 0  # it is not delivered again before that time
    mark: int = 0  # the clock's mark when the state began
    receipt: str = ""  # the receipt that can settle it, or empty
    is_done: bool = False
    is_buried: bool = False  # it is a dead letter, or will be one


_FREE = State()


@dataclass
class _Lease:
    topic: str
    message_id: str
    states: frozenset[State] = frozenset([_FREE])
    receipts: list[str] = field(default_factory=list)  # all receipts given for it

    @property
    def may_be_done(self) -> bool:
        return any(one.is_done for one in self.states)

    @property
    def may_be_dead(self) -> bool:
        return any(one.is_buried for one in self.states)

    @property
    def must_be_dead(self) -> bool:
        return all(one.is_buried for one in self.states)

    @property
    def must_be_done(self) -> bool:
        return all(one.is_done for one in self.states)

    @property
    def is_leased(self) -> bool:
        """Return whether it certainly is leased, by any owner."""
        return all(one.attempt and not one.is_done for one in self.states)


class Lessees:
    """The leases of the group, for all topics."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.is_ordered = False  # whether the group keeps the order of message groups
        self.requeued: set[bytes] = set()  # messages that left their order as dead letters
        self._leases: dict[bytes, _Lease] = {}
        self._dead: dict[bytes, tuple[int, int]] = {}  # the place of the last dead letter
        self.dead_next: dict[int, int] = {}  # the next dead letter to read, by queue
        self._undo: list[tuple[int, _Lease, frozenset[State]]] = []  # by the log's end

    def of(self, body: bytes) -> "_Lease | None":
        """Return the lease of a message, or None if it never was leased."""
        return self._leases.get(body)

    # --- calls ---

    def receive(
        self, store: TimerStore, clock: TurnedClock, topic: str | list[str], count: int,
        lease_ms: int, seen: Seen, is_dead: IsDead, look: Callable[[], None] = lambda: None,
    ) -> list[LeasedMessage]:  # fmt: skip
        """Lease messages of a topic, or of several, and check them.

        `is_dead` returns whether the process died during the call. `look` reads the messages that
        became visible in it.
        """
        with self.receiving(topic, seen):
            got = store.receive(topic, GROUP, **asked(count, lease_ms), ordered=self.is_ordered)
        assert len(got) <= count
        self.received(store, clock, got, lease_ms, seen, is_dead, look)
        return got

    @contextmanager
    def receiving(self, topic: str | list[str], seen: Seen) -> Iterator[None]:
        """Run a call that leases, and keep what it may have leased if it fails."""
        self.topics.update([topic] if isinstance(topic, str) else topic)
        try:
            yield
        except FlowControlError:
            raise
        except Exception:
            self.doubt_receive(topic, seen)
            raise

    def received(
        self, store: TimerStore, clock: TurnedClock, got: list[LeasedMessage], lease_ms: int,
        seen: Seen, is_dead: IsDead, look: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Check the messages that a call leased, and record their states."""
        assert len({one.body for one in got}) == len(got), "one message twice"
        if any(m.queue_offset >= len(seen.get((m.topic, m.queue_id), ())) for m in got):
            look()
        for message in got:
            self._came(store, clock, message, lease_ms, seen, sure=not is_dead())

    def _came(
        self, store: TimerStore, clock: TurnedClock, message: LeasedMessage, lease_ms: int,
        seen: Seen, *, sure: bool,
    ) -> None:  # fmt: skip
        known = seen[message.topic, message.queue_id][message.queue_offset]
        assert known == (message.body, message.delivered_ms), f"{known} was seen: {message}"
        until_ms = clock.now_ms + lease_ms
        assert message.lease_until_ms == until_ms
        assert message.is_last_attempt == (message.attempt == ATTEMPTS_MAX)
        one = self._of(message.topic, message.body, message.message_id)
        before = [
            state for state in one.states
            if not (state.is_done or state.is_buried)
            and state.attempt + 1 == message.attempt <= ATTEMPTS_MAX
            and clock.highest_since(state.mark) >= state.ready_ms
        ]  # fmt: skip
        assert before, f"came, attempt {message.attempt}, at {clock.now_ms}: {one}"
        one.receipts.append(message.receipt)
        new = State(message.attempt, until_ms, clock.mark(), message.receipt)
        self._becomes(store, one, [new], sure=sure)

    def _of(self, topic: str, body: bytes, message_id: str) -> _Lease:
        one = self._leases.setdefault(body, _Lease(topic, message_id))
        one.message_id = message_id or one.message_id
        return one

    def _becomes(self, store: TimerStore, one: _Lease, new: list[State], *, sure: bool) -> None:
        if store.config.flush == "async":
            self._undo.append((inside(store).log.end, one, one.states))
        one.states = frozenset(new) if sure else one.states.union(new)

    def doubt_receive(self, topic: str | list[str], seen: Seen) -> None:
        """Record a call without result: it may have leased any message of its topics."""
        topics = [topic] if isinstance(topic, str) else topic
        for queue, messages in seen.items():
            for body, _ in messages if queue[0] in topics else ():
                one = self._of(queue[0], body, "")
                one.states |= {
                    State(state.attempt + 1) for state in one.states
                    if not (state.is_done or state.is_buried) and state.attempt < ATTEMPTS_MAX
                }  # fmt: skip

    def settle(
        self, store: TimerStore, clock: TurnedClock, kind: str, which: int, ms: int,
        is_dead: IsDead,
    ) -> None:  # fmt: skip
        """Ack, nack, bury, extend or give back a lease, which may have expired."""
        chosen = self.choose(which)
        if chosen is None:
            return
        one, receipt = chosen
        mine = _held_by(one, receipt)
        longer = receipt if kind == "renew" else ""
        until_ms, mark = clock.now_ms + ms, clock.mark()
        try:
            if kind == "extend":
                longer, answer = store.extend(receipt, lease=ms / 1000), None
                one.receipts.append(longer)
            elif kind == "renew":
                until_ms, answer = store.renew(receipt, lease=ms / 1000), None
            elif kind == "nack":
                answer = store.nack(receipt, delay=ms / 1000)
            elif kind == "bury":
                answer = store.bury(receipt)
            elif kind == "give_back":
                answer = _given_back(store, receipt)
            else:
                answer = store.ack(receipt) if kind == "ack" else store.ack_many([receipt])[0]
        except LeaseLostError as error:
            answer = AckResult(error.result)
        except FlowControlError:
            raise
        except Exception:
            one.states = one.states.union(_after(kind, mine, longer, until_ms, mark))
            raise
        self._settled(store, clock, kind, chosen, mine, answer, longer, until_ms, mark, is_dead)

    def choose(self, which: int) -> "tuple[_Lease, str] | None":
        """Return a lease and one of its receipts, sometimes an old one."""
        choice = [one for one in self._leases.values() if one.receipts]
        if not choice:
            return None
        one = choice[which % len(choice)]
        return one, one.receipts[-1 - (which % 7 == 6 and len(one.receipts) > 1)]

    def acked(
        self, store: TimerStore, clock: TurnedClock, chosen: "tuple[_Lease, str]",
        answer: AckResult | str | None, is_dead: IsDead,
    ) -> None:  # fmt: skip
        """Record the result of one ack of many, or None if it raised an error."""
        one, mine, mark = chosen[0], _held_by(*chosen), clock.mark()
        if answer is None:
            one.states = one.states.union(_after("ack", mine, "", 0, mark))
        else:
            self._settled(store, clock, "ack", chosen, mine, answer, "", 0, mark, is_dead)

    def _settled(
        self, store: TimerStore, clock: TurnedClock, kind: str, chosen: "tuple[_Lease, str]",
        mine: list[State], answer: AckResult | str | None, longer: str, until_ms: int, mark: int,
        is_dead: IsDead,
    ) -> None:  # fmt: skip
        one, receipt = chosen
        if answer not in (None, *_ANSWERS.values()):
            self._refused(clock, one, receipt, answer)
            return
        assert answer is _ANSWERS[kind]
        assert mine, f"{kind}: not held by that receipt: {one}"
        self._becomes(store, one, _after(kind, mine, longer, until_ms, mark), sure=not is_dead())

    def _refused(
        self, clock: TurnedClock, one: _Lease, receipt: str, answer: AckResult | str | None
    ) -> None:
        """Keep the states in which the receipt did not own the lease, and check the reason."""

        def fits(state: State) -> bool:
            if state.receipt != receipt:
                return True
            is_over = clock.highest_since(state.mark) >= state.ready_ms
            if answer is AckResult.EXPIRED:
                return is_over and not state.is_done
            # UNKNOWN: retention has removed the records of the lease.
            return state.is_done or (answer is AckResult.UNKNOWN and is_over)

        left = frozenset(filter(fits, one.states))
        assert left, f"{answer} at {clock.now_ms}: {one}"
        one.states = left

    def cut(self, durable: int) -> None:
        """Record a power cut that kept the log up to `durable` and may undo later calls."""
        for end, one, before in self._undo:
            if end > durable:
                one.states |= before
        self._undo.clear()

    # --- looking ---

    def look(self, store: TimerStore) -> None:
        """Read the dead letters, and check that each comes once and after its last attempt."""
        for queue_id in range(store.topics().get(DEAD, 0)):
            while True:
                at = self.dead_next.get(queue_id, 0)
                result = store.pull(DEAD, queue_id, at)
                for message in result.messages:
                    one = self._leases[message.body]
                    place = message.queue_id, message.queue_offset
                    before = self._dead.get(message.body, place)
                    assert before[0] != place[0] or before <= place, f"{before} came after {place}"
                    self._dead[message.body] = place
                    one.states = frozenset(
                        state._replace(is_buried=True) for state in one.states
                        if (state.attempt == ATTEMPTS_MAX or state.is_buried) and not state.is_done
                    )  # fmt: skip
                    assert one.states, f"dead too soon, or acked: {message}"
                if result.next_offset <= at:
                    break
                self.dead_next[queue_id] = result.next_offset

    # --- dead letters ---

    def requeue(
        self, store: TimerStore, which: int, is_dead: IsDead, count: int | None = 1
    ) -> None:
        """List the dead letters, and requeue `count` of them; None: all."""
        listed = self._list_dead(store)
        if not listed:
            return
        which %= len(listed)
        chosen = listed if count is None else listed[which : which + count]
        given = None if count is None else [one.receipt for one in chosen]
        leases = [self._leases[one.body] for one in chosen]
        self.requeued |= {one.body for one in chosen}
        try:
            requeued = store.requeue(GROUP, given)
        except Exception:
            for one in leases:
                one.states |= {_FREE}
            raise
        assert requeued == len(chosen), f"{requeued} of {len(chosen)} requeued"
        for letter, one in zip(chosen, leases, strict=True):
            if not is_dead():
                self._dead.pop(letter.body, None)
            self._becomes(store, one, [_FREE], sure=not is_dead())

    def _list_dead(self, store: TimerStore) -> list[DeadLetter]:
        """Return the dead letters, and keep the states that fit them."""
        self.look(store)
        surely_dead = [body for body, one in self._leases.items() if one.must_be_dead]
        listed = list(store.dead_letters(GROUP))
        self.look(store)
        bodies = {one.body for one in listed}
        assert len(bodies) == len(listed), "one message is two dead letters"
        for letter in listed:
            one = self._leases[letter.body]
            one.states = frozenset(state for state in one.states if state.is_buried)
            assert one.states, f"requeued, and still a dead letter: {letter}"
        for body in surely_dead:
            if body not in bodies and body in self._dead:
                queue_id, offset = self._dead[body]
                found = store.pull(DEAD, queue_id, offset, max_count=1).messages
                is_there = bool(found) and found[0].queue_offset == offset
                assert not is_there, f"dead, and not listed: {self._leases[body]}"
        return listed

    def check_waiting(self, store: TimerStore, shared: frozenset[str] = frozenset()) -> None:
        """Check that leased messages are pending or were delivered again, and done ones are not.

        A done message may share its id with a pending one; those ids are in `shared`.
        """
        waiting = {p.message_id for p in store.pending() if group_of(p.topic) == GROUP}
        again = {message_id for topic in self.topics for message_id in _ids(store, topic)}
        for one in self._leases.values():
            if one.must_be_done:
                is_other = one.message_id in shared
                assert is_other or one.message_id not in waiting, f"acked, and waits: {one}"
            elif one.is_leased and not one.may_be_dead:
                assert one.message_id in waiting | again, f"its lease is gone: {one}"

    # --- the end ---

    def finish(
        self, store: TimerStore, clock: TurnedClock, seen: Seen, settle: Callable[[], None],
        begin_of: Callable[[Queue], int] = lambda _queue: 0, *, may_lose: bool = False,
    ) -> None:  # fmt: skip
        """Receive and ack the rest, and check that each message is acked or dead.

        `begin_of` returns the first remaining offset of a queue.
        """
        self._ack_rest(store, clock, seen, settle)
        for body, one in self._leases.items():
            is_letter = body in self._dead or may_lose or not one.must_be_dead
            assert is_letter, f"buried, and no dead letter: {one}"
        if any(one.may_be_dead for one in self._leases.values()):
            with suppress(FlowControlError):
                self.requeue(store, 0, lambda: False, None)
            self._ack_rest(store, clock, seen, settle)
        for queue, messages in seen.items():
            for offset, (body, _) in enumerate(messages if queue[0] in self.topics else ()):
                found = self._leases.get(body)
                may_be_free = found is None or _FREE in found.states
                if may_lose or (offset < begin_of(queue) and may_be_free):
                    continue  # removed before the group was known
                is_over = found is not None and (found.may_be_done or found.may_be_dead)
                assert is_over, f"lost: {body[:6]!r} {found}"

    def _ack_rest(
        self, store: TimerStore, clock: TurnedClock, seen: Seen, settle: Callable[[], None]
    ) -> None:
        for _ in range(3 * ATTEMPTS_MAX if self.topics else 0):
            states = [state for one in self._leases.values() for state in one.states]
            latest = max((state.ready_ms for state in states), default=0)
            clock.set(max(clock.now_ms, latest))
            settle()
            self.look(store)
            for topic in sorted(self.topics):
                while got := self._receive_all(store, clock, topic, seen, settle):
                    assert set(store.ack_many(got)) == {AckResult.ACKED}
                    for message in got:
                        one = self._leases[message.body]
                        one.states = frozenset(s._replace(is_done=True) for s in one.states)
            if all(one.must_be_done or one.must_be_dead for one in self._leases.values()):
                break
        self.look(store)

    def _receive_all(
        self, store: TimerStore, clock: TurnedClock, topic: str, seen: Seen,
        settle: Callable[[], None],
    ) -> list[LeasedMessage]:  # fmt: skip
        for _ in range(100):
            try:
                return self.receive(store, clock, topic, 100, 1000, seen, lambda: False)
            except FlowControlError:  # the slot is full
                clock.set(clock.now_ms + 1000)
                settle()
        raise AssertionError("every slot is full")


def asked(count: int, lease_ms: int) -> dict[str, Any]:
    """Return the arguments of a `receive` of the group."""
    return {
        "lease": lease_ms / 1000, "max_count": count, "max_attempts": ATTEMPTS_MAX,
        "backoff": BACKOFF_S,
    }  # fmt: skip


_ANSWERS = {
    "extend": None, "renew": None,
    "nack": AckResult.NACKED, "bury": AckResult.BURIED, "ack": AckResult.ACKED,
    "ack_many": AckResult.ACKED, "give_back": "GIVEN_BACK",
}  # fmt: skip
"""The result of each call that settles a held lease."""


def _held_by(one: _Lease, receipt: str) -> list[State]:
    """Return the states in which that receipt owns the lease."""
    return [state for state in one.states if state.receipt == receipt and not state.is_done]


def _given_back(store: TimerStore, receipt: str) -> "AckResult | str":
    """Give a message back; return the reason if it was not leased any more, as an `ack` says."""
    return "GIVEN_BACK" if store._give_back([receipt]) else store.ack(receipt)


def _after(kind: str, mine: list[State], longer: str, until_ms: int, mark: int) -> list[State]:
    """Return the states after a lease is settled."""
    if kind in ("extend", "renew"):
        return [State(state.attempt, until_ms, mark, longer) for state in mine]
    if kind == "give_back":
        return [State(state.attempt - 1, 0, mark) for state in mine]
    if kind == "bury":
        return [State(state.attempt, 0, mark, is_buried=True) for state in mine]
    if kind == "nack":  # after the last attempt it becomes a dead letter at once
        return [
            State(state.attempt, until_ms * (state.attempt < ATTEMPTS_MAX), mark) for state in mine
        ]
    return [state._replace(is_done=True) for state in mine]


def _ids(store: TimerStore, topic: str) -> Iterator[str]:
    """Yield the ids of messages that were delivered again or became dead letters."""
    for name in (retry_topic(topic, GROUP), DEAD):
        for queue_id in range(store.topics().get(name, 0)):
            offset = 0
            while True:
                result = store.pull(name, queue_id, offset, max_count=1000)
                yield from (message.message_id for message in result.messages)
                if result.next_offset <= offset:
                    break
                offset = result.next_offset
