"""Assign the queues of a topic to the consumers of a group, and keep each consumer's positions.

    topic orders, queues 0 1 2 3          a joins      a: 0 1 2 3
                                          b joins      a: 0 1      b: 2 3
                                          a closes                 b: 0 1 2 3

Thread safety: any thread. A Group's `lock` guards all of its fields; only an entry of `committing`
is removed without it. `Groups._lock` guards the fields of Groups. Locks and events are implemented
in C: a signal handler that raises inside a Python-level Condition would leave it locked.
Locking: Groups._lock, then a Group's lock, then the long-poll table's. None of them is held during
a pull or a sync.
Invariants:
    1. A queue is assigned to one consumer of its group.
    2. A consumer that joins or leaves moves as few queues as a fair division allows.
    3. A reassigned queue continues at its committed offset, after pending commits of it completed.
    4. A group either leases a topic or reads it with consumers; Groups._lock decides which.
See also: docs/decisions/0005-long-poll.md, docs/decisions/0009-leases-replace-and-recurring.md.
"""

import re
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from timerstore._engine.base.native import Lock
from timerstore._engine.base.owner import NotCopyable
from timerstore._engine.base.service import WakeEvent
from timerstore._engine.format.lease import DEAD_LETTER_PREFIX, group_of
from timerstore._engine.queues.routes import Routes
from timerstore._engine.read.long_poll import FOREVER_NS, LongPoll
from timerstore.errors import MessageError, TimerStoreError, plain, quoted
from timerstore.types.messages import EXPIRES_PROPERTY, Message, PullResult, unexpired

# --- wait queue ---
# Order the waiting polls of one consumer; only the first is in the long-poll table.
#
#     three threads poll one consumer   a (in the table at queues 0, 2)   b   c   b and c only sleep
#     a message arrives in queue 2      a is woken and reads              b   c   no other wakes
#     a returns the message             b (in the table at queues 0, 2)   c       b has not woken
#
# Thread safety: every call needs the lock of the group, except `Waiter.wake`.
# Locking: the group's lock, then the long-poll table's.
# Invariants:
#     1. If the first waiter sleeps, it has a long poll at each queue of the consumer, and there was
#        nothing to read when it was added; otherwise it has been woken.
#     2. A waiter that leaves, for whatever reason, puts the next one into the table: no message
#        waits while every waiter sleeps.
# Raises: nothing. If a queue cannot be read, the waiter is woken and finds the error itself.
# See also: docs/decisions/0005-long-poll.md.


AddPoll = Callable[[int, int, int, Callable[[], None]], LongPoll | None]
"""Adds a long poll: queue number, offset, end (monotonic ns), wake. Returns None: read instead."""

RemovePoll = Callable[[LongPoll], object]


class Waiter:
    """One waiting poll."""

    __slots__ = ("end_ns", "is_waiting", "is_woken", "polls", "wake_caller")

    def __init__(self, end_ns: int) -> None:
        self.end_ns = end_ns
        self.wake_caller: Callable[[], None] = _ignore
        self.is_woken = False  # since it last began to wait
        self.is_waiting = False
        self.polls: list[tuple[AssignedQueue, int, LongPoll]] = []  # queue, offset

    def wake(self) -> None:
        """Have the caller read again; from any thread, any number of times."""
        if not self.is_woken:
            self.is_woken = True
            try:
                self.wake_caller()
            except BaseException:  # KeyboardInterrupt may come first: there is no second `wake`
                self.wake_caller()
                raise


class WaitQueue:
    """The waiters of one consumer, in order of arrival."""

    def __init__(self, add_poll: AddPoll, remove_poll: RemovePoll) -> None:
        self._add_poll = add_poll
        self._remove_poll = remove_poll
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()

    def enter(
        self,
        waiter: Waiter,
        wake: Callable[[], None],
        offsets: "Mapping[AssignedQueue, int] | None",
    ) -> bool:
        """Begin to wait, at the end of the queue or in the waiter's old position.

        Return False if the caller must read instead.

        offsets: the offset to wait for in each queue; None if there is something to read.
        """
        self._waiters.setdefault(waiter)
        waiter.wake_caller, waiter.is_woken, waiter.is_waiting = wake, False, True
        if self._first() is not waiter:
            return True  # the first waiter reads, or is in the table
        if self._add_polls(waiter, offsets):
            return True
        waiter.is_waiting = False
        return False

    def suspend(self, waiter: Waiter) -> "list[tuple[AssignedQueue, int, int]]":
        """Take a waiter out of the table; it keeps its position.

        Return (queue, offset, end) for each of its polls: no message in [offset, end) of the queue
        is for this consumer.
        """
        waiter.is_waiting = False
        polls, waiter.polls = waiter.polls, []
        for _, _, poll in polls:
            self._remove_poll(poll)
        return [(queue, offset, poll.no_match_below) for queue, offset, poll in polls]

    def leave(self, waiter: Waiter, offsets: "Mapping[AssignedQueue, int] | None") -> None:
        """Remove a waiter and put the next one into the table.

        If a signal interrupts this call, calling it again completes it.
        """
        if waiter in self._waiters:
            self.suspend(waiter)
            del self._waiters[waiter]
        first = self._first()
        if first is None or not first.is_waiting or first.is_woken or first.polls:
            return  # it reads, is about to, or is in the table
        if not self._add_polls(first, offsets):
            first.wake()

    def wake_first(self) -> None:
        """Have the first waiter read; if it leaves messages, the next one is woken in turn."""
        first = self._first()
        if first is not None and first.is_waiting:
            first.wake()

    def wake_all(self, until_ns: int = FOREVER_NS) -> None:
        """Wake every waiter whose time ends at `until_ns` or earlier."""
        for waiter in self._waiters:
            if waiter.is_waiting and waiter.end_ns <= until_ns:
                waiter.wake()

    def _first(self) -> Waiter | None:
        return next(iter(self._waiters), None)

    def _add_polls(self, waiter: Waiter, offsets: "Mapping[AssignedQueue, int] | None") -> bool:
        if offsets is None:
            return False
        is_added = False
        try:
            for queue, offset in offsets.items():
                poll = self._add_poll(queue.queue_id, offset, waiter.end_ns, waiter.wake)
                if poll is None:
                    break
                waiter.polls.append((queue, offset, poll))
            else:
                is_added = True
        except TimerStoreError:
            pass
        finally:
            if not is_added:  # all polls or none, also after an interrupt
                polls, waiter.polls = waiter.polls, []
                for _, _, poll in polls:
                    self._remove_poll(poll)
        return is_added


def _ignore() -> None:
    """Wake no caller: none has begun to wait."""


# --- groups ---


_NAME = re.compile(r"[A-Za-z0-9%_|-]{1,255}")


def check_name(what: str, name: object) -> str:
    """Return a topic or group name that RocketMQ allows; raise MessageError otherwise."""
    name = plain(name)
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    found = quoted(name)
    if len(found) > 60:
        found = f"{found[:60]}... of {len(name) if isinstance(name, str) else '?'} characters"
    raise MessageError(f"{what}: wanted 1 to 255 of A-Za-z0-9%_|-, got {found}")


def divide(queues: Iterable[int], assigned: Sequence[Collection[int]]) -> list[list[int]]:
    """Divide queues among consumers so that their counts differ by at most one.

    assigned: the queues each consumer has now; it keeps as many of them as is fair.
    """
    left = set(queues)
    shares = []
    for one in assigned:
        shares.append(sorted(left.intersection(one)))
        left.difference_update(one)
    for queue_id in sorted(left) if shares else ():
        min(shares, key=len).append(queue_id)
    while shares and len(most := max(shares, key=len)) - len(least := min(shares, key=len)) > 1:
        least.append(most.pop())
    return [sorted(one) for one in shares]


class Filters(NamedTuple):
    """The filter of a group, in the form that `pull` takes."""

    tags: str | None
    sql: str | None

    def __str__(self) -> str:
        return f"tags {self.tags!r}, sql {self.sql!r}"


class AssignedQueue:
    """A queue that is assigned to a consumer; a new object each time that it is assigned."""

    __slots__ = (
        "buffered",
        "buffered_bytes",
        "commit_floor",
        "fetch_at",
        "is_known",
        "may_expire",
        "position",
        "queue_id",
        "requested",
        "seek_count",
    )

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.position = -1  # the offset after the last message handed out; -1: not known yet
        self.is_known = False  # whether the group has committed or read there
        self.commit_floor = 0  # a commit below it is out of date
        self.requested = 0  # the furthest commit requested since the last seek
        self.seek_count = 0
        self.fetch_at = 0  # the offset after the last message fetched
        self.buffered: deque[Message] = deque()  # fetched, not handed out
        self.buffered_bytes = 0  # of their bodies
        self.may_expire = False  # whether a buffered message has an expiry

    def set_known(self, *, is_known: bool) -> None:
        """Record whether the group has committed there."""
        self.is_known = is_known

    def commit_done(self, offset: int) -> None:
        """Record that a commit is durable: an earlier offset is out of date."""
        self.commit_floor = max(self.commit_floor, offset)

    def seek_to(self, offset: int) -> None:
        """Continue at an offset, and drop the buffered messages."""
        self.buffered.clear()
        self.buffered_bytes = 0
        self.position = self.commit_floor = self.fetch_at = offset
        self.requested = 0
        self.seek_count += 1

    def commit_target(self, offset: int, *, has_pending: bool) -> int:
        """Return the offset to commit for a request: not below a pending commit's."""
        self.requested = max(self.requested, offset) if has_pending else offset
        return self.requested

    def add_pulled(self, result: PullResult) -> None:
        """Buffer the messages of a pull from `fetch_at`, which never decreases."""
        self.buffered.extend(result.messages)
        for one in result.messages:
            self.buffered_bytes += len(one.raw_body)
            self.may_expire |= EXPIRES_PROPERTY in one.properties
        self.fetch_at = max(self.fetch_at, result.next_offset)
        if not self.buffered:
            self.position = self.fetch_at

    def drop_expired(self, now_ms: int) -> int:
        """Drop the buffered messages that have expired; return their number."""
        kept = unexpired(self.buffered, now_ms)
        count = len(self.buffered) - len(kept)
        self.buffered = deque(kept)
        self.buffered_bytes = sum([len(one.raw_body) for one in kept])
        if not kept:
            self.position, self.may_expire = self.fetch_at, False
        return count

    def skip(self, offset: int, no_match_below: int) -> None:
        """Skip messages that do not match, if they are the next to fetch."""
        if self.fetch_at == offset < no_match_below:
            self.fetch_at = no_match_below
            if not self.buffered:
                self.position = no_match_below

    def take(self, count: int) -> list[Message]:
        """Hand out up to `count` buffered messages."""
        found: list[Message] = []
        while self.buffered and len(found) < count:
            found.append(self.buffered.popleft())
            self.buffered_bytes -= len(found[-1].raw_body)
        if found:
            self.is_known = True
            # The messages after the last one did not match; the group is done with them too.
            self.position = found[-1].queue_offset + 1 if self.buffered else self.fetch_at
        return found


class Member(NotCopyable):
    """A group's record of one consumer."""

    def __init__(
        self, queues: tuple[int, ...] | None, wait_queue: WaitQueue, owner: weakref.ref[object]
    ) -> None:
        self.owner = owner
        self.queues = queues  # the queues that it requested; None: a fair share
        self.wait_queue = wait_queue  # its waiting polls
        self.assigned: dict[int, AssignedQueue] = {}
        self.revoked: dict[int, int] = {}  # its positions in queues that it has lost
        self.is_in = False
        self.blocked_queues: set[int] = set()  # queues whose next message must wait for another one

    @property
    def is_gone(self) -> bool:
        """Return whether its consumer was collected without having been closed."""
        return self.owner() is None

    def assign(self, queues: Collection[int]) -> None:
        """Replace the assigned queues."""
        before = self.assigned
        self.assigned = {q: before.get(q) or AssignedQueue(q) for q in queues}
        for q in before.keys() - self.assigned.keys():
            self.revoked[q] = max(self.revoked.get(q, 0), before[q].position)
        if self.assigned.keys() != before.keys():
            self.wait_queue.wake_first()

    def wait_offsets(self) -> dict[AssignedQueue, int] | None:
        """Return the offset to wait for in each queue, or None if there is something to read."""
        queues = [one for q, one in self.assigned.items() if q not in self.blocked_queues]
        if any(one.position < 0 or one.buffered for one in queues):
            return None
        return {one: one.fetch_at for one in queues}

    def unblock(self) -> None:
        """Read the blocked queues again, as a message is settled."""
        if self.blocked_queues:
            self.blocked_queues.clear()
            self.wait_queue.wake_first()


class Group(NotCopyable):
    """The consumers of one topic and group in this process."""

    def __init__(self, topic: str, name: str, routes: Routes) -> None:
        self.topic = topic
        self.name = name
        self._routes = routes
        self.lock = Lock()
        self.members: list[Member] = []
        self.filters = Filters(None, None)
        self.queue_count = 0
        self.committing: dict[object, Collection[int]] = {}  # the queues of each pending commit
        self._waiting: list[WakeEvent] = []  # set when a pending commit ends

    @property
    def is_read(self) -> bool:
        """Return whether the group has a consumer; needs no lock."""
        return any(not one.is_gone for one in list(self.members))

    # --- members; under `lock` ---

    def join(self, member: Member, filters: Filters) -> None:
        """Add a consumer and divide the queues again."""
        self.refresh()
        if self.members and filters != self.filters:
            raise MessageError(
                f"group {self.name!r} reads {self.topic!r} with {self.filters}, and all consumers "
                f"of a group use one filter; got {filters}"
            )
        taken = {q for one in self.members for q in one.queues or ()}
        wrong = sorted(taken.intersection(member.queues or ()))
        if wrong:
            raise MessageError(
                f"queues: another consumer of group {self.name!r} already has {wrong} of "
                f"{self.topic!r}, got {list(member.queues or ())}"
            )
        self.filters = filters
        self.members.append(member)
        member.is_in = True
        self.divide()

    def restart(self) -> None:
        """Read the topic from its beginning when it has messages again: it was deleted."""
        for member in self.members:
            member.assigned, member.revoked, member.blocked_queues = {}, {}, set()
        self.divide()

    def leave(self, member: Member) -> None:
        """Remove a consumer; the others get its queues."""
        if member.is_in:
            member.is_in = False
            member.assigned = {}
            self.members.remove(member)
            self.divide()
            member.wait_queue.wake_all()

    def refresh(self) -> None:
        """Divide the queues again if there are new queues, or consumers were collected."""
        for member in self.members.copy():
            if member.owner() is None:  # collected without having been closed
                self.leave(member)
        if self._routes.full_queue_count(self.topic) != self.queue_count:
            self.divide()

    def divide(self) -> None:
        """Assign each queue to one member."""
        self.queue_count = self._routes.full_queue_count(self.topic)
        taken = {q for one in self.members for q in one.queues or ()}
        sharing = [one for one in self.members if one.queues is None]
        shares = divide(
            (q for q in range(self.queue_count) if q not in taken),
            [one.assigned for one in sharing],
        )
        for member in self.members:
            if member.queues is not None:
                member.assign([q for q in member.queues if q < self.queue_count])
        for member, share in zip(sharing, shares, strict=True):
            member.assign(share)

    # --- commits; under `lock` ---

    def is_committing(self, queue_id: int) -> bool:
        """Return whether a commit of this queue is pending."""
        return any(queue_id in queues for queues in list(self.committing.values()))

    def settled_event(self) -> WakeEvent:
        """Return an event that is set when a pending commit has completed or failed."""
        event = WakeEvent()
        self._waiting.append(event)
        return event

    def commit_settled(self) -> None:
        """Set the events: a commit has ended, and was removed from `committing`."""
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.set()

    # --- waiting ---

    def arrived(self) -> None:
        """Divide the queues again if the topic has new queues or a consumer was collected.

        The long-poll table wakes the consumer that a message is for.
        """
        is_changed = self._routes.full_queue_count(self.topic) != self.queue_count
        if is_changed or any(one.is_gone for one in list(self.members)):
            with self.lock:
                self.refresh()

    def wake_all(self, until_ns: int) -> None:
        """Wake every poll whose time ends at `until_ns` or earlier."""
        with self.lock:
            for member in self.members:
                member.wait_queue.wake_all(until_ns)


class Groups(NotCopyable):
    """The groups of one store."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._lock = Lock()
        self._by_topic: dict[str, tuple[Group, ...]] = {}  # tuples: read without the lock
        # By topic and group: the topic whose messages the group leases there. Never removed.
        self._leasing: dict[tuple[str, str], str] = {}
        self.is_closed = False

    def lease(self, topic: str, name: str, retry_topic: str) -> None:
        """Reserve a topic and its retry topic for leases of a group.

        Raise MessageError if the group has a consumer in one of them, or leases one of them as
        part of another topic.
        """
        with self._lock:
            known = self.known()
            for one in (topic, retry_topic):
                leased = self._leasing.get((one, name), topic)
                if leased != topic:
                    raise MessageError(
                        f"group: {name!r} leases {one!r} in this process by a receive of {leased!r}"
                    )
                if (one, name) in known:
                    raise MessageError(
                        f"group: a consumer of group {name!r} reads {one!r} in this process; "
                        "close it before you call receive"
                    )
            self._leasing |= {(topic, name): topic, (retry_topic, name): topic}

    def join(
        self, topic: str, name: str, member: Member, filters: Filters, *, leases: bool = False
    ) -> Group:
        """Add a consumer to its group, and create the group for its first consumer.

        leases: the consumer reads messages in order to lease them. Any other consumer raises
            MessageError if the group leases the topic.
        """
        with self._lock:
            if not leases and (topic, name) in self._leasing:
                raise MessageError(f"group: {name!r} leases {topic!r} in this process (receive)")
            here = self._by_topic.get(topic, ())
            known = next((one for one in here if one.name == name), None)
            group = known or Group(topic, name, self._routes)
            with group.lock:
                group.join(member, filters)
            if known is None:
                self._by_topic[topic] = (*here, group)
            return group

    def leave(self, group: Group, member: Member) -> None:
        """Remove a consumer; a group without consumers and pending commits is forgotten."""
        with self._lock, group.lock:
            group.leave(member)
            self._forget_unread(group)

    def commit_settled(self, group: Group) -> None:
        """Notify the group that a commit has completed or failed."""
        with self._lock, group.lock:
            group.commit_settled()
            self._forget_unread(group)

    def _forget_unread(self, group: Group) -> None:
        if not group.is_read and not group.committing:
            here = self._by_topic.get(group.topic, ())
            if left := tuple(one for one in here if one is not group):
                self._by_topic[group.topic] = left
            else:
                self._by_topic.pop(group.topic, None)

    def known(self) -> list[tuple[str, str]]:
        """Return topic and name of every group that has a consumer in this process."""
        here = [one for groups in list(self._by_topic.values()) for one in groups]
        return [(one.topic, one.name) for one in here if one.is_read]

    def arrived(self, touched: set[int]) -> None:
        """Handle queues that have grown, given as indexes of their routes."""
        if self._by_topic:
            for topic in {self._routes.by_index[index].topic for index in touched}:
                for group in self._by_topic.get(topic, ()):
                    group.arrived()
                if topic.startswith(DEAD_LETTER_PREFIX):
                    self.unblock(group_of(topic))

    def unblock(self, name: str | None) -> None:
        """Look again for messages that waited for a last attempt of the group, of any topic."""
        for groups in list(self._by_topic.values()):
            for group in groups:
                if group.name == name:
                    with group.lock:
                        for member in group.members:
                            member.unblock()

    def restart(self, topic: str) -> None:
        """Let the groups of a deleted topic read it from its beginning."""
        for group in self._by_topic.get(topic, ()):
            with group.lock:
                group.restart()

    def wake_all(self, until_ns: int = FOREVER_NS) -> None:
        """Wake every poll whose time ends at `until_ns` or earlier.

        Called if the store was closed or has failed, or if its clock was set by hand.
        """
        for groups in list(self._by_topic.values()):
            for group in groups:
                group.wake_all(until_ns)

    def close(self) -> None:
        """Wake every poll; each returns no messages."""
        self.is_closed = True
        self.wake_all()
